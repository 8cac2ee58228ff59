# SPDX-License-Identifier: Apache-2.0
"""`Hook`, the `Run` that hooks are called with, hooks of epochs, and the `Timer`."""

import inspect
import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from skest.config.run_config import RunConfig
from skest.core.checks import check_exactly_one, warn
from skest.hooks.summaries import SummaryWriter
from skest.inputs.array_dataset import ArrayDataset
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec

# Of tf.estimator.SessionRunHook, with what takes their place.
_FORMER = {
    "after_create_session": "begin(self, run)",
    "before_run": "before_step(self, run)",
    "after_run": "after_step(self, run, loss)",
}


class Run:
    """One call of ``train``, ``evaluate`` or ``predict``, as hooks see it.

    Attributes
    ----------
    mode : str
        One of `skest.ModeKeys`.
    spec : EstimatorSpec
        The model of this call.
    config : RunConfig
        Settings of the Estimator.
    model_dir : Path or None
        Directory of checkpoints; None if they are in memory.
    start_step, global_step : int
        Training steps taken before this call, and until now; asynchronous workers count
        those of all.
    saved_step : int or None
        Step of the checkpoint that training goes on from.
    n_taken : int
        Training steps that this process has taken in this call, a batch each.
    loss : Tensor or None
        Loss of the last step, on the device; reading its value waits for the device.
    unread_losses : dict of int to (Tensor, batch, int)
        Losses, batches and `n_taken` of steps, by their number, that `NanLossHook` has
        still to look at, or has found to be NaN; to look at each would stop a GPU in every
        step.
    in_step : bool
        Whether a training step has begun and not ended, so that some variables may be
        updated and some not. It stays True behind an error inside a step.
    batch : tuple of (features, labels) or None
        The encoded batch of the present training step.
    table : ArrayDataset or None
        What is trained on, as it is before encoding; None if the input is a stream.
    steps_per_epoch : int or None
        Steps to go through the table once; None if the input is a stream.
    held_out : ArrayDataset or None
        Rows to validate on, in the same form, if somebody held some out.
    stop_reason : str or None
        Why the run was asked to stop.
    save_by : callable or None
        ``save_by(run, save)`` makes what is to be saved and calls ``save`` with it; a
        replica whose variables are elsewhere sets it. None is `capture_checkpoint`.
    summary : SummaryWriter
        Writes numbers for TensorBoard: into ``model_dir`` in training, into ``eval_dir``
        in evaluation. Without a directory or tensorboard it writes nothing.
    """

    def __init__(
        self,
        spec: EstimatorSpec,
        config: RunConfig,
        *,
        global_step: int = 0,
        model_dir: Path | None = None,
        table: ArrayDataset | None = None,
        raw_batch: Callable[[int], tuple[Any, Any] | None] | None = None,
        capture: Callable[["Run"], Any] | None = None,
        save: Callable[[Any], None] | None = None,
        refresh: Callable[["Run"], None] | None = None,
        summary_dir: Path | None = None,
    ) -> None:
        self.mode = spec.mode
        self.spec = spec
        self.config = config
        self.model_dir = model_dir
        self.start_step = global_step
        self.global_step = global_step
        self.saved_step: int | None = None
        self.n_taken = 0
        self.loss: Tensor | None = None
        self.unread_losses: dict[int, tuple[Tensor, Any, int]] = {}
        self.in_step = False
        self.batch: tuple[Any, Any] | None = None
        self.table = table
        self.steps_per_epoch = None if table is None else table.steps_per_epoch
        self.held_out: ArrayDataset | None = None
        self.stop_reason: str | None = None
        self.save_by: Callable[[Run, Callable[[Any], None]], None] | None = None
        self._raw_batch = raw_batch
        self._capture = capture
        self._save = save
        self._refresh = refresh
        self._summary_dir = summary_dir
        # One for each directory: two writers of one would make two files, and
        # TensorBoard reads the newest.
        self._writers: dict[Path | None, SummaryWriter] = {}

    @property
    def network(self) -> nn.Module:
        """The network of this call."""
        return self.spec.network

    @property
    def raw_batch(self) -> tuple[Any, Any] | None:
        """The batch of the last training step before encoding, if it is known.

        To find it among the rows of a table takes time; it is for errors.
        """
        return self.raw_batch_of(self.n_taken)

    def raw_batch_of(self, n_taken: int) -> tuple[Any, Any] | None:
        """Return the batch of the step with this `n_taken`; streams know but the last."""
        if self._raw_batch is None or (self.table is None and n_taken != self.n_taken):
            return None
        return self._raw_batch(n_taken)

    @property
    def should_stop(self) -> bool:
        """Whether a hook asked to stop; the loop looks before every step."""
        return self.stop_reason is not None

    @property
    def loss_is_nan(self) -> bool:
        """Whether the last loss or one before it is NaN; behind it are no variables."""
        # Asked before every save, where to wait for the device costs little.
        if self.unread_losses and nan_steps(self.unread_losses):
            return True
        # Without a `NanLossHook`, nobody notes losses.
        return self.loss is not None and math.isnan(self.loss.item())

    @property
    def summary(self) -> SummaryWriter:
        """Writes numbers for TensorBoard where those of this call belong."""
        return self.summary_writer()

    def summary_writer(
        self, directory: str | os.PathLike[str] | None = None
    ) -> SummaryWriter:
        """Return the writer for a directory; it is closed when the call ends.

        Parameters
        ----------
        directory : str or path, default=None
            Where to write; None is where those of this call belong.
        """
        path = self._summary_dir if directory is None else Path(directory)
        if path not in self._writers:
            # What earlier files have of the steps to come is not what led to this run.
            first = self.start_step + 1 if self.mode == ModeKeys.TRAIN else None
            run = weakref.proxy(self)  # no circle: a run lets go of its network at once
            self._writers[path] = SummaryWriter(path, lambda: run.global_step, first)
        return self._writers[path]

    def close(self) -> None:
        """Close the files of summaries."""
        for writer in self._writers.values():
            writer.close()

    def request_stop(self, reason: str) -> None:
        """Ask the loop to stop before its next step; the first reason is kept."""
        # Of several hooks that ask at one step, the first is told.
        if self.stop_reason is None:
            self.stop_reason = reason

    def refresh(self) -> None:
        """Bring the network up to date, before a hook lets it predict in training.

        Where variables are in parameter servers, the network has those of its last step.
        """
        if self._refresh is not None:
            self._refresh(self)

    def capture_checkpoint(self) -> Any:
        """Return a `Checkpoint` of the present state."""
        if self._capture is None:
            raise RuntimeError(f"A run of mode '{self.mode}' has no state to capture.")
        return self._capture(self)

    def save_checkpoint(self) -> None:
        """Save a checkpoint of the present state."""
        if self._save is None:
            raise RuntimeError(f"A run of mode '{self.mode}' saves no checkpoints.")
        # Set where servers have a part of it, which they write themselves.
        if self.save_by is None:
            self._save(self.capture_checkpoint())
        else:
            self.save_by(self, self._save)


