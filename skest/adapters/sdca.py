# SPDX-License-Identifier: Apache-2.0
"""Dual coordinate ascent in scikit-learn's estimators, where rows have no ids."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from skest.adapters.features import WEIGHT_KEY
from skest.adapters.rows import Rows
from skest.sdca import LinearSDCA, as_sdca

__all__ = ["TakesSDCA", "check_unused"]

# Key of the row numbers beside the features, which are the example ids of SDCA.
_ROW_KEY = "__row_number__"
_ROWS_CHANGE = (
    "does not go with SDCA by row numbers: they may stand for other rows in the next "
    "call, and each row has a dual variable. Give X a column of unique ids and set "
    "LinearSDCA(example_id_column=...), or use another optimizer."
)


class TakesSDCA:
    """Numbers the rows for `LinearSDCA`; a mixin for estimators with an `optimizer`."""

    optimizer: Any
    warm_start: bool
    sampling: str

    def _numbers_rows(self) -> LinearSDCA | None:
        """Return the settings of SDCA if row numbers tell its examples apart."""
        sdca = as_sdca(self.optimizer)
        if sdca is None or sdca.example_id_column is not None:
            return None
        return replace(sdca, example_id_column=_ROW_KEY)

    def _validate_params(self) -> None:
        super()._validate_params()  # type: ignore[misc]
        if self.warm_start and self._numbers_rows():
            raise ValueError(f"warm_start=True {_ROWS_CHANGE}")
        if self.sampling == "weighted" and as_sdca(self.optimizer) is not None:
            raise ValueError(
                "sampling='weighted' has no meaning for LinearSDCA, whose objective weighs "
                "every row exactly. Leave it at 'epoch'."
            )

    def _check_partial_fit(self) -> None:
        super()._check_partial_fit()  # type: ignore[misc]
        if self._numbers_rows():
            raise ValueError(f"Training by parts {_ROWS_CHANGE}")

    def _keys_beside(self) -> set[Any]:
        sdca = as_sdca(self.optimizer)
        return set() if sdca is None else {sdca.example_id_column}

    def _training_features(self, rows: Rows) -> dict[str, Any]:
        features = super()._training_features(rows)  # type: ignore[misc]
        if as_sdca(self.optimizer) is None:
            return features
        if rows.weight is not None:
            # SDCA sums over rows: a weight of 2 is two rows, whatever the mean.
            features = features | {WEIGHT_KEY: rows.weight}
        if not self._numbers_rows():
            return features
        if _ROW_KEY in rows.features:
            raise ValueError(
                f"A column of X is called {_ROW_KEY!r}, a name that skest needs for the "
                "row numbers. Rename it."
            )
        return features | {_ROW_KEY: np.arange(rows.n_rows)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        if as_sdca(self.optimizer) is not None:
            tags.target_tags.multi_output = False
            tags.input_tags.sparse = False
            if tags.classifier_tags is not None:
                tags.classifier_tags.multi_class = False
                tags.classifier_tags.multi_label = False
        return tags

    def _target_rows(self, y: Any) -> Any:
        y = super()._target_rows(y)  # type: ignore[misc]
        is_column = as_sdca(self.optimizer) is not None and np.shape(y)[1:] == (1,)
        return column_or_1d(y, warn=True) if is_column else y


def check_unused(**settings: Any) -> None:
    """Refuse settings that dual coordinate ascent does not take from the estimator."""
    for name, value in settings.items():
        if value not in (0, "auto", None):
            raise ValueError(
                f"{name!r} has no meaning for LinearSDCA; got {value!r}. It has no "
                "learning rate; set its penalties with LinearSDCA(l1=..., l2=...)."
            )
