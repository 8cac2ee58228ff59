# SPDX-License-Identifier: Apache-2.0
"""Columns of which a network learns a part."""

from typing import Any

from sklearn.exceptions import NotFittedError

from skest.feature_columns.base import DenseColumn

__all__ = ["TrainedColumn"]


class TrainedColumn(DenseColumn):
    """Dense column whose output needs what a network has learned, ``weights_``."""

    weights_: Any

    def check_refit(self) -> None:
        """Raise ValueError if there are learned vectors."""
        if "weights_" in vars(self):
            raise ValueError(
                f"Column {self.name!r} has vectors that a network has learned; to fit it "
                "again would lose them. Call transform only; in a Pipeline or "
                "ColumnTransformer, put the columns into sklearn.frozen.FrozenEstimator. "
                "To start anew, fit a clone."
            )

    @property
    def _trained_weights(self) -> Any:
        if "weights_" not in vars(self):
            raise NotFittedError(
                f"Column {self.name!r} has no vectors, because a network learns them, and "
                "copies made by clone have none. Take the feature columns of a fitted "
                "estimator; in a Pipeline or ColumnTransformer, put them into "
                "sklearn.frozen.FrozenEstimator, which keeps what they have learned."
            )
        return self.weights_
