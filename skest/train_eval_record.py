# SPDX-License-Identifier: Apache-2.0
"""What `train_and_evaluate` keeps in ``model_dir`` to return it again."""

import json
import logging
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skest._files import write_file

__all__ = ["Record", "Result"]

_logger = logging.getLogger("skest")

_FILE = "train_and_evaluate.json"
_NO_RECORD = (OSError, ValueError, KeyError, TypeError, AttributeError)


class Result(NamedTuple):
    """What came of an evaluation.

    Attributes
    ----------
    metrics : dict of str to float or ndarray
        What ``Estimator.evaluate`` returned.
    exports : dict of str to (Path or None)
        What the exporters returned, by their names.
    """

    metrics: dict[str, Any] | None
    exports: Mapping[str, Path | None]


class Record:
    """Results of the evaluations behind the last step of a training.

    Parameters
    ----------
    model_dir : Path or None
        Without it, nothing is recorded.
    step : int
        The last step; results of another one count as none.
    """

    def __init__(self, model_dir: Path | None, step: int) -> None:
        self._model_dir = model_dir
        self._step = step
        self._content: Any = {}
        if model_dir is not None:
            try:
                content = json.loads((model_dir / _FILE).read_bytes())
                self._content = content if content["global_step"] == step else {}
            except _NO_RECORD:
                pass

    def is_of(self, max_steps: int | None) -> bool:
        """Tell whether it is of a training that was asked for so many steps."""
        return "max_steps" in self._content and self._content["max_steps"] == max_steps

    def result(
        self, name: str, settings: Mapping[str, Any], exporters: Iterable[str]
    ) -> Result | None:
        """Return the result of an evaluation; None if there is none that can stand for it.

        Parameters
        ----------
        name : str
            Of the evaluation.
        settings : dict
            What else must be as it was then; JSON holds it.
        exporters : iterable of str
            Names, also of those that have exported nothing. An export that is gone must
            be made again.
        """
        if self._model_dir is None:
            return None
        try:
            saved = self._content["evaluations"][name]
            exports = {
                exporter: None if path is None else self._model_dir / path
                for exporter, path in saved["exports"].items()
            }
            is_whole = all(path is None or path.exists() for path in exports.values())
            is_same = saved["settings"] == settings and set(exporters) == set(exports)
            metrics = {
                name: np.asarray(value) if isinstance(value, list) else value
                for name, value in saved["metrics"].items()
            }
            return Result(metrics, exports) if is_same and is_whole else None
        except _NO_RECORD:
            return None

    def write(
        self,
        max_steps: int | None,
        results: Mapping[str, tuple[Mapping[str, Any], Result]],
    ) -> None:
        """Replace it; if that fails, a repeated call does more than it need.

        Parameters
        ----------
        max_steps : int or None
            What the training was asked for.
        results : dict of str to (dict, Result)
            Settings and result of each evaluation, by name.
        """
        if self._model_dir is None:
            return
        evaluations = {
            name: {
                "settings": dict(settings),
                "metrics": result.metrics,
                "exports": {
                    exporter: path and os.path.relpath(path, self._model_dir)
                    for exporter, path in result.exports.items()
                },
            }
            for name, (settings, result) in results.items()
        }
        self._content = {
            "global_step": self._step,
            "max_steps": max_steps,
            "evaluations": evaluations,
        }
        try:
            plain = operator.methodcaller("tolist")  # what is of NumPy
            content = json.dumps(self._content, indent=1, default=plain)
            write_file(self._model_dir / _FILE, content.encode())
        except (OSError, AttributeError, TypeError, ValueError) as error:
            _logger.warning(
                "The results are not recorded for a repeated call: %s", error
            )
