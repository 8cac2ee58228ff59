# SPDX-License-Identifier: Apache-2.0
"""`EvalSpec`, and the evaluations it asks for: when they are due, and what came of them."""

import json
import logging
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skest.core.checks import (
    Several,
    as_tuple,
    check_all,
    check_directory_name,
    check_input_fn,
    check_integer,
    check_not_negative,
)
from skest.core.files import write_file
from skest.engine.loop import INPUT_ENDED
from skest.estimators.estimator import Estimator
from skest.hooks.base import Hook, Timer

if TYPE_CHECKING:
    from skest.export.exporters import Exporter

_FILE = "train_and_evaluate.json"
_EXPORT = "export"
# What a record raises that somebody has edited: it is read as it was written.
_SPOILED = (AttributeError, KeyError, TypeError, ValueError)

_logger = logging.getLogger("skest")


@dataclass(frozen=True)
class EvalSpec:
    """What `train_and_evaluate` evaluates with (``tf.estimator.EvalSpec``).

    Parameters
    ----------
    input_fn : callable
        As for ``Estimator.evaluate``.
    steps : int or None, default=100
        Batches to evaluate; None takes all.
    name : str, default=None
        Names this evaluation where there are several: ``Estimator.eval_dir(name)``.
    hooks : Hook or iterable of Hook, default=()
        Run around every step of an evaluation.
    exporters : Exporter or iterable of Exporter, default=()
        Called after every evaluation.
    start_delay_secs : float, seconds, default=120
        How long an evaluator in a process of its own waits before it begins. Where one
        process trains and evaluates it has no effect, as in TensorFlow.
    throttle_secs : float, seconds, default=600
        Least time from the beginning of one evaluation to that of the next. Of the
        checkpoints that `skest.RunConfig` asks for, those that come earlier are not
        evaluated, but for the last one of training.
    eval_every_steps : int, default=None
        Evaluate whenever that many steps have been taken, at multiples of it, in place
        of `throttle_secs`. A checkpoint is saved for it, in addition to others.

    Raises
    ------
    TypeError
        If a field has the wrong type.
    ValueError
        If a number is out of range, or `name` is not the name of a directory.

    Examples
    --------
    >>> import skest
    >>> def input_fn():
    ...     return [([[1.0], [2.0]], [2.0, 4.0])]
    >>> skest.EvalSpec(input_fn, eval_every_steps=500).steps
    100
    """

    input_fn: Callable[..., Any]
    # Numbers as in tf.estimator.EvalSpec, so that scripts evaluate as often as they
    # did.
    steps: int | None = 100
    name: str | None = None
    hooks: Several[Hook] = ()
    exporters: "Several[Exporter]" = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600
    eval_every_steps: int | None = None

    def __post_init__(self) -> None:
        check_input_fn(self.input_fn, "EvalSpec")
        if self.steps is not None:
            check_integer(self.steps, "steps", "EvalSpec", 1)
        if self.name is not None:
            check_directory_name(self.name, "name", "EvalSpec")
        set_all(self, "hooks", Hook)
        if self.exporters != ():  # most have none, and load nothing of exports
            from skest.export.exporters import Exporter

            set_all(self, "exporters", Exporter)
        check_not_negative(self.start_delay_secs, "start_delay_secs", "EvalSpec")
        check_not_negative(self.throttle_secs, "throttle_secs", "EvalSpec")
        if self.eval_every_steps is not None:
            check_integer(self.eval_every_steps, "eval_every_steps", "EvalSpec", 1)


def set_all(spec: object, name: str, kind: type) -> None:
    """Make a tuple of a field, and check what is in it."""
    values = check_all(getattr(spec, name), kind, name, type(spec).__name__)
    # Frozen, but for this: an iterator could be gone through only once.
    object.__setattr__(spec, name, tuple(values))


