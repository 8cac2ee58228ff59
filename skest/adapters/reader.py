# SPDX-License-Identifier: Apache-2.0
"""`RowReader`: from what a caller passes to `Rows` that are validated."""

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_consistent_length, get_tags

from skest.adapters.features import (
    ARRAY_KEY,
    Rows,
    as_rows,
    count_samples,
    has_empty_column,
    holds_dummies,
    holds_only_numbers,
    is_table,
    read_array,
    read_table,
)
from skest.adapters.recipe import AutoParameters
from skest.adapters.repeated_rows import Units, distinct_rows, units_of
from skest.adapters.targets.base import Target
from skest.core.checks import warn
from skest.core.random import seed_sequence
from skest.core.sklearn_compat import check_sample_weight
from skest.engine.model import device_with
from skest.feature_columns.choice import (
    are_ids_of_rows,
    left_out,
    stands_alone,
    warn_of_calendar,
    warn_of_id,
)
from skest.feature_columns.columns import (
    FeatureColumns,
    as_feature_columns,
    unread_keys,
)
from skest.feature_columns.infer import (
    infer_feature_columns,
    with_limits_of_dates,
    with_piecewise,
    with_weights_of_dates,
)
from skest.feature_columns.joined import with_feature_names, with_joined_columns
from skest.feature_columns.matrix_parts import parts_of
from skest.feature_columns.sources import plain_array
from skest.feature_columns.table import Table, TableColumns
from skest.inputs.array_dataset import take_rows

# Of a float64 array that the recipe trains on in float64. With more that is too slow:
# letter takes 45 CPU seconds, and 27 in float32.
_MOST_DOUBLE_ROWS = 1_000


def _numbered_groups(groups: Any, n_rows: int) -> np.ndarray:
    """Return a number for each row that says of which group it is."""
    numbers, _ = pd.factorize(np.asarray(groups))
    if len(numbers) != n_rows:
        raise ValueError(
            f"'groups' must have a value for each of the {n_rows} rows of X; got "
            f"{len(numbers)}."
        )
    if (numbers < 0).any():
        raise ValueError(
            f"'groups' lacks the value of row {int(numbers.argmin())}. Give each row one."
        )
    return np.asarray(numbers)


