# SPDX-License-Identifier: Apache-2.0
"""`CallbackHook`: the callbacks of scikit-learn (``sklearn.callback``) in training."""

from collections.abc import Callable
from typing import Any

from skest.hooks.base import EpochwiseHook, Run


class CallbackHook(EpochwiseHook):
    """Tells the callbacks of an estimator about a fit and its epochs.

    The fit is one task, and every epoch a task below it; contexts stay until the fit has
    ended, so there is none for a step.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        The estimator in training, as its callbacks shall see it. Its callbacks are set up
        here; ``sklearn.callback.with_callbacks`` around the training tears them down.
    X, y, sample_weight : as in ``fit``
        What the caller gave to ``fit``.
    fitted_at : callable
        ``fitted_at(run) -> dict``: the attributes that make the estimator one which is
        fitted as far as the run has come. Called if a callback asks for it.
    n_epochs : int
        Most epochs that there will be.

    Notes
    -----
    A callback sees all rows given to ``fit``, those held out for early stopping and those
    of weight zero as well.
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        fitted_at: Callable[[Run], dict[str, Any]],
        n_epochs: int,
    ) -> None:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._told = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
        self._fitted_at = fitted_at
        self._fit_task = estimator._init_callback_context(max_subtasks=n_epochs)
        self._fit_task.call_on_fit_task_begin(**self._told)
        self._epoch_task: Any = None

    def begin_epoch(self, run: Run) -> None:
        """Begin the task of an epoch."""
        self._epoch_task = self._fit_task.subcontext(task_name="epoch")
        self._epoch_task.call_on_fit_task_begin(
            **self._told, reconstruction_attributes=lambda: self._fitted_at(run)
        )

    def end_epoch(self, run: Run) -> None:
        """End it, and training if a callback says so."""
        stop = self._epoch_task.call_on_fit_task_end(
            **self._told, reconstruction_attributes=lambda: self._fitted_at(run)
        )
        if stop:
            run.request_stop("a callback of scikit-learn asked to stop")

    def finish(self) -> None:
        """End the task of the fit; the estimator is fitted."""
        self._fit_task.call_on_fit_task_end(**self._told, reconstruction_attributes={})
