# SPDX-License-Identifier: Apache-2.0
"""`train_and_evaluate`: training, with evaluations and exports along the way."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skest._interrupts import INTERRUPTED, broken_off_by_interrupt
from skest.estimator import Estimator
from skest.hooks.base import Run
from skest.hooks.checkpoint import CheckpointListener
from skest.hooks.timer import Timer
from skest.train_eval_record import Record, Result
from skest.train_eval_specs import EvalSpec, TrainSpec, as_tuple
from skest.training import INPUT_ENDED

__all__ = ["train_and_evaluate"]

_logger = logging.getLogger("skest")

_EXPORT = "export"


def train_and_evaluate(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec],
) -> tuple[Any, Any]:
    """Train a model, and evaluate and export it along the way and at the end.

    There is one call of ``estimator.train``. Checkpoints are evaluated when they have
    been saved, as often as `eval_spec` and the `skest.RunConfig` say, and once more after
    the last step; the exporters follow every evaluation.

    A training that was stopped in any way goes on when the call is repeated, with the
    evaluation and the exports that are missing. If nothing is left to do, it returns
    what it returned before, and logs that at INFO. After Ctrl-C there is a checkpoint,
    and the call returns with the last results that there are; an evaluation or an export
    that it falls into is broken off.

    Results are returned again for an evaluation of the same `name` and `steps`, with
    exporters of the same names whose exports are still there; other data in an `input_fn`
    are not noticed, so give such an evaluation another name. A training that went through
    its whole input is finished for a repeated call with the same `max_steps`, if there is
    a ``model_dir``; ``estimator.train`` goes through the input once more.

    Parameters
    ----------
    estimator : Estimator
        With a ``model_dir``, if there are exporters.
    train_spec : TrainSpec
        The training.
    eval_spec : EvalSpec or sequence of EvalSpec
        The evaluations: one, or several on different data, each with its own `name`.

    Returns
    -------
    metrics : dict of str to float
        The last result of ``estimator.evaluate``; None after Ctrl-C, if there was none.
    exports : list of (Path or None)
        What the exporters returned after it. For a sequence of specifications, both are
        lists, with an entry for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If specifications or exporters have the same name, if there are exporters and no
        ``model_dir``, or if the input of training has no batch.

    Notes
    -----
    As ``tf.estimator.train_and_evaluate`` on one machine. The final export takes place
    whenever training ends, not only at ``max_steps``; a repeated call returns results,
    where TensorFlow returns None.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, torch
    >>> import skest
    >>> from skest.export import FinalExporter
    >>> from skest.heads import RegressionHead
    >>> def model_fn(features, labels, mode):
    ...     network = torch.nn.Linear(1, 1)
    ...     return RegressionHead().create_estimator_spec(
    ...         features, mode, network, labels, torch.optim.SGD(network.parameters(), 0.1)
    ...     )
    >>> X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(-1, 1)
    >>> def input_fn(num_epochs=1):
    ...     return skest.inputs.ArrayDataset(X, X[:, 0], num_epochs=num_epochs)
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     metrics, exports = skest.train_and_evaluate(
    ...         skest.Estimator(model_fn, model_dir),
    ...         skest.TrainSpec(lambda: input_fn(num_epochs=None), max_steps=100),
    ...         skest.EvalSpec(input_fn, exporters=FinalExporter("final")),
    ...     )
    >>> metrics["global_step"], len(exports)
    (100, 1)
    """
    specs = [eval_spec] if isinstance(eval_spec, EvalSpec) else eval_spec
    _check_arguments(estimator, train_spec, specs)
    evaluations = [_Evaluation(estimator, spec) for spec in specs]
    listener = _Listener(evaluations)
    if not _went_through_input(estimator, train_spec.max_steps):
        estimator.train(
            train_spec.input_fn,
            hooks=as_tuple(train_spec.hooks),
            max_steps=train_spec.max_steps,
            saving_listeners=[*as_tuple(train_spec.saving_listeners), listener],
        )
    if not listener.interrupted:
        with broken_off_by_interrupt(_log_what_is_left):
            _finish(estimator, evaluations, train_spec.max_steps, listener.made_steps)
    metrics = [evaluation.metrics for evaluation in evaluations]
    exports = [list(evaluation.exports.values()) for evaluation in evaluations]
    if isinstance(eval_spec, EvalSpec):
        return metrics[0], exports[0]
    return metrics, exports


class _Evaluation:
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

    def run(self, step: int, *, is_final: bool) -> None:
        """Evaluate the latest checkpoint, which is that of `step`, and export it."""
        self._mark(step)
        spec, path = self._spec, self._estimator.latest_checkpoint()
        self.metrics = self._estimator.evaluate(
            spec.input_fn, spec.steps, as_tuple(spec.hooks), path, spec.name
        )
        self.step, self.exports = step, dict.fromkeys(self.exports)
        self.export(is_final=is_final)

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

    def export(self, *, is_final: bool) -> None:
        """Call the exporters that have not yet exported this checkpoint."""
        model_dir, path = self._estimator.model_dir, self._estimator.latest_checkpoint()
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


class _Listener(CheckpointListener):
    """Evaluates checkpoints in training, but the first one and the last one."""

    def __init__(self, evaluations: list[_Evaluation]) -> None:
        self._evaluations = evaluations
        self.interrupted = False
        self.made_steps = False

    def begin(self, run: Run) -> None:
        """Start the clocks."""
        for evaluation in self._evaluations:
            evaluation.begin(run.global_step)

    def wants_checkpoint(self, run: Run) -> bool:
        """Ask for the checkpoints of ``eval_every_steps``."""
        return any(
            evaluation.asks_for_checkpoints and evaluation.is_due(run.global_step)
            for evaluation in self._evaluations
        )

    def after_save(self, run: Run) -> None:
        """Evaluate what is due."""
        # What training starts from was evaluated before, or is nothing yet; what it ends
        # with is evaluated when the memory that it took is free again.
        if run.global_step == run.start_step or run.should_stop:
            return
        with broken_off_by_interrupt(run.request_stop):
            for evaluation in self._evaluations:
                if evaluation.is_due(run.global_step):
                    evaluation.run(run.global_step, is_final=False)

    def end(self, run: Run) -> None:
        """Note what became of the training; the run itself is let go of."""
        self.interrupted = run.stop_reason == INTERRUPTED
        self.made_steps = run.global_step > run.start_step


def _went_through_input(estimator: Estimator, max_steps: int | None) -> bool:
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


def _finish(
    estimator: Estimator,
    evaluations: list[_Evaluation],
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
            evaluation.export(is_final=True)
        else:
            evaluation.run(step, is_final=True)
        done.append(evaluation)
        _write(record, max_steps, done)


def _write(record: Record, max_steps: int | None, done: list[_Evaluation]) -> None:
    record.write(
        max_steps, {e.key: (e.settings, Result(e.metrics, e.exports)) for e in done}
    )


def _log_what_is_left(reason: str) -> None:
    _logger.warning(
        "The last evaluation and its exports are %s; call train_and_evaluate again to "
        "make up for what is missing.",
        reason,
    )


def _check_arguments(
    estimator: Estimator, train_spec: TrainSpec, specs: Sequence[EvalSpec]
) -> None:
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"'estimator' must be a skest.Estimator; got {type(estimator).__name__}."
        )
    if not isinstance(train_spec, TrainSpec):
        raise TypeError(
            f"'train_spec' must be a skest.TrainSpec; got {type(train_spec).__name__}."
        )
    if not isinstance(specs, Sequence) or not all(
        isinstance(spec, EvalSpec) for spec in specs
    ):
        raise TypeError(
            f"'eval_spec' must be a skest.EvalSpec or a sequence of them; got {specs!r}."
        )
    if not specs:
        raise ValueError("'eval_spec' must hold at least one EvalSpec; got none.")
    exporters = [e.name for spec in specs for e in as_tuple(spec.exporters)]
    _check_distinct("EvalSpec", [spec.name for spec in specs])
    _check_distinct("exporter", exporters)
    if exporters and estimator.model_dir is None:
        raise ValueError(
            "Exporters write to 'model_dir', and 'estimator' has none. Give it a "
            "model_dir, or leave out the exporters."
        )


def _check_distinct(what: str, names: Sequence[str | None]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"There is more than one {what} with the name {name!r}; their results "
                "would go to the same directory. Give each a name of its own."
            )