def nan_steps(losses: Mapping[int, tuple[Tensor, Any, int]]) -> list[int]:
    """Return the steps whose losses are NaN, waiting for the device once."""
    # (n_losses,)
    is_nan = torch.stack([loss for loss, *_ in losses.values()]).isnan().tolist()
    return [step for step, found in zip(losses, is_nan, strict=True) if found]


def check_overrides(kind: type, base: type) -> None:
    """Raise TypeError if a method of a subclass can't be called as that of its base.

    A method whose name is nearly one of skest's is warned of.
    """
    ours = [c for c in kind.__mro__[1:] if c.__module__.startswith("skest.")]
    public = {name for c in ours for name in vars(c) if not name.startswith("_")}
    for name, method in vars(kind).items():
        called = vars(base).get(name)
        is_own = name[0] != "_" and name not in public
        # `send` is near `end`, and may be what it says.
        near = is_own and get_close_matches(name, public - {"end"}, 1, 0.85)
        if near and isinstance(method, FunctionType):
            warn(
                f"skest never calls {kind.__name__}.{name}. Did you mean {near[0]!r}? "
                "Begin the names of methods of your own with an underscore."
            )
        if not (isinstance(method, FunctionType) and isinstance(called, FunctionType)):
            continue
        # Here, where a class is defined, and not in the first step of a training.
        arguments = inspect.signature(called).parameters
        signature = inspect.signature(method)
        try:
            # By position, as the loop calls them; names of arguments are free.
            signature.bind(*arguments)
        except TypeError as error:
            raise TypeError(
                f"{kind.__name__}.{name} takes {signature}, but it is called with "
                f"({', '.join(arguments)}). Write it as {name}({', '.join(arguments)})."
            ) from error


