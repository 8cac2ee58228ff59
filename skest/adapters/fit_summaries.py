# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard shows of a ``fit``: its epochs and what it ends with."""

from skest.adapters.epochs import EpochHook
from skest.estimator import Estimator
from skest.hooks.base import Hook, Run
from skest.hooks.epochwise import EpochwiseHook

__all__ = ["fit_summaries"]


def fit_summaries(epochs: EpochHook, core: Estimator) -> list[Hook]:
    """Return the hook that writes what came of the epochs, if summaries are written.

    Parameters
    ----------
    epochs : EpochHook
        Knows losses and scores; it runs before the hook that is returned.
    core : Estimator
        Trains; its configuration decides.
    """
    if core.model_dir is None or not core.config.save_summary_steps:
        return []
    return [_FitSummaryHook(epochs)]


class _FitSummaryHook(EpochwiseHook):
    """Writes the progress of the epochs."""

    def __init__(self, epochs: EpochHook) -> None:
        self._epochs = epochs

    def end_epoch(self, run: Run) -> None:
        """Write the loss and the score of an epoch."""
        run.summary.scalar("epoch/loss", self._epochs.loss_curve[-1])
        if self._epochs.scores:
            run.summary.scalar("epoch/validation_score", self._epochs.scores[-1])

    def end(self, run: Run) -> None:
        """Write the metrics of the model that is kept."""
        super().end(run)
        if self._epochs.loss_curve:
            run.summary.scalar("final/loss", self._epochs.loss_curve[-1])
        if self._epochs.scores:
            run.summary.scalar("final/validation_score", self._epochs.best_score)
