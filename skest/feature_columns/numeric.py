# SPDX-License-Identifier: Apache-2.0
"""`numeric_column`: numbers, with the filling of gaps and the scaling they need."""

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from sklearn.preprocessing import MinMaxScaler

from skest.core.checks import check_choice, check_integer, former_arguments
from skest.feature_columns.base import DenseColumn, check_key
from skest.feature_columns.cells import warn_of_merged
from skest.feature_columns.statistics import (
    EmptyColumnError,
    UniformMap,
    can_hold,
    distance_of_others,
    empty_columns,
    is_finite,
    mean_and_scale,
    median_and_spread,
    smoothly_clipped,
    with_gaps,
)
from skest.feature_columns.table import Key, Table

_DTYPES = ("float32", "float64", "int32", "int64")
_SCALERS = ("standard", "auto", "minmax", "quantile", "robust")
_LINEAR = (None, "standard", "auto", "minmax")

_REMEDY = "give no 'normalizer' or a callable"
# Ends of keys under which other things than numbers are encoded, and of those that avoid
# them: so "city_ids" may be a column of numbers beside the categories "city".
_RESERVED = re.compile("_(ids|length|weights|values|numbers)$")


@former_arguments(normalizer_fn="use 'normalizer'")
def numeric_column(
    key: Key,
    shape: int | tuple[int, ...] = (1,),
    default_value: float | Sequence[Any] | np.ndarray | str | None = None,
    dtype: Any = "float32",
    normalizer: str | Callable[[np.ndarray], np.ndarray] | None = None,
    indicate_missing: bool | str = False,
) -> "NumericColumn":
    """Numbers as they are, or scaled.

    Cells are cast to `dtype`, then gaps are filled, then the numbers are scaled. A
    missing number is NaN (in a DataFrame also None and pd.NA). Infinite numbers are
    refused.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array or frame.
    shape : int or tuple of int, default=(1,)
        Shape of one cell. The output is flat.
    default_value : float, list or array of float, "mean" or None, default=None
        What stands in for a missing number; a list, nested as `shape` is, has one for
        each element. "mean" is the (weighted) mean of the training data, for each
        element. None refuses missing numbers.
    dtype : {"float32", "float64", "int32", "int64"}, default="float32"
        Type in which cells are held and scaled. Networks take floats: `encode` turns
        integers into float64, which is not exact beyond 2**53, while `transform` gives
        integers.
    normalizer : {"standard", "auto", "minmax", "quantile", "robust"} or callable, \
default=None
        "standard" subtracts the mean and divides by the standard deviation of the
        training data, "auto" does so unless their quartiles are equal, as those of flags
        and of counts that are mostly zero, "minmax" maps their range to [0, 1],
        "quantile" spreads them evenly over [0, 1], as
        `sklearn.preprocessing.QuantileTransformer` does, "robust" subtracts the median,
        divides by the distance of the quartiles, and takes
        ``x / sqrt(1 + (x / 3) ** 2)``, which is between -3 and 3, of the result; missing
        numbers are left out of the statistics. A callable is TensorFlow's
        ``normalizer_fn``: it takes and returns an array of shape ``(n_rows, *shape)`` and
        treats each row by itself.
    indicate_missing : bool or "auto", default=False
        True appends for each element a number that is 1 where the cell was missing.
        "auto" does so only for elements with gaps in the training data, in rows of
        positive weight.

    Returns
    -------
    NumericColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of ``tf.feature_column.numeric_column``, with two
    differences: TensorFlow lets NaN and infinity pass, and uses ``default_value`` for
    parsing only. Learned normalizers are an addition.

    "quantile" maps a number of the training data to the (weighted) share of the data
    below it and half of the share equal to it, the least one to 0 and the greatest to 1,
    and is linear in between; of more than a thousand distinct numbers it keeps quantiles.
    On training data it differs from `QuantileTransformer` by about
    ``1 / min(n_rows, 1000)`` at most. All of it can be said with ONNX operators: Max and
    Min cut off numbers out of range, Less and ReduceSum count the inner knots at or below
    a number, Gather takes the ends of its interval, and Sub, Div, Mul and Add interpolate.

    "auto" subtracts the median where the quartiles are equal, and divides by the root of
    the mean square of what is left of the other numbers: they are about 1 then. In units of
    a standard deviation, the rarer they are, the larger they are, and a network learns by
    heart whose they are.

    "robust" scales as RealMLP does (Holzmüller, Grinsztajn and Steinwart 2024, "Better by
    Default", arXiv:2407.04491). Where the quartiles are equal, it divides by half of the
    range. Quartiles are numbers that occur, and weights count as repetitions.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import numeric_column
    >>> column = numeric_column("age", default_value="mean", normalizer="standard")
    >>> column.fit_transform({"age": np.array([20.0, 40.0, np.nan])})
    array([[-1.], [ 1.], [ 0.]], dtype=float32)
    """
    default = as_list(default_value)
    return NumericColumn(
        key, shape, default, dtype, normalizer, indicate_missing
    ).validated()


