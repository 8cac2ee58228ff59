# SPDX-License-Identifier: Apache-2.0
"""`EmbeddingDisplay`: a map of the levels of an embedding."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skest.displays.base import Display, check_one_of, skest_estimator
from skest.feature_columns.dense import EmbeddingColumn


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

    def __init__(
        self,
        column: str,
        levels: Sequence[str],
        points: NDArray[Any],
        explained: NDArray[Any],
        n_labels: int = 30,
    ) -> None:
        self.column = column
        self.levels = levels
        self.points = points
        self.explained = explained
        self.n_labels = n_labels

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
        vectors = np.asarray(embedding.weights_, dtype=np.float64)
        if len(vectors) < 2:
            raise ValueError(f"The embedding of {column!r} has no two levels.")
        centred = vectors - vectors.mean(axis=0)
        left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
        points = np.zeros((len(vectors), 2))
        n_axes = min(2, len(sizes))
        points[:, :n_axes] = (left * sizes)[:, :n_axes]
        explained = np.zeros(2)
        explained[:n_axes] = (sizes**2 / max((sizes**2).sum(), 1e-30))[:n_axes]
        inner = embedding.categorical
        names = inner.get_feature_names_out()
        levels = [str(name).removeprefix(f"{inner.name}_") for name in names]
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
