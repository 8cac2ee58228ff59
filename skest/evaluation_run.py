# SPDX-License-Identifier: Apache-2.0
"""One evaluation: of a checkpoint, with a fresh model."""

import contextlib
import functools
import logging
from pathlib import Path
from typing import Any

from skest._random import RunRandom
from skest._resources import IntraOpThreads, dense_size, threads_for
from skest.checkpoints import Checkpoint
from skest.evaluation import evaluate_loop, evaluated
from skest.execution.choice import make_inference
from skest.hooks.base import Hook, Run
from skest.inputs.array_dataset import count_rows
from skest.inputs.batches import Source
from skest.keys import ModeKeys
from skest.model_builder import ModelBuilder, encoded_batches, restore
from skest.summaries.evaluations import record_evaluation

__all__ = ["run_evaluation"]

_logger = logging.getLogger("skest")


def run_evaluation(
    builder: ModelBuilder,
    source: Source,
    checkpoint: Checkpoint,
    hooks: list[Hook],
    steps: int | None = None,
    name: str | None = None,
    eval_dir: Path | None = None,
) -> dict[str, Any]:
    """Build the model, evaluate it with the variables of a checkpoint, note the result.

    Parameters
    ----------
    builder : ModelBuilder
        Builds the model.
    source : Source
        The input.
    checkpoint : Checkpoint
        What is evaluated.
    hooks : list of Hook
        The caller's.
    steps : int, default=None
        Batches to evaluate; None takes all.
    name : str, default=None
        Of the evaluation, for the log.
    eval_dir : Path, default=None
        Where the result is recorded; None records nothing.

    Returns
    -------
    dict of str to float or ndarray
        See `skest.evaluation.evaluate_loop`.

    Raises
    ------
    ValueError
        If the input has no batch, or no end, where nothing ends the evaluation.
    """
    first = source.first_batch()
    if first is None:
        raise ValueError("The input of evaluate has no batch; it needs at least one.")
    builder.remember(first[0])
    device = builder.device
    spec = builder.build(*first, ModeKeys.EVAL, RunRandom(0, device))
    if steps is None and source.is_endless and not [*hooks, *spec.evaluation_hooks]:
        raise ValueError(
            "The input of evaluate has no end, and 'steps' is None, so that it would "
            "never be finished. Let 'input_fn' give the data once (num_epochs=1, no "
            "repeat()), or say how many batches to take in 'steps'."
        )
    restore(spec, checkpoint)
    run = Run(
        spec,
        builder.config,
        global_step=checkpoint.global_step,
        model_dir=builder.model_dir,
        summary_dir=eval_dir,
    )
    n_rows = count_rows(first[0], "features")
    useful = threads_for(dense_size(run.network), n_rows, passes=1)
    with (
        contextlib.closing(run),
        IntraOpThreads.limited_to(useful, wanted=builder.config.num_threads),
    ):
        batches = encoded_batches(source, spec, device)
        all_hooks = [*hooks, *spec.evaluation_hooks]
        infer = None
        if not all_hooks:  # which may change the network
            compute = functools.partial(evaluated, spec)
            execution = builder.config.execution
            infer = make_inference(execution, spec, compute, spec.loss)
        results = evaluate_loop(run, batches, all_hooks, steps, infer)
        _logger.info("Evaluation%s: %s", f" {name!r}" if name else "", results)
        record_evaluation(run, eval_dir, results)
    return results