class RowReader(AutoParameters, BaseEstimator, metaclass=ABCMeta):
    """How estimators read ``X``, ``y`` and weights; not for direct use."""

    # The parameters that hold feature columns, and the kind of network that takes them.
    _column_parameters: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def _new_target(self, y: Any) -> Target:
        """Return a target for `y`, which has not learned from it yet."""

    def _setting(self, name: str) -> Any:
        """Return a parameter; the configuration has a say if it is "auto"."""
        if getattr(self, name) == "auto" and self.config is not None:
            return getattr(self.config, name)
        return getattr(self, name)

    # Rows

    def _check_rows(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        classes: Any = None,
        *,
        reset: bool,
        groups: Any = None,
    ) -> Rows:
        """Validate and weigh training data; rows of weight zero are dropped."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the "
                "target y is None. What yields pairs (X, y), as a DataLoader does, is for "
                "train(lambda: batches)."
            )
        features, y, weight = self._read(X, y, sample_weight, reset=reset)
        if groups is not None:
            groups = _numbered_groups(groups, count_samples(features))
        if reset:
            self._learn_target(y, classes)
        else:
            self._target.check_classes(classes)
        # In scikit-learn a weight of zero is a row that is not there, but its class is.
        kept = None
        if weight is not None and not weight.all():
            kept = np.flatnonzero(weight)
            features, y = TableColumns(take_rows(features, kept)), take_rows(y, kept)
            weight = weight[kept]
            groups = None if groups is None else groups[kept]
        rows = Rows(features, self._target.encode(y), weight, groups=groups)
        if reset and self._reads_array and self._column_parameters and is_table(X):
            rows = self._by_column(X, rows, kept)
        if self.sampling == "weighted":
            if weight is not None and (weight < 0).any():
                raise ValueError(
                    "sampling='weighted' draws rows in proportion to their weights, so "
                    f"'sample_weight' must not be negative; got {weight.min()}."
                )
            # So that weights and repeated rows train alike, bit for bit.
            rows = distinct_rows(rows)
        # Before rows are held out: these weigh in the score as in training.
        return rows._replace(
            weight=self._balanced_weight(rows), sample_weight=rows.weight
        )

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[TableColumns, Any, np.ndarray | None]:
        """Return features, targets and weights of as many rows."""
        features = self._check_features(X, reset=reset)
        if isinstance(y, str):
            raise TypeError(
                "'y' takes the targets themselves, one for each row; got the name "
                f"{y!r}. Give X.drop(columns={y!r}) and X[{y!r}]."
            )
        y = self._target_rows(y)
        several = y.values() if isinstance(y, Mapping) else [y]
        # One column stands for all: the table has compared their lengths.
        check_consistent_length(next(iter(features.values())), *several)
        if sample_weight is None:
            return features, y, None
        if isinstance(sample_weight, str):  # tf.estimator's weight_column is a name
            raise TypeError(
                "'sample_weight' takes the numbers themselves, one for each row; got the "
                f"name {sample_weight!r}. Give X[{sample_weight!r}]."
            )
        # Only the length of the second argument counts. All-zero weights are refused.
        rows = np.empty((count_samples(features), 1))
        if isinstance(sample_weight, np.ndarray):
            sample_weight = plain_array(sample_weight, "sample_weight")
        weight: np.ndarray = check_sample_weight(
            sample_weight, rows, dtype=np.float64, copy=True
        )
        return features, y, weight

    def _target_rows(self, y: Any) -> Any:
        """Return `y` as something whose rows can be taken."""
        return as_rows(y)

    def _learn_target(self, y: Any, classes: Any) -> None:
        self._target = self._new_target(y)
        self._target.learn(y, classes=classes)
        self._n_logits = self._target.head(None).logits_dimension

    def _balanced_weight(self, rows: Rows) -> np.ndarray | None:
        """Return the weights to train with."""
        return rows.weight

    def _split_validation(
        self,
        rows: Rows,
        validation: Sequence[Any],
        seed: int | None,
        units: Units | None,
    ) -> tuple[Rows, Rows | None]:
        """Return training and validation rows, the latter only for early stopping."""
        X_val, y_val, weight_val = validation
        if X_val is None and y_val is None:
            if weight_val is not None:
                raise ValueError("'sample_weight_val' needs 'X_val' and 'y_val'.")
            if units is None:
                return rows, None
            from sklearn.model_selection import train_test_split  # as slow to load

            train, held_out = train_test_split(
                np.arange(len(units.first)),
                test_size=self.validation_fraction,
                # Not None: that would draw from NumPy's global generator.
                random_state=int(seed_sequence(seed).generate_state(1)[0]),
                stratify=units.strata,
            )
            return rows.take(units.rows_of(train)), rows.take(units.rows_of(held_out))
        if X_val is None or y_val is None:
            raise ValueError("'X_val' and 'y_val' must be given together.")
        if not self.early_stopping:
            raise ValueError(
                "'X_val' and 'y_val' serve early stopping, but early_stopping=False. Set "
                'it to True or "auto", or leave them out.'
            )
        try:
            return rows, self._check_evaluation_rows(X_val, y_val, weight_val)
        except (TypeError, ValueError) as error:
            error.add_note("This is about 'X_val' and 'y_val'.")
            raise

    def _check_evaluation_rows(
        self, X: Any, y: Any, sample_weight: Any, *, strict: bool = True
    ) -> Rows:
        """Validate rows that are not trained on."""
        features, y, weight = self._read(X, y, sample_weight, reset=False)
        return Rows(features, self._target.encode(y, strict=strict), weight)

    def _units(self, rows: Rows) -> Units:
        """Return what is held out as a whole."""
        units = units_of(rows)
        if rows.groups is not None:
            if len(units.first) < 2:
                raise ValueError(
                    "'groups' has one value only, and the rows of another one are needed "
                    "to hold out. Give X_val and y_val, or early_stopping=False."
                )
            return units
        strata = self._strata(take_rows(rows.labels, units.first))
        # A class may have copies of one row only.
        if strata is None and (of_rows := self._strata(rows.labels)) is not None:
            return Units.alone(rows.n_rows)._replace(strata=of_rows)
        return units._replace(strata=strata)

    def _strata(self, labels: Any) -> np.ndarray | None:
        """Return the groups of which a validation part should have its share."""
        return None

    # Features

    def _check_features(self, X: Any, *, reset: bool) -> TableColumns:
        """Return the features as columns by key, which are read once from here on."""
        if callable(X):
            raise TypeError(
                f"X of {type(self).__name__} must be a table; got the function {X!r}. Only "
                "train(input_fn) takes one; others take the arrays that it returns."
            )
        if isinstance(X, pd.Series):
            raise ValueError(
                "X must have rows and columns; got a Series. A row of a table is "
                "X.iloc[[i]], and a column of it X[[name]]."
            )
        if reset:
            self._reads_array = self._takes_as_array(X)
        if self._reads_array:
            features = read_array(self, X, reset=reset)
        else:
            positions = self._positions()
            features = read_table(self, X, reset=reset, positions=positions)
            if not is_table(X) and self._all_inferred():
                # An array has each column under several keys.
                features = TableColumns({k: features[k] for k in self._column_keys})
        if reset:
            self._dtype_name = self._choose_dtype(features)
        return features

    def _by_column(self, X: Any, rows: Rows, kept: Any) -> Rows:
        """Return rows of a frame of numbers by column, if one of them is no amount."""
        features = read_table(self, X, reset=True)
        if kept is not None:
            features = TableColumns(take_rows(features, kept))
        table = Table(features).with_target(rows.labels)
        if len(table.keys) < 2 or not any(stands_alone(table, k) for k in table.keys):
            return rows
        # Those that were one-hot encoded are found in the matrix only, as names are, too.
        are_ids = any(are_ids_of_rows(key, table.numbers(key)) for key in table.keys)
        if self._is_deep and not are_ids and parts_of(rows.features[ARRAY_KEY]).blocks:
            return rows
        self._reads_array = False
        self._dtype_name = self._choose_dtype(features)
        return rows._replace(features=features)

    def _takes_as_array(self, X: Any) -> bool:
        """Whether X is read as a whole, and not column by column."""
        # Without a description of the features, numbers need no columns of their own,
        # unless one of them is left out; steps of a sequence are not.
        if not self._all_inferred():
            return False
        # An array of numbers is one column, whatever its width: a loop over columns
        # costs more than the network.
        if not is_table(X):
            can_infer = self._column_parameters and not self._reads_sequences
            return not (can_infer and _is_mixed(X))
        is_array = holds_only_numbers(X) or (self._is_deep and holds_dummies(X))
        is_array = is_array and not self._needs_names
        return is_array and (self._reads_sequences or not has_empty_column(X))

    @property
    def _is_deep(self) -> bool:
        return "dense" in self._column_parameters.values()

    @property
    def _reads_sequences(self) -> bool:
        return "sequence" in self._column_parameters.values()

    @property
    def _needs_names(self) -> bool:
        """Whether something reads columns of X by name."""
        return False

    def _positions(self) -> set[int]:
        """Return the positions that feature columns read."""
        return {
            key
            for columns in self._columns_of_user
            for column in columns.active
            for key in column.feature_keys
            if isinstance(key, int)
        }

    def _choose_dtype(self, features: Mapping[Any, Any]) -> str:
        """Return the floating type to compute in.

        As scikit-learn's MLP, "auto" follows an array: float64 stays float64, but on an
        accelerator it becomes float32, and so it does of many rows where the recipe
        trains, in half the time. Tables of mixed columns are computed in float32.
        """
        if self.dtype != "auto":
            return str(self.dtype)
        # A GPU computes float64 at a fraction of its speed.
        strategy = None if self.config is None else self.config.train_distribute
        on_cpu = device_with(strategy, self._setting("device")).type == "cpu"
        array: Any = features.get(ARRAY_KEY)
        is_matrix = isinstance(array, np.ndarray) or issparse(array)
        is_double = is_matrix and array.ndim == 2 and array.dtype == np.float64
        if is_double and self._has_schedule and array.shape[0] > _MOST_DOUBLE_ROWS:
            return "float32"
        return "float64" if is_double and on_cpu else "float32"

    def _all_inferred(self) -> bool:
        return all(getattr(self, name) is None for name in self._column_parameters)

    def _takes_sparse(self) -> bool:
        """Whether X may be a sparse matrix: if columns are inferred, or take it."""
        if self._reads_sequences:
            return False
        return all(get_tags(c).input_tags.sparse for c in self._columns_of_user)

    @property
    def _columns_of_user(self) -> list[FeatureColumns]:
        """The feature columns among the parameters."""
        given = [getattr(self, name) for name in self._column_parameters]
        return [as_feature_columns(columns) for columns in given if columns is not None]

    def _given_columns(
        self, parameter: str, kind: str, rows: Rows
    ) -> FeatureColumns | None:
        """Return the columns to fit of a parameter: those given, or a guess."""
        # Labels tell which numbers name things.
        table = Table(rows.features).with_target(rows.labels)
        columns = getattr(self, parameter)
        if columns is not None:
            given = clone(as_feature_columns(columns))  # the caller's stay unfitted
            if given.remainder == "infer":
                return given.with_inferred(table, self._column_keys, kind)
            return given
        # Of two kinds of columns, one that is not given is left out.
        return self._inferred_columns(kind, table) if self._all_inferred() else None

    @property
    def _column_keys(self) -> list[Any]:
        """Keys of the columns of X, each column once."""
        names = vars(self).get("feature_names_in_")
        if names is None:
            return [f"x{i}" for i in range(self.n_features_in_)]
        return list(names)

    def _keys_beside(self) -> set[Any]:
        """Return columns of X that something else than feature columns reads."""
        return set()

    def _warn_of_unread(self) -> None:
        """Tell which columns of a table no feature column reads."""
        # A dictionary or a frame: the columns of an array have no names to be warned
        # of.
        given = self._columns_of_user
        is_table = "feature_names_in_" in vars(self) and not self._needs_names
        if not (is_table and given and all(c.remainder is None for c in given)):
            return
        unread = unread_keys(self._column_keys, given)
        names = [key for key in unread if key not in self._keys_beside()]
        if names:
            warn(
                f"No feature column of {type(self).__name__} reads the columns "
                f"{', '.join(map(repr, names))} of X; they are dropped. To use them, "
                "give FeatureColumns([...], remainder='infer'); to drop them without a "
                "word, remainder='drop'."
            )

    def _inferred_columns(self, kind: str, table: Table) -> FeatureColumns | None:
        columns = infer_feature_columns(table, kind)
        if columns is not None and not self._reads_array:
            columns = with_joined_columns(columns, table)
        if columns is not None and kind == "dense" and self._has_schedule:
            columns = with_piecewise(columns)
        if columns is not None and kind == "linear":
            if len(self._column_parameters) == 1:
                columns = with_weights_of_dates(columns, table.n_rows)
            else:
                columns = with_limits_of_dates(columns)
        if columns is None or not self._reads_array or table.holds_sparse(ARRAY_KEY):
            return columns
        names = vars(self).get("feature_names_in_")
        # The one column of the array has lost the names, and what there is to say of them.
        for key, values in zip(
            self._column_keys, table.numbers(ARRAY_KEY).T, strict=True
        ):
            if np.isnan(values).all():
                left_out(key, "has no values")
            elif names is not None:
                warn_of_id(key, values)
                warn_of_calendar(key, values)
        if names is None:
            return columns
        return with_feature_names(columns, names)

    @property
    def _torch_dtype(self) -> torch.dtype:
        return torch.float64 if self._dtype_name == "float64" else torch.float32


def _is_mixed(X: Any) -> bool:
    """Tell whether an array has other cells than numbers, as bagging makes of a frame."""
    if not isinstance(X, np.ndarray) or X.dtype != object or X.ndim != 2 or not X.size:
        return False
    table = Table(X)
    return not all(map(table.holds_numbers, range(X.shape[1])))
