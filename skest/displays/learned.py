# SPDX-License-Identifier: Apache-2.0
"""Pictures of what training has left: its losses, the weights, the vectors of levels."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skest.adapters.linear import linear_weights
from skest.displays.base import (
    Display,
    check_one_of,
    chosen_class,
    head_names,
    position_of,
    shortened,
    skest_estimator,
)
from skest.feature_columns.dense import EmbeddingColumn


@dataclass(eq=False, repr=False)
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

    loss_curve: Sequence[float]
    validation_losses: Sequence[float] | None = None
    kept_epoch: int | None = None
    is_refit: bool = field(default=False, kw_only=True)

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
        # Scores, such as R², in the unit of the training losses.
        losses = [model._target.validation_loss(score) for score in scores]
        # Trained on all rows in the end, anew or further, it is of the last epoch.
        is_refit = model._is_refit
        is_last = is_refit or model._went_on
        kept = model.n_iter_ if is_last else 1 + int(np.argmax(scores))
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
        losses = self.validation_losses
        if losses is not None:
            epochs = np.arange(1, 1 + len(losses))
            ax.plot(epochs, losses, marker=marker, label="held-out rows")
        if self.kept_epoch is not None:
            label = f"kept: epoch {self.kept_epoch}"
            # Else a reader wonders why the line is not at the lowest point.
            if losses is not None:
                if self.kept_epoch > len(losses):
                    label += ", the last on all rows"
                elif self.is_refit and 1 + np.argmin(losses) != self.kept_epoch:
                    label += ", the end of a cycle"
            ax.axvline(self.kept_epoch, color="0.4", linestyle=":", label=label)
        ax.set(xlabel="epoch", ylabel="loss")
        # There is no epoch 2.5.
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        return self


_MOST_LETTERS = 40


@dataclass(eq=False, repr=False)
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

    names: Sequence[str]
    weights: NDArray[Any]
    what: str = "weight"
    title: str = ""

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
        # (n_outputs, n_features)
        weights, _ = linear_weights(model, columns, prefix)
        classes = getattr(model, "classes_", ())
        row, what, titles = 0, "weight", []
        if names := head_names(model):
            name, target = target if isinstance(target, tuple) else (target, None)
            head = position_of(name, names)
            # The weights of all heads lie in one matrix, in the order of the heads.
            sizes = [
                part.head(None, of).logits_dimension
                for of, part in model._target.targets.items()
            ]
            weights = np.split(weights, np.cumsum(sizes[:-1]))[head]
            classes, titles = classes[head], [f"target {names[head]}"]
        classes = [] if classes is None else list(classes)
        if classes:
            row, label, title = chosen_class(target, classes)
            what = f"weight for {label}"
            titles.append(title)
        elif len(weights) > 1 or target is not None:
            row = position_of(target, range(len(weights)))
            titles.append(f"number {row}")
        if len(classes) == 2 and len(weights) == 1:  # one logit, that of the second
            weights, row = weights if row else -weights, 0
        chosen = weights[row]
        # Stable, so that equal ones keep the order of the columns.
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
        ax.set_yticks(places, [shortened(name, _MOST_LETTERS) for name in self.names])
        # The largest on top.
        ax.invert_yaxis()
        ax.axvline(0, color="0.4", linewidth=0.8)
        ax.set(xlabel=self.what, title=self.title)
        return self


# What a person calls the vectors of unknown and rare values, and of gaps.
_SHARED = {"oov0": "(other)", "missing": "(missing)"}


@dataclass(eq=False, repr=False)
class EmbeddingDisplay(Display):
    """The levels of an embedding column, near to each other if their vectors are.

    The learned vectors are projected onto their two principal components. It is best
    made by `from_estimator`.

    Parameters
    ----------
    column : str
        The name of the column.
    levels : sequence of str
        What the points are.
    points : ndarray of shape (n_levels, 2)
        Where they are.
    explained : ndarray of shape (2,)
        Which part of the variance of the vectors each axis shows.
    n_labels : int, default=30
        How many points have their names beside them, those farthest from the middle.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        What it was drawn into.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import DNNClassifier
    >>> from skest.displays import EmbeddingDisplay
    >>> from skest.feature_columns import (
    ...     categorical_column_with_vocabulary_list,
    ...     embedding_column,
    ... )
    >>> X = pd.DataFrame({"city": ["Rome", "Oslo", "Nice", "Bern"] * 5})
    >>> city = categorical_column_with_vocabulary_list("city")
    >>> model = DNNClassifier(
    ...     feature_columns=[embedding_column(city, 4)], random_state=0
    ... ).fit(X, ["warm", "cold"] * 10)
    >>> EmbeddingDisplay.from_estimator(model, "city").levels
    ['Bern', 'Nice', 'Oslo', 'Rome']
    """

    column: str
    levels: Sequence[str]
    points: NDArray[Any]
    explained: NDArray[Any]
    n_labels: int = 30

    @classmethod
    def from_estimator(
        cls, estimator: Any, column: str, *, n_labels: int = 30, ax: Any = None
    ) -> Self:
        """Draw an embedding of a fitted estimator.

        Parameters
        ----------
        estimator : estimator of skest, or a Pipeline or search that ends with one
            Fitted.
        column : str
            The name of an embedding column, or of the raw column that it reads.
        n_labels : int, default=30
            How many points have their names beside them.
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        EmbeddingDisplay

        Raises
        ------
        ValueError
            If there is no such embedding, or it has fewer than two levels.
        TypeError
            If it is no estimator of skest.
        ImportError
            If matplotlib is not installed.
        """
        model = skest_estimator(estimator, cls.__name__)
        found = {
            name: part
            for parameter in model._column_parameters
            for part in getattr(getattr(model, f"{parameter}_"), "active", ())
            if isinstance(part, EmbeddingColumn) and hasattr(part, "weights_")
            for name in (*part.feature_keys, part.name)
        }
        check_one_of(column, "embedding of", found)
        embedding = found[column]
        # (n_levels, dimension)
        vectors = np.asarray(embedding.weights_, dtype=np.float64)
        if len(vectors) < 2:
            raise ValueError(f"The embedding of {column!r} has no two levels.")
        centred = vectors - vectors.mean(axis=0)
        # Not scikit-learn's PCA, which wants as many dimensions as components: an embedding
        # may have one.
        left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
        points = np.zeros((len(vectors), 2))
        n_axes = min(2, len(sizes))
        # The projection of each row: left * sizes are the coordinates on the axes.
        points[:, :n_axes] = (left * sizes)[:, :n_axes]
        explained = np.zeros(2)
        # All vectors may be the same, which have no variance to divide by.
        explained[:n_axes] = (sizes**2 / max((sizes**2).sum(), 1e-30))[:n_axes]
        inner = embedding.categorical
        names = inner.get_feature_names_out()
        levels = [str(name).removeprefix(f"{inner.name}_") for name in names]
        # Rows that no value of the vocabulary has to itself come last.
        n_values = len(getattr(inner, "vocabulary", levels))
        levels[n_values:] = [_SHARED.get(level, level) for level in levels[n_values:]]
        return cls(embedding.name, levels, points, explained, n_labels).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw into; None makes a figure.

        Returns
        -------
        EmbeddingDisplay
        """
        ax = self._set_axes(ax, (8.0, 6.0))
        ax.scatter(*self.points.T, s=12)
        # In the middle, names would cover each other.
        far = np.argsort(-np.hypot(*self.points.T), kind="stable")[: self.n_labels]
        for i in far:
            ax.annotate(
                self.levels[i],
                self.points[i],
                xytext=(3, 3),
                textcoords="offset points",
                fontsize="small",
            )
        x, y = (f"component {i + 1} ({e:.0%})" for i, e in enumerate(self.explained))
        ax.set(xlabel=x, ylabel=y, title=self.column)
        ax.margins(0.1)
        return self
