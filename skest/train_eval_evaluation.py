# SPDX-License-Identifier: Apache-2.0
"""The evaluations of `train_and_evaluate`: when they are due, and what came of them."""

import logging
from pathlib import Path

from skest._arguments import as_tuple
from skest.estimator import Estimator
from skest.hooks.timer import Timer
from skest.train_eval_record import Record, Result
from skest.train_eval_specs import EvalSpec
from skest.training import INPUT_ENDED

__all__ = ["Evaluation", "finish_evaluations", "went_through_input"]

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
