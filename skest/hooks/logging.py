# SPDX-License-Identifier: Apache-2.0
"""Hooks that tell of a run: loss, speed, a bar of progress, and where time goes."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile

from skest.core.checks import FormerArguments, needing
from skest.hooks.base import Hook, Run, Timer, output_directory

_logger = logging.getLogger("skest")
_SECONDS_A_LOSS = 0.5


class LoggingHook(FormerArguments, Hook):
    """Logs the loss and the speed of training (logger "skest", level INFO).

    Parameters
    ----------
    every_steps : int, default=None
        Steps between two lines.
    every_secs : float, seconds, default=None
        Time between two lines. Exactly one of both must be given.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Examples
    --------
    >>> from skest.hooks import LoggingHook
    >>> hook = LoggingHook(every_steps=100)
    """

    _former_arguments: ClassVar[Mapping[str, str]] = {
        "every_n_iter": "use 'every_steps'"
    }

    def __init__(
        self, every_steps: int | None = None, every_secs: float | None = None
    ) -> None:
        self._timer = Timer(every_steps, every_secs)

    def begin(self, run: Run) -> None:
        """Start the clock."""
        self._timer = self._timer._restarted()

    def after_step(self, run: Run, loss: Any) -> None:
        """Log a line if it is due."""
        if not self._timer.is_due(run.global_step):
            return
        self._timer.mark(run.global_step)
        # Reading the loss waits for the device, so it is read only for a line.
        if _logger.isEnabledFor(logging.INFO):
            rate = self._timer.steps_per_sec
            speed = "" if rate is None else f" ({rate:.1f} steps/s)"
            _logger.info("step %d: loss = %.6g%s", run.global_step, loss.item(), speed)

    def end(self, run: Run) -> None:
        """Log the loss of the last step."""
        # A call that took no steps has no loss.
        if run.loss is not None and _logger.isEnabledFor(logging.INFO):
            _logger.info("step %d: final loss = %.6g", run.global_step, run.loss.item())


class StepCounterHook(FormerArguments, Hook):
    """Measures steps per second and logs them (logger "skest", level INFO).

    `LoggingHook`, which every training has by default, logs the speed beside the loss;
    this hook is for code that wants to have the number, and never waits for the device.

    Parameters
    ----------
    every_steps : int, default=100
        Steps between two measurements.
    every_secs : float, seconds, default=None
        Time between two measurements. Exactly one of both must be given, so set
        `every_steps` to None to use it.

    Attributes
    ----------
    steps_per_sec : float or None
        The last measurement.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Notes
    -----
    As ``tf.estimator.StepCounterHook``.

    Examples
    --------
    >>> from skest.hooks import StepCounterHook
    >>> hook = StepCounterHook(every_steps=10)
    """

    _former_arguments: ClassVar[Mapping[str, str]] = {
        "every_n_steps": "use 'every_steps'"
    }

    def __init__(
        self, every_steps: int | None = 100, every_secs: float | None = None
    ) -> None:
        self._timer = Timer(every_steps, every_secs)
        self.steps_per_sec: float | None = None

    def begin(self, run: Run) -> None:
        """Start the clock."""
        self._timer, self.steps_per_sec = self._timer._restarted(), None
        # So that the first measurement is of whole intervals.
        self._timer.mark(run.global_step)

    def after_step(self, run: Run, loss: Any) -> None:
        """Measure if it is due."""
        if not self._timer.is_due(run.global_step):
            return
        self._timer.mark(run.global_step)
        if self._timer.steps_per_sec is not None:
            self.steps_per_sec = self._timer.steps_per_sec
            _logger.info(
                "step %d: %.1f global_step/sec", run.global_step, self.steps_per_sec
            )


class ProgressBarHook(Hook):
    """Shows how far a run is, as a bar of ``tqdm`` in a terminal or notebook.

    An estimator that is fitted by several trainings shows one for each.

    Parameters
    ----------
    n_steps : int, default=None
        Steps of the run; None means those of its table, and for a stream there is no end
        to draw.

    Raises
    ------
    ImportError
        If tqdm is not installed.

    Examples
    --------
    >>> from skest import DNNClassifier
    >>> from skest.hooks import ProgressBarHook
    >>> model = DNNClassifier(hooks=[ProgressBarHook()])
    """

    def __init__(self, n_steps: int | None = None) -> None:
        self._n_steps = n_steps
        self._bar: Any = None
        self._timer = Timer(every_secs=_SECONDS_A_LOSS)

    def begin(self, run: Run) -> None:
        """Draw an empty bar."""
        with needing("tqdm", "ProgressBarHook"):
            # Here, since it is an extra; `auto` draws widgets in notebooks.
            from tqdm.auto import tqdm
        table, n_steps = run.table, self._n_steps
        if n_steps is None and table is not None and table.num_epochs is not None:
            n_steps = table.num_epochs * table.steps_per_epoch - table.n_skipped
        if self._bar is not None:  # of a run that has failed
            self._bar.close()
        self._bar = tqdm(total=n_steps, desc=run.mode, unit=" steps")
        self._timer = self._timer._restarted()

    def after_step(self, run: Run, loss: Any) -> None:
        """Let the bar grow, and now and then show the loss."""
        # Twice a second: reading the loss waits for the device.
        # Not by the global step, which may go back or leap beside other workers.
        if loss is not None and self._timer.is_due(run.n_taken):
            self._timer.mark(run.n_taken)
            self._show_loss(loss)
        self._bar.update()

    def end(self, run: Run) -> None:
        """Leave the bar, with the last loss; full, unless it was told of more steps."""
        if run.loss is not None:
            self._show_loss(run.loss)
        # In notebooks, a bar that is not full is red; to stop early is no failure.
        if self._n_steps is None:
            self._bar.total = self._bar.n
        self._bar.close()
        self._bar = None

    def _show_loss(self, loss: Any) -> None:  # which waits for the device
        self._bar.set_postfix(loss=f"{loss.item():.4g}", refresh=False)


class ProfilerHook(Hook):
    """Traces single steps with ``torch.profiler``.

    A trace is a file ``trace-<step>.json``, for https://ui.perfetto.dev or
    chrome://tracing. The first one is of the step after the first interval, when caches
    are warm. Put the hook last in the list, to trace the step and not the other hooks.

    Parameters
    ----------
    save_steps : int, default=None
        Steps between two traces.
    save_secs : float, seconds, default=None
        Time between two traces. Exactly one of both must be given.
    output_dir : str or path, default=None
        Directory of the files; None is ``model_dir``.
    show_memory : bool, default=False
        Record what is allocated and released.

    Raises
    ------
    ValueError
        If none or both intervals are given, or the one given is not positive; in
        training, if there is no directory to write to.

    Notes
    -----
    As ``tf.estimator.ProfilerHook``.

    Examples
    --------
    >>> from skest.hooks import ProfilerHook
    >>> hook = ProfilerHook(save_steps=1000)
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        show_memory: bool = False,
    ) -> None:
        self._timer = Timer(save_steps, save_secs)
        self._output_dir = output_dir
        self._directory = Path()  # that of the run
        self._show_memory = show_memory
        self._profile: profile | None = None

    def begin(self, run: Run) -> None:
        """Find the directory, and start the clock."""
        self._directory = output_directory(self._output_dir, run, "ProfilerHook")
        if self._profile is not None:  # the step that it traced has failed
            self._profile.stop()
        self._profile, self._timer = None, self._timer._restarted()
        self._timer.mark(run.global_step)

    def before_step(self, run: Run) -> None:
        """Begin a trace if it is due."""
        if self._timer.is_due(run.global_step):
            # One step by itself, since torch keeps all of a trace in memory.
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(
                activities=activities, profile_memory=self._show_memory
            )
            self._profile.start()

    def after_step(self, run: Run, loss: Any) -> None:
        """Write the trace of this step."""
        if self._profile is None:
            return
        self._profile.stop()
        # The number that `before_step` goes by.
        self._timer.mark(run.global_step - 1)
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"trace-{run.global_step}.json"
        self._profile.export_chrome_trace(os.fspath(path))
        self._profile = None
        _logger.info("step %d: trace written to %s", run.global_step, path)
