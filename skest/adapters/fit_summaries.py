# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard shows of a ``fit``: parameters and what they have led to."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from sklearn.base import BaseEstimator

from skest.adapters.epochs import EpochHook
from skest.estimator import Estimator
from skest.hooks.base import Hook, Run
from skest.hooks.epochwise import EpochwiseHook

__all__ = ["fit_summaries", "flat_params"]

# What parameters are not: they say how a fit runs, not what it learns.
_NOT_OF_THE_MODEL = ("config", "hooks", "verbose")


def fit_summaries(
    estimator: BaseEstimator, epochs: EpochHook, core: Estimator
) -> list[Hook]:
    """Return the hook that writes the parameters, if summaries are written.

    Parameters
    ----------
    estimator : BaseEstimator
        What is fitted.
    epochs : EpochHook
        Knows losses and scores; it runs before the hook that is returned.
    core : Estimator
        Trains; its configuration decides.
    """
    if core.model_dir is None or not core.config.save_summary_steps:
        return []
    return [_FitSummaryHook(flat_params(estimator), epochs)]


class _FitSummaryHook(EpochwiseHook):
    """Writes the progress of the epochs and a row of TensorBoard's page "HParams"."""

    def __init__(
        self, params: Mapping[str, float | bool | str], epochs: EpochHook
    ) -> None:
        self._params = params
        self._epochs = epochs

    def begin(self, run: Run) -> None:
        """Write the parameters; a fit that fails has them as well."""
        super().begin(run)
        run.summary.hparams(self._params)

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
        run.summary.success()


def flat_params(estimator: BaseEstimator) -> dict[str, float | bool | str]:
    """Return the parameters that are numbers and words, those of parts included.

    Parameters
    ----------
    estimator : BaseEstimator
        Its ``get_params`` names the parameters of parts ``part__parameter``.

    Returns
    -------
    dict of str to float, bool or str
        None and sequences of numbers and words are given as text, functions and types
        by their names. Other objects, and what says only how a fit runs, are left out.

    Examples
    --------
    >>> from skest import LinearClassifier
    >>> from skest.adapters.fit_summaries import flat_params
    >>> params = flat_params(LinearClassifier(l1=0.5, optimizer="ftrl"))
    >>> params["l1"], params["optimizer"], params["max_steps"]
    (0.5, 'ftrl', 'None')
    """
    found = {}
    for name, value in sorted(estimator.get_params(deep=True).items()):
        plain = _plain(value)
        if plain is not None and name not in _NOT_OF_THE_MODEL:
            found[name] = plain
    return found


def _plain(value: Any) -> float | bool | str | None:
    """Return a value as TensorBoard takes it; None if it is more than a value."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return float(value)
    if value is None:
        return "None"
    if isinstance(value, list | tuple):
        parts = [_plain(part) for part in value]
        return str(value) if all(part is not None for part in parts) else None
    return getattr(value, "__qualname__", None)
