# SPDX-License-Identifier: Apache-2.0
"""`TrainSpec`; `train_and_evaluate`: training, with evaluations and exports on the way."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from skest.checkpoints.store import DirectoryStore
from skest.config.run_config import DataParallel, LocalSGD, RunConfig, strategy_of
from skest.core.checks import Several, as_tuple, check_input_fn, check_integer, warn
from skest.core.console import INTERRUPTED
from skest.engine.loop import EndOfTraining
from skest.estimators.estimator import Estimator
from skest.estimators.evaluations import (
    EvalSpec,
    Evaluation,
    finish_evaluations,
    set_all,
    was_asked_for,
    went_through_input,
)
from skest.exceptions import CorruptCheckpointError
from skest.hooks.base import Hook, Run
from skest.hooks.early_stopping import EarlyStoppingHook
from skest.hooks.steps import CheckpointListener

_logger = logging.getLogger("skest")

# Seconds between two looks at `model_dir`.
_PAUSE = 0.5
# As `_DELAY_SECS_PER_WORKER` of tensorflow_estimator's training.py.
_SECONDS_BETWEEN_STARTS = 5.0
_SECONDS_TO_NOTE_END = 30.0  # the last checkpoint comes first


@dataclass(frozen=True)
class TrainSpec:
    """What `train_and_evaluate` trains with (``tf.estimator.TrainSpec``).

    Parameters
    ----------
    input_fn : callable
        As for ``Estimator.train``.
    max_steps : int, default=None
        Global step to stop at. With None training ends with the input, or by a hook.
    hooks : Hook or iterable of Hook, default=()
        Run around every step.
    saving_listeners : CheckpointListener or iterable of them, default=()
        Called around every checkpoint, before it is evaluated.

    Raises
    ------
    TypeError
        If a field has the wrong type.
    ValueError
        If `max_steps` is not positive.

    Examples
    --------
    >>> import skest
    >>> def input_fn():
    ...     return [([[1.0], [2.0]], [2.0, 4.0])]
    >>> skest.TrainSpec(input_fn, max_steps=1000).max_steps
    1000
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Several[Hook] = ()
    saving_listeners: Several[CheckpointListener] = ()

    def __post_init__(self) -> None:
        check_input_fn(self.input_fn, "TrainSpec")
        if self.max_steps is not None:
            check_integer(self.max_steps, "max_steps", "TrainSpec", 1)
        set_all(self, "hooks", Hook)
        set_all(self, "saving_listeners", CheckpointListener)


class Role(Enum):
    """What a process does."""

    ALONE = "train, evaluate and export"
    TRAIN = "train only"
    EVALUATE = "evaluate and export only"


def role_of(config: RunConfig) -> Role:
    """Return what the process with a configuration does."""
    # As `_TrainingExecutor.run` of tf.estimator, where a "master" evaluates by itself and a
    # "chief" leaves that to the evaluator.
    if config.task_type == "evaluator":
        return Role.EVALUATE
    if not config.cluster_spec or config.task_type == "master":
        return Role.ALONE
    # All wait for the slowest anyway, so that the first may evaluate between two steps.
    in_step = isinstance(strategy_of(config), DataParallel | LocalSGD)
    return Role.ALONE if in_step and config.is_chief else Role.TRAIN


def wait_before_training(config: RunConfig) -> None:
    """Wait as long as ``max_worker_delay_secs`` says, if this is a worker."""
    if config.task_type == "worker" and not config.is_chief:
        # tf.estimator waits up to 60 seconds where nothing is said.
        delay = _SECONDS_BETWEEN_STARTS * (config.task_id + 1)
        # Late workers help an asynchronous training to converge, says tf.estimator.
        time.sleep(min(delay, config.max_worker_delay_secs or 0.0))


def evaluate_along(
    estimator: Estimator,
    evaluations: Sequence[Evaluation],
    max_steps: int | None,
    start_delay_secs: float,
) -> None:
    """Evaluate and export checkpoints of a training until it ends, and the last one.

    Parameters
    ----------
    estimator : Estimator
        Its ``model_dir`` is that of the chief.
    evaluations : sequence of Evaluation
        What to do.
    max_steps : int or None
        Global step at which training ends.
    start_delay_secs : float, seconds
        How long to wait before the first evaluation, unless training ends earlier.

    Raises
    ------
    ValueError
        If there is no ``model_dir``.
    """
    if estimator.model_dir is None:
        raise ValueError(
            "An evaluator reads checkpoints from 'model_dir', and 'estimator' has none. "
            "Give all tasks the same model_dir."
        )
    training = _Training(estimator.model_dir, max_steps, start_delay_secs)
    is_done = went_through_input(estimator, max_steps)
    while not is_done and training.is_early():
        time.sleep(_PAUSE)
    while not is_done:
        is_done = training.has_ended()  # asked first: no checkpoint comes behind it
        if not is_done:
            _evaluate_newest(training, evaluations)
            time.sleep(_PAUSE)
    # An interrupted one may go on: its last checkpoint is not the end.
    if training.end.reason() != INTERRUPTED:
        made_steps = training.end.has_changed
        finish_evaluations(estimator, [*evaluations], max_steps, made_steps)


