# SPDX-License-Identifier: Apache-2.0
"""`TrainingCurveDisplay`: the losses of the epochs."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from skest.displays.base import Display, skest_estimator


class TrainingCurveDisplay(Display):
    """Training and validation loss after each epoch, and the epoch that was kept.

    It is best made by `from_estimator`.

    Parameters
    ----------
    loss_curve : sequence of float
        Training losses.
    validation_losses : sequence of float or None
        Losses of the held-out rows, in the same unit: of the squared error, that is the
        variance of the labels.
    kept_epoch : int or None
        Which epoch the fitted estimator is of.
    is_refit : bool, default=False
        Whether the training losses are those of a second training, on all rows.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn into.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import DNNClassifier
    >>> from skest.displays import TrainingCurveDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> model = DNNClassifier(
    ...     8, max_iter=5, early_stopping=True, random_state=0
    ... ).fit(X, X[:, 0] > 0)
    >>> display = TrainingCurveDisplay.from_estimator(model)
    >>> display.kept_epoch
    5
    """

    def __init__(
        self,
        loss_curve: Sequence[float],
        validation_losses: Sequence[float] | None = None,
        kept_epoch: int | None = None,
        *,
        is_refit: bool = False,
    ) -> None:
        self.loss_curve = loss_curve
        self.validation_losses = validation_losses
        self.kept_epoch = kept_epoch
        self.is_refit = is_refit

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Self:
        """Draw the training of a fitted estimator.

        Parameters
        ----------
        estimator : estimator of skest, or a Pipeline or search that ends with one
            Fitted.
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        TrainingCurveDisplay

        Raises
        ------
        TypeError
            If it is no estimator of skest.
        ImportError
            If matplotlib is not installed.
        """
        model = skest_estimator(estimator, cls.__name__)
        scores = model.validation_scores_
        if not scores:
            return cls(model.loss_curve_).plot(ax=ax)
        losses = [model._target.validation_loss(score) for score in scores]
        # Trained again on all rows, it went as far as the epoch that was chosen.
        is_refit = model._is_refit
        kept = model.n_iter_ if is_refit else 1 + int(np.argmax(scores))
        return cls(model.loss_curve_, losses, kept, is_refit=is_refit).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        TrainingCurveDisplay
        """
        ax = self._set_axes(ax)
        epochs = np.arange(1, 1 + len(self.loss_curve))
        label = "training on all rows" if self.is_refit else "training"
        marker = "." if len(epochs) < 3 else None
        ax.plot(epochs, self.loss_curve, marker=marker, label=label)
        if self.validation_losses is not None:
            epochs = np.arange(1, 1 + len(self.validation_losses))
            ax.plot(
                epochs, self.validation_losses, marker=marker, label="held-out rows"
            )
        if self.kept_epoch is not None:
            ax.axvline(
                self.kept_epoch,
                color="0.4",
                linestyle=":",
                label=f"kept: epoch {self.kept_epoch}",
            )
        ax.set(xlabel="epoch", ylabel="loss")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        return self