class Hook:
    """Code that runs at fixed points of a run; override what is needed.

    `end` is called when the loop has ended by itself or by `Run.request_stop`, and not
    after an exception, as ``SessionRunHook.end`` in TensorFlow.

    Raises
    ------
    TypeError
        Where a subclass is defined, if it has a method of ``SessionRunHook`` that has
        another name here, or one that takes other arguments.

    Examples
    --------
    >>> from skest.hooks import Hook
    >>> class PrintLoss(Hook):
    ...     def after_step(self, run, loss):
    ...         print(f"step {run.global_step}: {loss.item():.3f}")
    """

    #: Whether `end` put variables into the network that training is to be left with, even
    #: where ``fit`` would go back to its own best epoch.
    chose_variables = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse methods that nobody would call, or not with what they take."""
        super().__init_subclass__(**kwargs)
        for former, present in _FORMER.items():
            if hasattr(cls, former):
                raise TypeError(
                    f"{cls.__name__} has the method {former!r} of TensorFlow's "
                    f"SessionRunHook, which is never called here. Write {present}."
                )
        check_overrides(cls, Hook)

    def begin(self, run: Run) -> None:
        """Run once, when the model is built and restored, before the first step."""

    def before_step(self, run: Run) -> None:
        """Run before every step."""

    @property
    def watches_gradients(self) -> bool:
        """Whether the hook overrides `after_backward`."""
        return type(self).after_backward is not Hook.after_backward

    @property
    def watches_all_gradients(self) -> bool:
        """Whether it does so in every step: training is eager then."""
        # Of the class: the property is asked before the first step.
        every_step = type(self).wants_gradients is Hook.wants_gradients
        return self.watches_gradients and every_step

    def wants_gradients(self, run: Run) -> bool:
        """Tell, after `before_step`, whether to call `after_backward` in this step.

        Steps whose gradients nobody wants need not be run eagerly.
        """
        return True

    def after_backward(self, run: Run) -> None:
        """Run in every training step between its gradients and its update.

        A hook that overrides this may read and change ``parameter.grad`` of the network,
        before gradients are clipped. It is not called for other hooks, and needs steps
        that are run eagerly; one that looks at few of them overrides `wants_gradients`.
        """

    def after_step(self, run: Run, loss: Any) -> None:
        """Run after every step.

        Parameters
        ----------
        run : Run
            Its `global_step` counts the step already.
        loss : Tensor of shape () or None
            Detached loss of the step, read before the update; None in prediction.
        """

    def end(self, run: Run) -> None:
        """Run once after the last step."""


class EpochwiseHook(Hook):
    """Code that runs around every epoch of a training; override what is needed.

    An epoch is one pass over the table of the run. A stream counts as one epoch. The last
    epoch may be cut short, and ends like the others; a training that was interrupted goes
    on in the middle of an epoch, which begins anew and ends where it would have ended.
    A subclass with other methods of a hook calls those of this class in them.

    Examples
    --------
    >>> from skest.hooks import EpochwiseHook
    >>> class PrintEpoch(EpochwiseHook):
    ...     def end_epoch(self, run):
    ...         print(f"an epoch ends at step {run.global_step}")
    """

    _n_steps = 0  # of the present epoch
    _has_begun = False

    def begin_epoch(self, run: Run) -> None:
        """Run before the first step of every epoch."""

    def end_epoch(self, run: Run) -> None:
        """Run after the last step of every epoch."""

    def begin(self, run: Run) -> None:
        """Start to count, from where the table goes on."""
        self._has_begun = False
        self._n_steps = 0
        if run.table is not None:
            # A training that was interrupted goes on within an epoch.
            self._n_steps = run.table.n_skipped % run.table.steps_per_epoch

    def before_step(self, run: Run) -> None:
        """Look whether an epoch begins."""
        if not self._has_begun:
            self._has_begun = True
            self.begin_epoch(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Look whether the epoch is complete."""
        self._n_steps += 1
        # Of a stream it is None, which no number of steps equals.
        if self._n_steps == run.steps_per_epoch:
            self._close(run)

    def end(self, run: Run) -> None:
        """Close an epoch that was cut short."""
        if self._has_begun:
            self._close(run)

    def _close(self, run: Run) -> None:
        self._n_steps, self._has_begun = 0, False
        self.end_epoch(run)


