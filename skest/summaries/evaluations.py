# SPDX-License-Identifier: Apache-2.0
"""The record of evaluations: a file of results, and events for TensorBoard."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from skest.eval_results import eval_dir_of, write_eval_result
from skest.hooks.base import Run
from skest.keys import MetricKeys

__all__ = ["record_evaluation"]

_logger = logging.getLogger("skest")


def record_evaluation(
    run: Run, eval_dir: Path | None, results: Mapping[str, Any]
) -> None:
    """Record the result of an evaluation in a directory, and as summaries.

    One that can't be recorded, in a read-only ``model_dir``, is logged and no error.

    Parameters
    ----------
    run : Run
        The evaluation; its writer is that of `eval_dir`.
    eval_dir : Path or None
        As ``Estimator.eval_dir`` returns it; None records nothing.
    results : dict of str to float or ndarray
        As ``Estimator.evaluate`` returns them; only numbers are recorded.

    Raises
    ------
    ValueError
        If the configuration keeps the best checkpoints by a metric that is no number
        among them.
    """
    if eval_dir is None:
        return
    rule = run.config.keep_best
    if rule is not None and eval_dir.name == eval_dir_of(Path(), rule.eval_name).name:
        rule.check(results)
    results = {name: value for name, value in results.items() if np.ndim(value) == 0}
    try:
        write_eval_result(eval_dir, results)
        if run.config.save_summary_steps and run.summary.is_enabled:
            run.summary.scalars(
                {n: v for n, v in results.items() if n != MetricKeys.GLOBAL_STEP}
            )
    except OSError as error:
        _logger.warning("The result is not recorded in %s: %s", eval_dir, error)