def as_list(default_value: Any) -> Any:
    """Return an array among the parameters as a list."""
    # `clone`, `repr` and comparisons of parameters stumble over arrays.
    is_array = isinstance(default_value, np.ndarray)
    return default_value.tolist() if is_array else default_value


@dataclass(eq=False, repr=False)
class NumericColumn(DenseColumn):
    """Column made by `numeric_column`, where the parameters are documented.

    Attributes
    ----------
    fill_ : ndarray of float64, shape (n_elements,)
        Learned means, if ``default_value="mean"``.
    center_, scale_ : ndarray of float64, shape (n_elements,)
        The output is ``(x - center_) / scale_``, computed in `dtype`, if `normalizer`
        is "standard" (mean, standard deviation), "minmax" (minimum, range), "robust"
        (median, distance of the quartiles), where it is clipped then, or "auto".
    limit_ : ndarray of float64, shape (n_elements,)
        What the output is within, up and down, if `normalizer` is "auto" and the column
        is one of a fitted estimator.
    quantile_maps_ : list of UniformMap, of length n_elements
        The map of each element, if `normalizer` is "quantile".
    indicated_ : ndarray of int64
        Elements that get an indicator, if ``indicate_missing="auto"``.
    """

    key: Key
    shape: int | tuple[int, ...] = (1,)
    default_value: float | Sequence[Any] | str | None = None
    dtype: Any = "float32"
    normalizer: str | Callable[[np.ndarray], np.ndarray] | None = None
    indicate_missing: bool | str = False

    @property
    def encoded_key(self) -> str:
        """The name; if it ends as keys of other entries do, ``_numbers`` behind it."""
        return f"{self.name}_numbers" if _RESERVED.search(self.name) else self.name

    @property
    def allows_missing(self) -> bool:
        """Whether there is a value for missing numbers."""
        return self.default_value is not None

    @property
    def needs_fit(self) -> bool:
        """Whether a mean, gaps or a normalizer are to be learned."""
        return (
            self.default_value == "mean"
            or self.indicate_missing == "auto"
            # A function has nothing to learn.
            or isinstance(self.normalizer, str)
        )

    @property
    def cell_shape(self) -> tuple[int, ...]:
        """Parameter `shape` as a tuple."""
        if isinstance(self.shape, list | tuple):
            return tuple(self.shape)
        return (self.shape,)

    @property
    def n_elements(self) -> int:
        """Numbers in one cell."""
        return math.prod(self.cell_shape)

    @property
    def fill(self) -> np.ndarray | None:
        """What stands in for a missing number of each element; None for nothing."""
        if self.default_value is None:
            return None
        if isinstance(self.default_value, str):
            # The one string that is allowed is "mean".
            return self._learned("fill_", "give a number for 'default_value'")
        # One number for all elements, or one for each.
        return np.broadcast_to(np.ravel(self.default_value), self.n_elements)

    @property
    def indicated(self) -> np.ndarray:
        """Elements of a cell for which an indicator of missing numbers is appended."""
        if self.indicate_missing == "auto":
            return self._learned(
                "indicated_", "set 'indicate_missing' to True or False"
            )
        return np.arange(self.n_elements if self.indicate_missing else 0)

    @property
    def size(self) -> int:
        """Numbers in one cell, and indicators."""
        return self.n_elements + len(self.indicated)

    def _validate(self) -> None:
        owner = f"numeric column {self.key!r}"
        check_key(self.key, owner)
        for n_elements in self.cell_shape:
            check_integer(n_elements, "shape", owner, minimum=1)
        # By its name, for np.float32 and the dtype of an array are meant as well.
        check_choice(_dtype_name(self.dtype), "dtype", owner, _DTYPES)
        default = self.default_value
        is_mean = isinstance(default, str) and default == "mean"
        if default is not None and not is_mean:
            self._check_numbers(default, owner)
        if not callable(self.normalizer):
            choices = (*_SCALERS, None)
            check_choice(self.normalizer, "normalizer", owner, choices)
        check_choice(
            self.indicate_missing, "indicate_missing", owner, (True, False, "auto")
        )
        if self.indicate_missing and default is None:
            raise ValueError(
                f"{owner} has indicate_missing={self.indicate_missing!r} but no "
                "'default_value' to put in place of missing numbers; give a number or "
                "'mean'."
            )
        learns = self.normalizer is not None or is_mean
        # A cast back to integers would turn standardised numbers into zeros.
        if learns and np.dtype(self.dtype).kind == "i":
            raise ValueError(
                f"{owner} has a 'normalizer' or the default_value 'mean', which do not "
                "give integers; set dtype='float32' or 'float64'."
            )

    def _check_numbers(self, default: Any, owner: str) -> None:
        cells = np.array(default, dtype=object)
        shape = self.cell_shape if isinstance(default, list | tuple) else ()
        if cells.shape != shape or not all(
            isinstance(n, Real) and abs(n) < math.inf  # type: ignore[operator]
            for n in cells.flat
        ):
            raise ValueError(
                f"'default_value' of {owner} must be a finite number, a list of them of "
                f"shape {self.cell_shape}, 'mean' or None; got {default!r}."
            )
        if not all(can_hold(self.dtype, number) for number in cells.flat):
            raise ValueError(
                f"'default_value' of {owner} is {default!r}, which its dtype "
                f"{_dtype_name(self.dtype)} cannot hold. Give another value or dtype."
            )

    def _learn(self, table: Table) -> dict[str, Any]:
        raw, weight = self._cells(table), table.weight
        warn_of_merged(raw, self.dtype, self.key)
        values, missing = self._checked(raw, copy=False)
        learned: dict[str, Any] = {}
        empty = empty_columns(missing, table)
        if self.indicate_missing == "auto":
            # An indicator of gaps that training lacks would keep an untrained weight.
            learned["indicated_"] = np.arange(0)
            if missing is not None:
                gaps = table.counted(missing).any(axis=0)
                # Nor does one of a gap in every row tell anything.
                learned["indicated_"] = np.flatnonzero(
                    gaps if empty is None else gaps & ~empty
                )
        # All need numbers: an empty column has no mean, and nothing to be scaled by.
        if self.default_value == "mean" or self.normalizer in _SCALERS:
            if missing is not None and empty is not None:
                self._check_present(empty)
                values, missing = np.where(empty, 0, values), missing & ~empty
            # The parts of a network have columns of the same numbers.
            numbers = (self.key, *self._element_names, self.cell_shape, self.dtype)
            mean, scale = table.learned(
                ("moments", *numbers), lambda: mean_and_scale(values, missing, weight)
            )
            self._check_statistics(scale)
        if self.default_value == "mean":
            learned["fill_"] = mean
        if self.normalizer == "standard":
            learned["center_"], learned["scale_"] = mean, scale
        elif self.normalizer == "auto":
            learned["center_"], learned["scale_"] = mean.copy(), scale.copy()
            for i, element in enumerate(_elements(values, missing, table)):
                if (distance := distance_of_others(*element)) is not None:
                    learned["center_"][i], learned["scale_"][i] = distance
        elif self.normalizer == "minmax":
            # MinMaxScaler takes no weights; a row of weight 0 is one that is not there.
            counted = slice(None) if weight is None else weight > 0
            range_scaler = MinMaxScaler().fit(with_gaps(values, missing)[counted])
            # The scale of scikit-learn is the reciprocal of the range, and 1 of an
            # empty one.
            learned["center_"] = range_scaler.data_min_
            learned["scale_"] = 1 / range_scaler.scale_
        elif self.normalizer in ("quantile", "robust"):
            elements = list(_elements(values, missing, table))
            with np.errstate(over="ignore"):
                if self.normalizer == "quantile":
                    maps = [UniformMap.learned(*element) for element in elements]
                    # The map divides by the distances of its knots.
                    self._check_statistics(np.diff(m.knots) for m in maps)
                    return learned | {"quantile_maps_": maps}
                scales = np.array([median_and_spread(*e) for e in elements], np.float64)
            self._check_statistics(scales)
            learned["center_"], learned["scale_"] = scales.T.copy()
        if "scale_" in learned and empty is not None:
            # Numbers that come later have nothing to be compared with.
            learned["scale_"] = np.where(empty, np.inf, learned["scale_"])
        return learned

    def _check_statistics(self, of_elements: Iterable[Any]) -> None:
        # The square of a number above 1e154 is infinite, and so would be what scales
        # all others.
        for i, learned in enumerate(of_elements):
            if not np.isfinite(learned).all():
                raise ValueError(
                    f"{self._element(i)} holds numbers too large to learn their deviation. "
                    "Scale it, for example by taking logarithms."
                )

    def _element(self, i: int) -> str:
        """Return what a message calls the numbers of an element."""
        where = f", element {i}," if self.n_elements > 1 else ""
        return f"Column {self.key!r}{where}"

    def _check_present(self, empty: np.ndarray) -> None:
        # Of several elements, one may be 0 whatever comes later, if it is scaled.
        if empty.all() or self.normalizer not in _SCALERS:
            raise EmptyColumnError(
                f"{self._element(int(empty.argmax()))} has no numbers to learn a mean "
                "or range from. Leave the column out, or give numbers for "
                "'default_value' and no 'normalizer'."
            )

    def _raw(self, table: Table) -> np.ndarray:
        return table.numbers(self.key)

    def _cells(self, table: Table) -> np.ndarray:
        """Return raw cells, of shape (n_rows, n_elements)."""
        raw, n_elements = self._raw(table), self.n_elements
        # By the number of elements, not the shape: (n, 1) and (n,) are the same column.
        if raw.size != len(raw) * n_elements:
            raise ValueError(
                f"Cells of column {self.key!r} must have shape {self.cell_shape}; got "
                f"{raw.shape[1:] or (1,)}. Set 'shape' of the numeric column."
            )
        return raw.reshape(len(raw), n_elements)

    def _cast(self, raw: np.ndarray, copy: bool) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            # Row behind row, as batches are made of rows.
            return raw.astype(self.dtype, order="C" if copy else "K", copy=copy)

    def _checked(
        self, raw: np.ndarray, copy: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Cells in the column's dtype, 0 where they are missing; and where that is."""
        missing = None
        # No mask of gaps is made where all is finite, as it mostly is.
        if not (all_finite := is_finite(raw)) and (gaps := np.isnan(raw)).any():
            # A zero is in the range of every dtype, while NaN can't be cast to
            # integers.
            missing, raw = gaps, np.where(gaps, 0, raw)
        values = self._cast(raw, copy)
        if values.dtype.kind == "f":
            # A cast to float32 makes infinity of numbers above 3.4e38.
            if not (all_finite and values.dtype == raw.dtype):
                self._check_finite(values, raw)
        elif not np.array_equal(values, raw):
            raise ValueError(
                f"Column {self.key!r} holds {raw[values != raw][0]}, which dtype "
                f"{values.dtype} cannot hold. Use dtype='float32' or 'float64'."
            )
        return values, missing

    def _check_finite(self, values: np.ndarray, raw: np.ndarray) -> None:
        finite = np.isfinite(values)
        if finite.all():
            return
        row, element = np.argwhere(~finite)[0]
        value, where = raw[row, element], self._element(element)
        if np.isfinite(value):
            raise ValueError(
                f"{where} holds {value}, which is infinity in dtype {values.dtype}. Use "
                "dtype='float64', or scale the column."
            )
        raise ValueError(
            f"{where} holds {value}; infinity (inf) is never allowed. Replace "
            "it by a number, or by NaN where gaps are allowed: without "
            "'feature_columns', or with 'default_value' of the column."
        )

    def values(self, table: Table) -> tuple[np.ndarray, np.ndarray | None]:
        """Return filled and scaled numbers, and where there is none.

        Parameters
        ----------
        table : Table
            Raw data.

        Returns
        -------
        values : ndarray of shape (n_rows, n_elements)
            Without meaning where there is none.
        unknown : ndarray of bool, shape (n_rows, n_elements), or None
            Where a number was missing that nothing was filled in for; None for nowhere.
        """
        values, missing = self._filled(table)
        return values, missing if self.default_value is None else None

    def _filled(self, table: Table) -> tuple[np.ndarray, np.ndarray | None]:
        """Return filled and scaled numbers, and where they were missing, if anywhere."""
        fill, raw = self.fill, self._cells(table)
        if self.normalizer in _LINEAR and np.dtype(self.dtype).kind == "f":
            # What is no number, or too large for one, is still none when it is scaled.
            values = self._scaled(self._cast(raw, copy=True))
            if is_finite(values):
                return self._limited(values), None
        values, missing = self._checked(raw, copy=True)
        if fill is not None and missing is not None:
            values = np.where(missing, fill.astype(values.dtype), values)
        # A function of the user's may do anything: its result is checked, not its code.
        if callable(self.normalizer):
            return self._called(values, missing), missing
        # Each element has knots of its own, and as many as it has distinct numbers.
        if self.normalizer == "quantile":
            maps = self._learned("quantile_maps_", _REMEDY)
            columns = [learned(values[:, i]) for i, learned in enumerate(maps)]
            return np.stack(columns, axis=1), missing
        values = self._scaled(values)
        if not self._are_finite(values, missing):
            element = np.argwhere(~np.isfinite(values))[0][1]
            raise ValueError(
                f"{self._element(element)} holds a number that is infinite (inf) when it "
                f"is scaled in {values.dtype}. Replace it, clip the column, or use "
                "dtype='float64'."
            )
        if self.normalizer == "robust":
            values = smoothly_clipped(values)
        return self._limited(values), missing

    def _with_limit(self, table: Table) -> "NumericColumn":
        """Return the column with a limit for numbers that come later.

        A code for a gap, such as 999, would outweigh all else. Twice the greatest distance
        of the rows from the center, or of rows before, is not beyond it; numbers that were
        always the same have no limit, and where there were none, later ones become 0.
        """
        if self.normalizer != "auto" or self.length_key is not None:
            return self
        raw = self._cells(table)
        low, high = np.fmin.reduce(raw), np.fmax.reduce(raw)  # without NaN
        ends = self._scaled(self._cast(np.stack([low, high]), copy=True))
        limit = 2 * np.abs(ends).max(axis=0)
        other = copy.copy(self)
        known = vars(self).get("limit_", np.where(low == high, np.inf, 0))
        other.limit_ = np.fmax(limit, known)
        return other

    def _without_limit(self) -> "NumericColumn":
        """Return the column without a limit."""
        other = copy.copy(self)
        other.__dict__.pop("limit_", None)
        return other

    def _limited(self, values: np.ndarray) -> np.ndarray:
        """Return scaled numbers within the learned limit, in the same memory."""
        limit = vars(self).get("limit_")
        if limit is not None:
            limit = limit.astype(values.dtype)
            np.minimum(values, limit, out=values)
            np.maximum(values, -limit, out=values)
        return values

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        """Return numbers in the learned scale, in the memory of those given."""
        if self.normalizer is not None:
            center, scale = (self._learned(n, _REMEDY) for n in ("center_", "scale_"))
            # What becomes infinite here is looked for by whoever calls.
            with np.errstate(all="ignore"):
                values -= center.astype(values.dtype, copy=False)
                values /= scale.astype(values.dtype, copy=False)
        return values

    def _are_finite(self, values: np.ndarray, missing: np.ndarray | None) -> bool:
        """Tell whether all numbers are finite but those for which there is no value."""
        unfilled = missing if self.default_value is None else None
        return is_finite(values) or bool(
            (np.isfinite(values) | (False if unfilled is None else unfilled)).all()
        )

    def _called(self, values: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        normalizer: Any = self.normalizer
        shape = (len(values), *self.cell_shape)
        # Back into the type of the column: many functions compute in float64 whatever
        # they get.
        result = np.asarray(normalizer(values.reshape(shape)), dtype=values.dtype)
        if result.shape != shape:
            raise ValueError(
                f"'normalizer' of column {self.key!r} must return an array of shape "
                f"{shape}, as it was given; got {result.shape}."
            )
        result = result.reshape(values.shape)
        if not self._are_finite(result, missing):
            raise ValueError(
                f"'normalizer' of column {self.key!r} returned NaN or infinity for finite "
                "numbers; it must be defined for every number in the column."
            )
        return result

    def _matrix(self, table: Table) -> np.ndarray:
        values, missing = self._filled(table)
        if self.default_value is None and missing is not None:
            raise ValueError(
                f"Column {self.key!r} holds NaN (a missing number), and its numeric column "
                "has no value to fill in. Set 'default_value' to a number or to 'mean'."
            )
        indicated = self.indicated
        # The usual case returns what was computed, without a copy.
        if len(indicated) == 0:
            return values
        marks = np.zeros((len(values), len(indicated)), values.dtype)
        if missing is not None:
            marks[:] = missing[:, indicated]
        return np.hstack([values, marks])

    @property
    def _element_names(self) -> list[str]:
        if self.n_elements == 1:
            return [self.name]
        return [f"{self.name}_{i}" for i in range(self.n_elements)]

    def _output_names(self) -> list[str]:
        names = self._element_names
        return names + [f"{names[i]}_missing" for i in self.indicated]


class OverNumeric(DenseColumn):
    """Column over a numeric one, the parameter `source_column`."""

    source_column: NumericColumn

    @property
    def source(self) -> NumericColumn:
        """The source, fitted if this column is."""
        return vars(self).get("source_column_", self.source_column)

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """The key of the source."""
        return self.source_column.feature_keys

    def _validate_source(self, kind: str) -> str:
        """Check the source of a column of a kind, and return its name for messages."""
        source = self.source_column
        # Sequences are of any length, and these columns have a fixed number of outputs.
        if not isinstance(source, NumericColumn) or source.length_key is not None:
            raise TypeError(
                f"'source_column' of a {kind} column must come from numeric_column; got "
                f"{source!r}."
            )
        source.validated()
        owner = f"{kind} column {source.name!r}"
        if source.indicate_missing:
            raise ValueError(
                f"The source of {owner} must have indicate_missing=False, for it takes "
                "no indicators. Use another numeric column for them."
            )
        return owner

    def _learn(self, table: Table) -> dict[str, Any]:
        return {"source_column_": self.source_column.fitted(table, table.weight)}


def _elements(
    values: np.ndarray, missing: np.ndarray | None, table: Table
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield the numbers of each element that count, and their weights."""
    known = np.ones(values.shape, bool) if missing is None else ~missing
    weight = table.weight
    for element, rows in enumerate(table.counted(known).T):
        yield values[rows, element], None if weight is None else weight[rows]


def _dtype_name(dtype: Any) -> Any:
    try:
        return np.dtype(dtype).name
    # What is no type at all is named by the check, as one that is not allowed.
    except TypeError:
        return dtype
