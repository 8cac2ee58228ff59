# SPDX-License-Identifier: Apache-2.0
"""`EpochwiseHook`: code that runs around the epochs of a training."""

from typing import Any

from skest.hooks.base import Hook, Run

__all__ = ["EpochwiseHook"]


class EpochwiseHook(Hook):
    """Code that runs around every epoch of a training; override what is needed.

    An epoch is one pass over the table of the run. A stream counts as one epoch. The last
    epoch may be cut short, and ends like the others; a training that was interrupted goes
    on in the middle of an epoch, which begins anew and ends where it would have ended.

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
            self._n_steps = run.table.n_skipped % run.table.steps_per_epoch

    def before_step(self, run: Run) -> None:
        """Look whether an epoch begins."""
        if not self._has_begun:
            self._has_begun = True
            self.begin_epoch(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Look whether the epoch is complete."""
        self._n_steps += 1
        if self._n_steps == run.steps_per_epoch:
            self._close(run)

    def end(self, run: Run) -> None:
        """Close an epoch that was cut short."""
        if self._has_begun:
            self._close(run)

    def _close(self, run: Run) -> None:
        self._n_steps, self._has_begun = 0, False
        self.end_epoch(run)