class Evaluation:
    """An EvalSpec at work: when it is due, and what came of it last."""

    def __init__(self, estimator: Estimator, spec: EvalSpec) -> None:
        self._estimator = estimator
        self._spec = spec
        self._exporters = as_tuple(spec.exporters)
        self._timer = self._new_timer()
        self.key = spec.name or ""
        # What would make the results of an earlier call those of another evaluation.
        self.settings = {"steps": spec.steps}
        self.step: int | None = None
        self.metrics: dict[str, Any] | None = None
        self.exports: dict[str, Path | None] = {e.name: None for e in self._exporters}

    @property
    def asks_for_checkpoints(self) -> bool:
        """Whether it does not wait for checkpoints that are saved anyway."""
        return self._spec.eval_every_steps is not None

    def begin(self, step: int) -> None:
        """Start the clock."""
        self._timer = self._new_timer()
        # Otherwise the first checkpoint is due: a timer that was never marked says so.
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
        # Before it begins: `throttle_secs` counts from there, as in tf.estimator.
        self._mark(step)
        spec, path = self._spec, path or self._estimator.latest_checkpoint()
        self.metrics = self._estimator.evaluate(
            spec.input_fn, spec.steps, as_tuple(spec.hooks), path, spec.name
        )
        # Exports of an earlier checkpoint count no more.
        self.step, self.exports = step, dict.fromkeys(self.exports)
        self.export(path, is_final=is_final)

    def record(self) -> dict[str, Any]:
        """Return the results for a repeated call; JSON holds it, and arrays as lists."""
        exports = {
            # So that a model_dir that was moved is still finished.
            name: path and os.path.relpath(path, self._estimator.model_dir)
            for name, path in self.exports.items()
        }
        return {"settings": self.settings, "metrics": self.metrics, "exports": exports}

    def restore(self, record: Mapping[str, Any], step: int) -> bool:
        """Take the results that `record` returned at `step`; False if they don't fit.

        An export that is gone must be made again.
        """
        model_dir = self._estimator.model_dir or Path()
        exports = {
            name: None if path is None else model_dir / path
            for name, path in record.get("exports", {}).items()
        }
        is_same = record.get("settings") == self.settings
        is_whole = all(path is None or path.exists() for path in exports.values())
        if not (is_same and is_whole and exports.keys() == self.exports.keys()):
            return False
        metrics = {
            name: np.asarray(value) if isinstance(value, list) else value
            for name, value in record["metrics"].items()
        }
        # Behind all that a spoiled record raises: half of it would pass for done.
        self.step, self.exports, self.metrics = step, exports, metrics
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
            # It may have been interrupted between two exporters.
            if self.exports[exporter.name] is None:
                self.exports[exporter.name] = exporter.export(
                    estimator=self._estimator,
                    export_path=model_dir / _EXPORT / exporter.name,
                    checkpoint_path=path,
                    # A copy: an exporter is the user's.
                    eval_result=dict(self.metrics),
                    is_the_final_export=is_final,
                )

    def _new_timer(self) -> Timer:
        if self._spec.eval_every_steps is not None:
            return Timer(every_steps=self._spec.eval_every_steps)
        if self._spec.throttle_secs > 0:
            return Timer(every_secs=self._spec.throttle_secs)
        # Every checkpoint, but none twice.
        return Timer(every_steps=1)

    def _mark(self, step: int) -> None:
        """Note an evaluation; multiples of ``eval_every_steps`` count from zero."""
        self._timer.mark(step - step % (self._spec.eval_every_steps or 1))


def went_through_input(estimator: Estimator, max_steps: int | None) -> bool:
    """Tell whether an earlier call ended with its input, and was asked for the same."""
    if estimator.model_dir is None or estimator.stop_reason != INPUT_ENDED:
        return False
    step = _last_step(estimator)
    is_done = was_asked_for(estimator.model_dir, step, max_steps)
    if is_done:
        _logger.info("Training skipped: it went through its input by step %d.", step)
    return is_done


def was_asked_for(model_dir: Path, step: int, max_steps: int | None) -> bool:
    """Tell whether evaluations of the last step of a training to `max_steps` are done."""
    recorded = _read_record(model_dir, step)
    # Not by `get`: None is one of its values.
    return "max_steps" in recorded and recorded["max_steps"] == max_steps


def _read_record(model_dir: Path | None, step: int) -> dict[str, Any]:
    """Return what is recorded of the evaluations behind the last step of a training."""
    if model_dir is None:
        return {}
    try:
        # Of another step it is of an earlier training.
        content: dict[str, Any] = json.loads((model_dir / _FILE).read_bytes())
        return content if content.get("global_step") == step else {}
    except FileNotFoundError:
        return {}
    except (OSError, *_SPOILED) as error:
        _warn_of_record(model_dir, error)
        return {}


def _warn_of_record(model_dir: Path | None, error: Exception) -> None:
    path = Path(model_dir or "") / _FILE
    _logger.warning(
        "%s is not used (%s): the last checkpoint is evaluated again.", path, error
    )


def _write_record(
    estimator: Estimator, step: int, max_steps: int | None, done: list[Evaluation]
) -> None:
    """Note what is done; if that fails, a repeated call does more than it need."""
    if estimator.model_dir is None:
        return
    content = {
        "global_step": step,
        "max_steps": max_steps,
        "evaluations": {evaluation.key: evaluation.record() for evaluation in done},
    }
    try:
        plain = operator.methodcaller("tolist")  # what is of NumPy
        text = json.dumps(content, indent=1, default=plain)
        write_file(estimator.model_dir / _FILE, text.encode())
    except (OSError, AttributeError, TypeError, ValueError) as error:
        _logger.warning("The results are not recorded for a repeated call: %s", error)


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
    # A training that took steps has made all earlier results old ones.
    saved = {} if made_steps else _read_record(estimator.model_dir, step)
    results = saved.get("evaluations", {})
    done = []
    try:
        done = [e for e in evaluations if e.restore(results.get(e.key, {}), step)]
    except _SPOILED as error:
        _warn_of_record(estimator.model_dir, error)
    for evaluation in [e for e in evaluations if e not in done]:
        # What is left is up to another call.
        _write_record(estimator, step, max_steps, done)
        if evaluation.step == step:
            # Where training ended it may have been saved again, under another name.
            evaluation.export(estimator.latest_checkpoint(), is_final=True)
        else:
            evaluation.run(step, is_final=True)
        done.append(evaluation)
        _write_record(estimator, step, max_steps, done)
