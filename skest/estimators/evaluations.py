# SPDX-License-Identifier: Apache-2.0
"""The evaluations of `train_and_evaluate`: when they are due, and what came of them."""

import json
import logging
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skest.core.checks import as_tuple
from skest.core.files import write_file
from skest.engine.loop import INPUT_ENDED
from skest.estimators.estimator import Estimator
from skest.estimators.specs import EvalSpec
from skest.hooks.base import Timer

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


_logger = logging.getLogger("skest")

_EXPORT = "export"


class Evaluation:
    """An EvalSpec at work: when it is due, and what came of it last."""

    def __init__(self, estimator: Estimator, spec: EvalSpec) -> None:
        self._estimator = estimator
        self._spec = spec
        self._exporters = as_tuple(spec.exporters)
        self._timer = self._new_timer()
        self.key = spec.name or ""
        self.settings = {"steps": spec.steps}
        self.step: int | None = None
        self.metrics: dict[str, float] | None = None
        self.exports: dict[str, Path | None] = {e.name: None for e in self._exporters}

    @property
    def asks_for_checkpoints(self) -> bool:
        """Whether it does not wait for checkpoints that are saved anyway."""
        return self._spec.eval_every_steps is not None

    def begin(self, step: int) -> None:
        """Start the clock."""
        self._timer = self._new_timer()
        if self.asks_for_checkpoints:
            self._mark(step)

    def is_due(self, step: int) -> bool:
        """Tell whether a checkpoint of `step` is to be evaluated."""
        return self._timer.is_due(step)

    def run(self, step: int, *, is_final: bool, path: Path | None = None) -> None:
        """Evaluate the checkpoint of `step`, and export it.

        Parameters
        ----------
        step : int
            Global step of the latest checkpoint, or of that at `path`.
        is_final : bool
            Whether training has ended with it.
        path : Path, default=None
            Its directory. Give it if another process saves checkpoints meanwhile.
        """
        self._mark(step)
        spec, path = self._spec, path or self._estimator.latest_checkpoint()
        self.metrics = self._estimator.evaluate(
            spec.input_fn, spec.steps, as_tuple(spec.hooks), path, spec.name
        )
        self.step, self.exports = step, dict.fromkeys(self.exports)
        self.export(path, is_final=is_final)

    def restore(self, record: Record, step: int) -> bool:
        """Take the results from the record of `step`; False if it has none for this."""
        result = record.result(self.key, self.settings, self.exports)
        if result is None:
            return False
        self.step, self.metrics, self.exports = step, result.metrics, {**result.exports}
        _logger.info(
            "Evaluation%s of step %d: results of an earlier call are returned.",
            f" {self.key!r}" if self.key else "",
            step,
        )
        return True

    def export(self, path: Path | None, *, is_final: bool) -> None:
        """Call the exporters that have not yet exported this checkpoint."""
        model_dir = self._estimator.model_dir
        if model_dir is None or path is None or self.metrics is None:
            return
        for exporter in self._exporters:
            if self.exports[exporter.name] is None:
                self.exports[exporter.name] = exporter.export(
                    estimator=self._estimator,
                    export_path=model_dir / _EXPORT / exporter.name,
                    checkpoint_path=path,
                    eval_result=dict(self.metrics),
                    is_the_final_export=is_final,
                )

    def _new_timer(self) -> Timer:
        if self._spec.eval_every_steps is not None:
            return Timer(every_steps=self._spec.eval_every_steps)
        if self._spec.throttle_secs > 0:
            return Timer(every_secs=self._spec.throttle_secs)
        return Timer(every_steps=1)

    def _mark(self, step: int) -> None:
        """Note an evaluation; multiples of ``eval_every_steps`` count from zero."""
        self._timer.mark(step - step % (self._spec.eval_every_steps or 1))


def went_through_input(estimator: Estimator, max_steps: int | None) -> bool:
    """Tell whether an earlier call ended with its input, and was asked for the same."""
    if estimator.model_dir is None or estimator.stop_reason != INPUT_ENDED:
        return False
    step = _last_step(estimator)
    is_done = Record(estimator.model_dir, step).is_of(max_steps)
    if is_done:
        _logger.info("Training skipped: it went through its input by step %d.", step)
    return is_done


def _last_step(estimator: Estimator) -> int:
    checkpoint = estimator.checkpoint
    if checkpoint is None:
        raise ValueError(
            "Training made no step: the input of 'train_spec' has no batch. It needs at "
            "least one."
        )
    return checkpoint.global_step


def finish_evaluations(
    estimator: Estimator,
    evaluations: list[Evaluation],
    max_steps: int | None,
    made_steps: bool,
) -> None:
    """Evaluate and export the last checkpoint, unless an earlier call has done that."""
    step = _last_step(estimator)
    record = Record(estimator.model_dir, step)
    done = [e for e in evaluations if not made_steps and e.restore(record, step)]
    for evaluation in [e for e in evaluations if e not in done]:
        _write(record, max_steps, done)  # what is left is up to a repeated call
        if evaluation.step == step:
            # Where training ended it may have been saved again, under another name.
            evaluation.export(estimator.latest_checkpoint(), is_final=True)
        else:
            evaluation.run(step, is_final=True)
        done.append(evaluation)
        _write(record, max_steps, done)


def _write(record: Record, max_steps: int | None, done: list[Evaluation]) -> None:
    record.write(
        max_steps, {e.key: (e.settings, Result(e.metrics, e.exports)) for e in done}
    )