class _Training:
    """A training that another process leads, as its ``model_dir`` shows it."""

    def __init__(self, model_dir: Path, max_steps: int | None, delay: float) -> None:
        self.store = DirectoryStore(model_dir)
        self._model_dir = model_dir
        self._max_steps = max_steps
        self.end = EndOfTraining(model_dir)
        self._delay = delay
        self._start = time.monotonic()
        self._reached_at: float | None = None

    def is_early(self) -> bool:
        """Tell whether it is too early for an evaluation."""
        return time.monotonic() - self._start < self._delay and not self.has_ended()

    def has_ended(self) -> bool:
        """Tell whether there will be no more checkpoints."""
        if self.end.reason() is not None:
            return True
        step, before = self.store.latest_step(), self.end.old_reason()
        if step is None:
            return False
        if self._max_steps is not None and step >= self._max_steps:
            # Its step says that it is over, but the chief may not have said why yet.
            if self._reached_at is None:
                self._reached_at = time.monotonic()
            is_late = time.monotonic() - self._reached_at > _SECONDS_TO_NOTE_END
            return before is not None or is_late
        # No end was noted, or one that the chief means to go on from.
        if before is None or before == INTERRUPTED:
            return False
        # Is it the end of this training, which was missed, or of the one before? The chief
        # has time to begin, and an end that was evaluated is of the one before.
        is_known = was_asked_for(self._model_dir, step, self._max_steps)
        return time.monotonic() - self._start >= self._delay and not is_known


def _evaluate_newest(training: _Training, evaluations: Sequence[Evaluation]) -> None:
    """Evaluate the newest checkpoint, as far as that is due and was not done."""
    # The chief saves and deletes meanwhile, so the path is asked for once and kept.
    step, path = training.store.latest_step(), training.store.latest_path()
    if step is None or path is None or training.store.latest_step() != step:
        return  # a newer one has just come
    due = [evaluation for evaluation in evaluations if evaluation.is_due(step)]
    try:
        for evaluation in due:
            evaluation.run(step, is_final=False, path=path)
    # Deleted while it was read: whatever then fails is no error of the user's.
    except (OSError, ValueError) as error:
        if path.exists() and not isinstance(error, CorruptCheckpointError):
            raise
        _logger.warning(
            "%s is not evaluated: it is deleted or damaged. %s", path, error
        )


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
    what it returned before, and logs that at INFO. Ctrl-C in training saves a checkpoint,
    and the call returns with the last results that there are. A second one, or one behind
    the last step, raises KeyboardInterrupt at once.

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
        The last result of ``estimator.evaluate``; None after Ctrl-C, if there was none,
        and from tasks of a cluster that do not evaluate, with None for `exports` too.
    exports : list of (Path or None)
        What the exporters returned after it. For a sequence of specifications, both are
        lists, with an entry for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If specifications or exporters have the same name, if there are exporters and no
        ``model_dir``, if this is an evaluator of another index than 0, or if the input of
        training has no batch.

    Notes
    -----
    In a cluster (`skest.RunConfig`), every task calls it, and does what it is for. The
    chief and workers train, and parameter servers serve; they return ``(None, None)``.
    An evaluator, which is outside of the cluster, waits for ``start_delay_secs`` of
    `eval_spec`, evaluates new checkpoints in ``model_dir`` as often as `eval_spec` says,
    and exports them; checkpoints that are damaged, or deleted too soon, are left out.
    Without an evaluator nobody evaluates, but with `DataParallel` and `LocalSGD`, or a
    task called "master", the first process does so as if alone. All tasks end by
    themselves when the training ends, whatever ends it: ``max_steps``, the end of the
    input, a hook of the chief, or Ctrl-C there. An error does not end it, for the chief
    may be started again.

    As ``tf.estimator.train_and_evaluate``, where parameter servers never end, and the
    evaluator does so at ``max_steps`` only. The final export takes place
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
    _warn_of_unwritten(estimator, train_spec, specs)
    evaluations = [Evaluation(estimator, spec) for spec in specs]
    role = role_of(estimator.config)
    if role is Role.EVALUATE:
        # One process for all: the first that may begin decides.
        delay = min(spec.start_delay_secs for spec in specs)
        evaluate_along(estimator, evaluations, train_spec.max_steps, delay)
    else:
        _train(estimator, train_spec, evaluations, role)
    if role is Role.TRAIN:
        return None, None
    metrics = [evaluation.metrics for evaluation in evaluations]
    exports = [list(evaluation.exports.values()) for evaluation in evaluations]
    if isinstance(eval_spec, EvalSpec):
        return metrics[0], exports[0]
    return metrics, exports


