# SPDX-License-Identifier: Apache-2.0
"""`EpochwiseHook`: code that runs around the epochs of a training."""

from typing import Any

from skest.hooks.base import Hook, Run

__all__ = ["EpochwiseHook"]


class EpochwiseHook(Hook):
    """Code that runs around every epoch of a training; override what is needed.

    An epoch is one pass over the table of the run. A stream counts as one epoch. The last
    epoch may be cut short, and ends like the others.

    Examples
    --------
    >>> from skest.hooks import EpochwiseHook
    >>> class PrintEpoch(EpochwiseHook):
    ...     def end_epoch(self, run):
    ...         print(f"an epoch ends at step {run.global_step}")
    """

    _n_steps = 0  # of the present epoch

    def begin_epoch(self, run: Run) -> None:
        """Run before the first step of every epoch."""

    def end_epoch(self, run: Run) -> None:
        """Run after the last step of every epoch."""

    def begin(self, run: Run) -> None:
        """Start to count."""
        self._n_steps = 0

    def before_step(self, run: Run) -> None:
        """Look whether an epoch begins."""
        if self._n_steps == 0:
            self.begin_epoch(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Look whether the epoch is complete."""
        self._n_steps += 1
        if self._n_steps == run.steps_per_epoch:
            self._n_steps = 0
            self.end_epoch(run)

    def end(self, run: Run) -> None:
        """Close an epoch that was cut short."""
        if self._n_steps:
            self._n_steps = 0
            self.end_epoch(run)