def check_estimator(estimator: Any, method: str) -> None:
    """Raise TypeError unless an object has a method of estimators, which import hooks."""
    if not callable(getattr(estimator, method, None)):
        raise TypeError(
            f"'estimator' must be a skest.Estimator; got {type(estimator).__name__}."
        )


def output_directory(
    given: str | os.PathLike[str] | None, run: Run, owner: str
) -> Path:
    """Return where a hook writes files: what it was given, or ``model_dir``."""
    directory = run.model_dir if given is None else Path(given)
    if directory is None:
        raise ValueError(
            f"{owner} writes files, but the Estimator has no model_dir. Pass 'output_dir'."
        )
    return directory


class Timer:
    """Says when something that happens every n steps or seconds is due.

    Parameters
    ----------
    every_steps : int, default=None
        Steps between two events.
    every_secs : float, seconds, default=None
        Time between two events. Exactly one of both must be given.
    clock : callable, default=time.monotonic
        Gives the time in seconds.

    Attributes
    ----------
    steps_per_sec : float or None
        Speed between the last two events; None before the second, and when training
        went back between them.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Notes
    -----
    As ``tf.estimator.SecondOrStepTimer``.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_secs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given = {"every_steps": every_steps, "every_secs": every_secs}
        check_exactly_one(**given)
        for name, interval in given.items():
            if interval is not None and interval <= 0:
                raise ValueError(f"'{name}' must be positive; got {interval}.")
        self._every_steps = every_steps
        self._every_secs = every_secs
        self._clock = clock
        self.steps_per_sec: float | None = None
        self._last_step: int | None = None
        self._last_time = 0.0

    def _restarted(self) -> "Timer":
        """Return a timer that says when the same is due in another run."""
        # A hook may serve several runs, and steps of one say nothing about those of
        # another.
        return Timer(self._every_steps, self._every_secs, self._clock)

    def is_due(self, step: int) -> bool:
        """Tell whether the event is due at `step`.

        It is, the first time asked, and when training went back behind the last event.
        """
        # As SecondOrStepTimer, which triggers at the first step. An evaluator sees steps
        # go back where the chief goes on from an older checkpoint.
        if self._last_step is None or step < self._last_step:
            return True
        if step == self._last_step:
            return False
        # A difference, not a multiple: beside other workers the global step leaps.
        if self._every_steps is not None:
            return step - self._last_step >= self._every_steps
        return self._every_secs is not None and (
            self._clock() - self._last_time >= self._every_secs
        )

    def mark(self, step: int) -> tuple[int, float]:
        """Note that the event happens now.

        Returns
        -------
        steps, seconds : int, float
            Passed since the last event; zeros if there was none.
        """
        now = self._clock()
        steps, seconds = 0, 0.0
        if self._last_step is not None:
            steps, seconds = step - self._last_step, now - self._last_time
        self._last_step, self._last_time = step, now
        # Clocks of some systems give the same time twice.
        is_speed = seconds > 0 and steps >= 0
        self.steps_per_sec = steps / seconds if is_speed else None
        return steps, seconds