def _warn_of_unwritten(
    estimator: Estimator, train_spec: TrainSpec, specs: Sequence[EvalSpec]
) -> None:
    """Tell of early stopping that waits for results that no evaluation writes."""
    found = [estimator.eval_dir(spec.name) for spec in specs]
    written = {str(path.resolve()) for path in found if path is not None}
    for hook in as_tuple(train_spec.hooks):
        read = hook.eval_dir if isinstance(hook, EarlyStoppingHook) else None
        if read is not None and str(read.resolve()) not in written:
            warn(
                f"An early stopping hook reads {str(read)!r}, where no EvalSpec writes, "
                f"but in {', '.join(map(repr, sorted(written)))}. Give the hook "
                "eval_dir=estimator.eval_dir(name), with the name of the EvalSpec."
            )


def _train(
    estimator: Estimator,
    train_spec: TrainSpec,
    evaluations: list[Evaluation],
    role: Role,
) -> None:
    """Train, with evaluations where this process does them."""
    # The `_NewCheckpointListenerForEvaluate` of tf.estimator: one training, and no graph
    # that is built anew between its evaluations.
    listener = _Listener(evaluations, evaluates=role is Role.ALONE)
    if role is Role.TRAIN and estimator.config.is_chief:
        _logger.info(
            "Checkpoints are evaluated and exported by the evaluator of the cluster, if "
            "one is started; this task, its chief, does neither."
        )
    wait_before_training(estimator.config)
    if not went_through_input(estimator, train_spec.max_steps):
        estimator.train(
            train_spec.input_fn,
            hooks=as_tuple(train_spec.hooks),
            max_steps=train_spec.max_steps,
            saving_listeners=[*as_tuple(train_spec.saving_listeners), listener],
        )
    if role is Role.ALONE and not listener.interrupted:
        finish_evaluations(
            estimator, evaluations, train_spec.max_steps, listener.made_steps
        )


class _Listener(CheckpointListener):
    """Evaluates checkpoints in training, but the first one and the last one.

    In a cluster it only asks for the checkpoints that the evaluator is to evaluate.
    """

    def __init__(self, evaluations: list[Evaluation], *, evaluates: bool) -> None:
        self._evaluations = evaluations
        self._evaluates = evaluates
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
        step = run.global_step
        if step == run.start_step or run.should_stop:
            return
        for evaluation in self._evaluations:
            if not evaluation.is_due(step):
                continue
            if self._evaluates:
                evaluation.run(step, is_final=False)
            # The evaluator does it; here its clock goes on.
            elif evaluation.asks_for_checkpoints:
                evaluation.begin(step)

    def end(self, run: Run) -> None:
        """Note what became of the training; the run itself is let go of."""
        self.interrupted = run.stop_reason == INTERRUPTED
        self.made_steps = run.global_step > run.start_step


def _check_arguments(
    estimator: Estimator, train_spec: TrainSpec, specs: Sequence[EvalSpec]
) -> None:
    if not isinstance(estimator, Estimator):
        hint = (
            " Canned models are model functions here, such as "
            "skest.Estimator(partial(skest.canned.dnn_model_fn, head=...))."
            if hasattr(estimator, "fit")
            else ""
        )
        raise TypeError(
            "'estimator' must be a skest.Estimator; got "
            f"{type(estimator).__name__}.{hint}"
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
    task = estimator.config.task
    if task.type == "evaluator" and task.index > 0:
        raise ValueError(
            "train_and_evaluate has one evaluator, that of index 0; this task is evaluator "
            f"{task.index}, and would write the same files. Do not start it; several "
            "evaluations are a list of EvalSpec."
        )
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
