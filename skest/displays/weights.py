# SPDX-License-Identifier: Apache-2.0
"""`WeightsDisplay`: the largest weights of a linear or wide model."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skest.adapters.linear import linear_weights
from skest.displays.base import (
    Display,
    check_one_of,
    head_names,
    position_of,
    skest_estimator,
    title_of,
)

_MOST_LETTERS = 40


class WeightsDisplay(Display):
    """The largest weights of a linear model, or of the wide part of wide & deep.

    Each weight is what a feature adds to the logit, or the predicted number; of
    numbers that are standardised, one standard deviation. It is best made by
    `from_estimator`.

    Parameters
    ----------
    names : sequence of str
        Of the features, largest first.
    weights : ndarray of shape (n_weights,)
        Their weights.
    what : str
        What they are.
    title : str, default=""
        Of which class, or which of several numbers.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn into.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import LinearClassifier
    >>> from skest.displays import WeightsDisplay
    >>> X = pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Bern"] * 5})
    >>> y = ["warm", "cold", "warm", "cold"] * 5
    >>> model = LinearClassifier(random_state=0).fit(X, y)
    >>> WeightsDisplay.from_estimator(model, n_weights=1).names
    ['city_Rome']
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: NDArray[Any],
        what: str = "weight",
        title: str = "",
    ) -> None:
        self.names = names
        self.weights = weights
        self.what = what
        self.title = title

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        n_weights: int = 20,
        target: Any = None,
        ax: Any = None,
    ) -> Self:
        """Draw the weights of a fitted estimator.

        Parameters
        ----------
        estimator : linear or wide & deep estimator, or a Pipeline or search with one
            Fitted.
        n_weights : int, default=20
            How many, those that are farthest from zero; weights of zero are left out.
        target : object, default=None
            The class whose weights are drawn, as the title says; None is the last in
            ``classes_``, of two the positive one. Of a regressor of several numbers, the
            position of one. Of several heads the name of one, or a pair of it and a
            class or position.
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        WeightsDisplay

        Raises
        ------
        TypeError
            If the estimator has no linear part.
        ValueError
            If there is no such class, or no weight but zeros, or there are several numbers
            and no `target`.
        ImportError
            If matplotlib is not installed.
        """
        model: Any = skest_estimator(estimator, cls.__name__)
        columns = getattr(model, "linear_feature_columns_", None)
        prefix = "linear."
        if columns is None and hasattr(type(model), "coef_"):
            columns, prefix = model.feature_columns_, ""
        if columns is None:
            raise TypeError(
                f"WeightsDisplay draws the weights of a linear model, which this "
                f"{type(model).__name__} does not have. Take LinearClassifier, "
                "LinearRegressor, or wide & deep with linear columns."
            )
        weights, _ = linear_weights(model, columns, prefix)
        classes = getattr(model, "classes_", ())
        row, what, titles = 0, "weight", []
        if names := head_names(model):
            name, target = target if isinstance(target, tuple) else (target, None)
            head = position_of(name, names)
            sizes = [
                part.head(None, of).logits_dimension
                for of, part in model._target.targets.items()
            ]
            weights = np.split(weights, np.cumsum(sizes[:-1]))[head]
            classes, titles = classes[head], [f"target {names[head]}"]
        classes = [] if classes is None else list(classes)
        if classes:
            label = classes[-1] if target is None else target
            check_one_of(label, "class", classes)
            row, what = classes.index(label), f"weight for {label}"
            titles.append(title_of(label, classes))
        elif len(weights) > 1 or target is not None:
            row = position_of(target, range(len(weights)))
            titles.append(f"number {row}")
        if len(classes) == 2 and len(weights) == 1:  # one logit, that of the second
            weights, row = weights if row else -weights, 0
        chosen = weights[row]
        order = np.argsort(-np.abs(chosen), kind="stable")[:n_weights]
        order = order[chosen[order] != 0]
        if not len(order):
            raise ValueError("All weights are zero.")
        names = columns.get_feature_names_out()[order].tolist()
        return cls(names, chosen[order], what, ", ".join(titles)).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        WeightsDisplay
        """
        ax = self._set_axes(ax, (6.4, 1.2 + 0.25 * len(self.names)))
        colors = np.where(self.weights > 0, "C0", "C3")
        places = np.arange(len(self.names))
        ax.barh(places, self.weights, color=colors)
        cut = [
            n if len(n) <= _MOST_LETTERS else f"{n[: _MOST_LETTERS - 1]}…"
            for n in self.names
        ]
        ax.set_yticks(places, cut)
        ax.invert_yaxis()
        ax.axvline(0, color="0.4", linewidth=0.8)
        ax.set(xlabel=self.what, title=self.title)
        return self
