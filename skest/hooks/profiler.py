# SPDX-License-Identifier: Apache-2.0
"""`ProfilerHook`."""

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from skest.hooks.base import Hook, Run
from skest.hooks.timer import Timer

__all__ = ["ProfilerHook"]

_logger = logging.getLogger("skest")


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
        self._interval = (save_steps, save_secs)
        self._timer = Timer(*self._interval)
        self._output_dir = output_dir
        self._show_memory = show_memory
        self._profile: profile | None = None

    def begin(self, run: Run) -> None:
        """Find the directory, and start the clock."""
        if self._directory(run) is None:
            raise ValueError(
                "ProfilerHook writes files, but the Estimator has no model_dir. Pass "
                "'output_dir'."
            )
        if self._profile is not None:  # the step that it traced has failed
            self._profile.stop()
        self._profile, self._timer = None, Timer(*self._interval)
        self._timer.mark(run.global_step)

    def before_step(self, run: Run) -> None:
        """Begin a trace if it is due."""
        if self._timer.is_due(run.global_step):
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(
                activities=activities, profile_memory=self._show_memory
            )
            self._profile.start()

    def after_step(self, run: Run, loss: Any) -> None:
        """Write the trace of this step."""
        directory = self._directory(run)
        if self._profile is None or directory is None:
            return
        self._profile.stop()
        self._timer.mark(run.global_step - 1)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"trace-{run.global_step}.json"
        self._profile.export_chrome_trace(os.fspath(path))
        self._profile = None
        _logger.info("step %d: trace written to %s", run.global_step, path)

    def _directory(self, run: Run) -> Path | None:
        if self._output_dir is not None:
            return Path(self._output_dir)
        return run.model_dir
