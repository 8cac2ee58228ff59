# SPDX-License-Identifier: Apache-2.0
"""`FeaturesIn`: the columns of X that `fit` saw, as scikit-learn reports them."""

from typing import Any

import numpy as np
from scipy.sparse import issparse

from skest.feature_columns.table import Table

__all__ = ["FeaturesIn"]


class FeaturesIn:
    """Mixin of transformers that read columns of X by key.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of X, if X was a frame or an array.
    feature_names_in_ : ndarray of str, shape (n_features_in_,)
        Names of the columns of X, if X was a frame whose names are all strings.
    """

    def _remember_features(self, table: Table) -> None:
        """Keep number and names of the columns, and forget those of an earlier fit."""
        for name, value in (
            ("n_features_in_", table.n_features),
            ("feature_names_in_", table.feature_names),
        ):
            self.__dict__.pop(name, None)
            if value is not None:
                setattr(self, name, value)

    def _table(self, X: Any) -> Table:
        """View X by the names that `fit` saw, if it saw any."""
        n_features = vars(self).get("n_features_in_")
        names = vars(self).get("feature_names_in_")
        table = Table(X)
        if table is X or table.n_features is None or n_features is None:
            return table
        if table.feature_names is None or names is None:
            if table.n_features != n_features:
                raise ValueError(
                    f"X has {table.n_features} features, but {type(self).__name__} is "
                    f"expecting {n_features} features as input."
                )
            if table.feature_names is not names and not issparse(X):
                return Table(np.asarray(X), feature_names=names)
        return table if names is None else Table(X, feature_names=names)
