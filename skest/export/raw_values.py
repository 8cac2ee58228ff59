# SPDX-License-Identifier: Apache-2.0
"""What callers give, as the arrays that an exported graph takes.

Most inputs are a column of a table. A plain table of numbers is one input that has its
columns as parts: it is given whole, as a matrix, or by the names of all its columns. An
engine turns ``None`` into the text "None" without a word; here missing values become what
the manifest says, and what is no text or number is refused by name.
"""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.core.texts import (
    NO_NUMBERS,
    OF_BOOLEANS,
    is_missing_number,
    is_plain_number,
    split_text,
    without_zone,
)

Parts = Mapping[str, Sequence[str]]

#: Strings that are no number, but a missing one. Operator set 18 has nothing that strips
#: strings: a graph has a table of these, and so no others are taken here.
BLANKS = (
    *(" " * n for n in range(9)),
    *(
        before + mark + behind
        for mark in NO_NUMBERS
        for before in ("", " ")
        for behind in ("", " ")
    ),
)
# Floats hold every integer up to here, and not every one beyond.
_EXACT_INTEGERS = 2.0**53


def names_taken(names: Sequence[str], parts: Parts) -> dict[str, str]:
    """Return the names by which inputs are given, and which input each belongs to.

    Parameters
    ----------
    names : sequence of str
        The inputs.
    parts : dict of str to sequence of str
        Of inputs that are made of several columns: which ones.

    Examples
    --------
    >>> from skest.export.raw_values import names_taken
    >>> names_taken(["city", "x"], {"x": ["age", "size"]})
    {'city': 'city', 'age': 'x', 'size': 'x'}
    """
    return {part: name for name in names for part in parts.get(name) or [name]}


def is_whole(name: str, parts: Parts, there: Collection[str]) -> bool:
    """Tell whether an input is given by its own name, not by those of its parts.

    A part may have the name of the input, as a column "x" of the matrix "x".
    """
    own = parts.get(name)
    return not own or (name in there and not set(own) & set(there) - {name})


def columns_of(
    table: Any, names: Sequence[str], parts: Parts | None = None
) -> dict[str, Any]:
    """Return the inputs that a table holds.

    Parameters
    ----------
    table : DataFrame, dict of columns, list of dicts, or ndarray
        The raw features of some rows. Columns are known by their names as strings. A
        matrix is taken if there is one input; so is a frame whose columns have but
        numbers for names.
    names : sequence of str
        The inputs to return; other columns are left alone.
    parts : dict of str to sequence of str, optional
        Of inputs that may be made of several columns: which ones.

    Returns
    -------
    dict of str to array-like
        The inputs by name.

    Raises
    ------
    TypeError
        If it is no table.
    ValueError
        If a column is missing.
    """
    parts = parts or {}
    if hasattr(type(table), "toarray"):  # a sparse matrix
        table = table.toarray()
    if isinstance(table, Mapping):
        return _pick(names, parts, table, table)
    # By what it can do, not by its class: none of them need be installed.
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        # The columns of an Arrow table are no names.
        keys = getattr(table, "column_names", table.columns)
        if len(names) == 1 and _is_matrix(keys, names[0], parts):
            return {names[0]: np.asarray(table)}
        return _pick(names, parts, keys, table)
    if isinstance(table, np.ndarray) and len(names) == 1:
        return {names[0]: _unmasked(table)}
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        first = table[0] if table else dict.fromkeys(names)
        taken = {*names, *names_taken(names, parts)}
        # What the model does not take may be in some rows only.
        common = [key for key in first if str(key) in taken]
        for at, row in enumerate(table):
            absent = [key for key in common if key not in row]
            if absent:
                raise ValueError(f"Row {at} lacks the features {absent}.")
        columns = {key: [row[key] for row in table] for key in common}
        return _pick(names, parts, columns, columns)
    raise TypeError(
        "Give a DataFrame, a dict of columns, or a list of rows, each a dict; got "
        f"{type(table).__name__}."
    )


def _is_matrix(keys: Any, name: str, parts: Parts) -> bool:
    """Tell whether a frame is an array whose columns were merely counted."""
    is_counted = len(keys) > 0 and not any(isinstance(key, str) for key in keys)
    # pandas counts columns without names from 0.
    return is_counted and not {name, *parts.get(name, ())} & set(map(str, keys))


def _pick(names: Sequence[str], parts: Parts, keys: Any, table: Any) -> dict[str, Any]:
    # Inputs of a graph are called by strings; columns of a frame may be numbers.
    key_of = {str(key): key for key in keys}
    found, absent = {}, []
    for name in names:
        whole = is_whole(name, parts, key_of)
        own = [name] if whole else parts[name]
        missing = [part for part in own if part not in key_of]
        if missing:
            absent += missing
        elif whole:
            found[name] = _unmasked(table[key_of[name]])
        else:
            found[name] = _stacked({k: _unmasked(table[key_of[k]]) for k in own})
    if absent:
        raise ValueError(
            f"The features {absent} are missing; the model takes "
            f"{list(names_taken(names, parts))}."
        )
    return found


def _unmasked(values: Any) -> Any:
    """Return values with None where they are masked, and a dictionary of Arrow decoded."""
    if isinstance(values, np.ma.MaskedArray):
        cells, mask = values.data, np.ma.getmaskarray(values)
        # Of finer units, NumPy makes integers.
        cells = cells.astype("datetime64[us]") if cells.dtype.kind == "M" else cells
        cells = cells.astype(object)
        cells[mask] = None
        return cells
    # NumPy would give a missing cell the last word of the dictionary.
    if hasattr(values, "dictionary_encode") and "dictionary" in str(values.type):
        return _as_python(values)
    return values


def _as_python(values: Any) -> Any:
    """Return a column, or a cell that is a list, of pandas, polars or Arrow as Python's."""
    for convert in ("to_list", "to_pylist", "as_py"):
        if hasattr(values, convert):
            return getattr(values, convert)()
    return values


def _stacked(columns: Mapping[str, Any]) -> NDArray[Any]:
    # NumPy would make texts of numbers that stand beside texts.
    arrays = (np.asarray(values, dtype=object) for values in columns.values())
    cells = [a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a for a in arrays]
    shapes = {array.shape for array in cells}
    if len(shapes) > 1 or () in shapes:
        given = {part: array.shape for part, array in zip(columns, cells, strict=True)}
        raise ValueError(
            "The columns of a table must have one value for each row, and as many rows "
            f"each; got arrays of the shapes {given}."
        )
    return np.stack(cells, axis=1)


class Feature:
    """An input of an exported model.

    Parameters
    ----------
    name : str
        Its name.
    spec : dict
        Its entry in the manifest: ``dtype``; ``shape`` (None for sizes that are free);
        ``missing``, what stands for a missing value and fills up shorter lists, unless
        none may be missing; ``delimiter``, what separates the values in a text (see
        `skest.core.texts`);
        ``columns``, if it is made of several columns of a table; ``texts_only``, if an
        integer is no text; ``numbers_only``, if a text must be a number or blank;
        ``from_texts``, if a number may be written as a text; ``booleans``, if "true" is
        none of "True" and "False"; ``integers_only``, if floats must be whole and exact,
        for they are categories, too; ``unit``, if the numbers are dates: microseconds since
        1970; and ``weighs``, if they are weights of the values of another input.
    """

    def __init__(self, name: str, spec: Mapping[str, Any]) -> None:
        self.name = name
        self.dtype = str(spec["dtype"])
        self.shape: tuple[int | None, ...] = tuple(spec["shape"])
        self.columns: list[str] | None = spec.get("columns")
        self._delimiter = spec.get("delimiter")
        self._texts_only = bool(spec.get("texts_only"))
        self._numbers_only = bool(spec.get("numbers_only"))
        self._from_texts = bool(spec.get("from_texts"))
        self._are_booleans = bool(spec.get("booleans"))
        self._integers_only = bool(spec.get("integers_only"))
        self.weighs: str | None = spec.get("weighs")
        self._is_date = spec.get("unit") is not None
        self._is_vector = self.shape[1:] not in ((), (1,))
        missing = spec.get("missing")
        self._missing = float("nan") if missing == "nan" else missing

    def feed(self, values: Any) -> NDArray[Any]:
        """Return the values of some rows as the graph takes them.

        Parameters
        ----------
        values : array-like of shape (n_rows, ...)
            One value, or one list of values, for each row.

        Returns
        -------
        ndarray
            Of the feature's dtype and shape; texts as objects.

        Raises
        ------
        TypeError, ValueError
            If a value is not what the feature takes.
        """
        # A single text would be read as one row for each letter.
        if np.isscalar(values) or values is None:
            raise TypeError(
                f"The feature {self.name!r} must have one value for each row, in a list "
                f"or an array; got {shortened(values)}."
            )
        if None in self.shape[1:]:
            values = self._padded(values)
        if self._is_date:
            values = self._times(values)
        texts = self.dtype == "string"
        try:
            return self._shaped(self._texts(values) if texts else self._numbers(values))
        # Looked for behind an error only: what is right pays nothing for names.
        except (TypeError, ValueError):
            self._check_columns(values)
            raise

    def _times(self, values: Any) -> NDArray[Any]:
        """Return dates as microseconds since 1970 in UTC; whole numbers are such."""
        array = np.asarray(values)
        # The manifest says that numbers of dates are microseconds already.
        if array.dtype.kind in "iu":
            return array
        # Cell by cell: texts, datetimes and Timestamps may stand beside each other.
        if array.dtype.kind != "M":
            cells = np.asarray(values, object)
            array = np.array([self._time(c) for c in cells.ravel()]).reshape(
                cells.shape
            )
        times = array.astype("datetime64[us]")
        if self._missing is None and np.isnat(times).any():
            self._known_missing()
        # NaT becomes the least integer, which is what stands for a missing date in graphs.
        return times.astype(np.int64)

    def _time(self, cell: Any) -> np.datetime64:
        if _is_missing(cell) or (isinstance(cell, str) and is_missing_number(cell)):
            return np.datetime64("NaT", "us")
        try:
            # To NumPy, True is a number and bytes are text; to feature columns, no dates.
            if isinstance(cell, bool | np.bool_ | bytes):
                raise TypeError(cell)
            cell = without_zone(cell)
            # datetime64 takes a number with its unit only.
            is_number = isinstance(cell, int | np.integer)
            time = np.datetime64(cell, "us") if is_number else np.datetime64(cell)
            return time.astype("datetime64[us]")
        except (TypeError, ValueError, OverflowError):
            raise TypeError(
                f"The feature {self.name!r} takes dates, also as texts in ISO form; got "
                f"{shortened(cell)} of type {type(cell).__name__}."
            ) from None

    def _check_columns(self, values: Any) -> None:
        """Raise an error that names a column of a table, which a user knows."""
        array = np.asarray(values, dtype=object)
        if self.columns is None or array.shape[1:] != (len(self.columns),):
            return
        spec = {"dtype": self.dtype, "shape": [None], "missing": self._missing}
        for name, cells in zip(self.columns, array.T, strict=True):
            Feature(name, spec).feed(cells)

    def _padded(self, values: Any) -> Any:
        """Fill lists in cells up to the longest."""
        if isinstance(values, np.ndarray) and values.ndim > 1:
            if self._delimiter is None:
                return values
            values = values.tolist()  # lists, of which each text may be several values
        # An engine takes rectangles only; the graph tells padding by the value that fills.
        rows = [self._items(cell) for cell in values]
        width = max(map(len, rows), default=0)
        if width == 0:
            return np.empty(
                (len(rows), 0, *[size or 0 for size in self.shape[2:]]), object
            )
        # Vectors in lists have the sizes behind the free one.
        fill: Any = self._missing
        for size in reversed(self.shape[2:]):
            fill = [fill] * (size or 0)
        return [row + [fill] * (width - len(row)) for row in rows]

    def check_weights(self, weights: Any, values: Any, of: "Feature") -> None:
        """Raise ValueError unless each row has a weight for each of its values."""
        # Lists of different lengths are filled up, and the graph can't tell any more.
        for row, (own, others) in enumerate(zip(weights, values, strict=False)):
            n_weights, n_values = len(self._items(own)), len(of._items(others))
            # Beside a missing value, a weight does not count.
            if n_weights != n_values and (n_weights, n_values) != (1, 0):
                raise ValueError(
                    f"The feature {self.name!r} must have a weight for each value of "
                    f"{of.name!r}; in row {row} it has {n_weights} for {n_values} values."
                )

    def row_size(self, values: Any) -> int:
        """Return how many values a row has once its lists are filled up."""
        sizes = [size or 1 for size in self.shape[1:]]
        if None in self.shape[1:]:
            sizes[0] = max((len(self._items(cell)) for cell in values), default=0)
        return math.prod(sizes)

    def one_row(self) -> NDArray[Any]:
        """Return a row of zeros or empty texts, with one item in its lists."""
        is_text = self.dtype == "string"
        shape = (1, *(size or 1 for size in self.shape[1:]))
        return np.full(shape, "" if is_text else 0, object if is_text else self.dtype)

    def _items(self, cell: Any) -> list[Any]:
        if isinstance(cell, str):
            return self._parts(cell) if cell else []
        cell = _as_python(cell)
        if isinstance(cell, list | tuple | np.ndarray):
            if self._delimiter is None:
                return list(cell)
            return [part for item in cell for part in self._parts(item)]
        return [] if _is_missing(cell) else self._parts(cell)

    def _parts(self, value: Any) -> list[Any]:
        """Split a text, of which there may be several in a cell."""
        if self._delimiter is not None and (isinstance(value, str) or _is_named(value)):
            return split_text(str(value), self._delimiter)
        return [value]

    def _texts(self, values: Any) -> NDArray[Any]:
        array = np.asarray(values, dtype=object)
        cells = array.ravel().tolist()
        # Most often there are only texts, of which none is looked at in Python then.
        if set(map(type, cells)) - {str}:
            cells = [cell if type(cell) is str else self._text(cell) for cell in cells]
        # A set: columns of numbers in texts repeat, and each check costs a float().
        if self._numbers_only:
            read = {cell: self._number_text(cell) for cell in set(cells)}
            cells = [read[cell] for cell in cells]
        if self._are_booleans and not OF_BOOLEANS.isdisjoint(cells):
            wrong = next(cell for cell in cells if cell in OF_BOOLEANS)
            raise ValueError(
                f"The feature {self.name!r} takes True and False; got the text "
                f"{wrong!r}, which is neither. Convert it as for the training."
            )
        try:
            # All at once: a lone surrogate is rare, and a call for each cell takes time.
            "".join(cells).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The feature {self.name!r} has a text that is no Unicode: {error}."
            ) from None
        return _objects(cells, array.shape)

    def _number_text(self, text: str) -> str:
        """Return a number as a graph reads it, which would read "12 rooms" as 12."""
        if text in BLANKS:
            self._known_missing()
            return text
        try:
            number = float(text)
        except ValueError:
            number = math.inf
        if math.isinf(number):
            raise ValueError(
                f"The feature {self.name!r} takes numbers, written as texts; got "
                f"{shortened(text)}."
            )
        if is_plain_number(text):
            return text
        # As categories, both are unknown: fit makes none of what graphs do not read.
        return f"{0.0 if abs(number) < sys.float_info.min else number:.17e}"

    def _text(self, cell: Any) -> str:
        if isinstance(cell, str):
            return str(cell)
        if _is_missing(cell):
            return str(self._known_missing())
        is_integer = isinstance(cell, int | np.integer)
        is_number = is_integer or isinstance(cell, float | np.floating)
        if self._are_booleans and is_number and cell in (0, 1):
            return str(bool(cell))
        if _is_named(cell) or (is_integer and not self._texts_only):
            return str(cell)  # as feature columns do
        raise TypeError(
            f"The feature {self.name!r} takes texts; got {shortened(cell)} of type "
            f"{type(cell).__name__}. Convert it as it was converted for the training."
        )

    def _numbers(self, values: Any) -> NDArray[Any]:
        # In an array of texts each would take as much memory as the longest.
        try:
            array = np.asarray(values, dtype=object if _has_texts(values) else None)
            # Vectors in the cells of a frame: NumPy looks into them in a list only.
            if array.ndim == 1 and array.dtype == object and self._is_vector:
                values = array.tolist()
                array = np.asarray(values)
        except ValueError:
            raise ValueError(
                f"The feature {self.name!r} must have as many values in each row; got "
                f"lists of several lengths, {shortened(values)}."
            ) from None
        is_float = self.dtype.startswith("float")
        # With gaps, pandas, polars and Arrow give floats for large integers, too.
        is_inexact = not is_float and array.dtype.kind == "f"
        is_inexact = is_inexact and bool((np.abs(array) >= _EXACT_INTEGERS).any())
        if is_inexact and not isinstance(values, np.ndarray):
            values = _as_python(values)
            array = np.asarray(values, dtype=object)
        try:
            if array.dtype.kind not in "biuf":
                cells = np.asarray(values, dtype=object)
                numbers = [self._number(cell) for cell in cells.ravel().tolist()]
                array = _objects(numbers, cells.shape)
            if not is_float:
                return self._whole(array)
            if self._integers_only:
                self._refuse_booleans(array)
            # First as Python has them, of which float32 is made as for the training.
            array = array.astype(np.float64) if array.dtype == object else array
            if array.dtype != self.dtype:
                with np.errstate(over="ignore"):  # it becomes infinite, and is refused
                    array = array.astype(self.dtype)
            if self._integers_only:
                self._check_integers(array)
            return array if np.isfinite(array).all() else self._finite(array)
        except OverflowError:
            raise ValueError(
                f"The feature {self.name!r} holds a number that is too large for a "
                "float. Scale it as for the training."
            ) from None

    def _known_missing(self) -> Any:
        if self._missing is None:
            raise ValueError(
                f"The feature {self.name!r} has a missing value, and was trained "
                "without. Fill it first."
            )
        return self._missing

    def _number(self, cell: Any) -> Any:
        if _is_missing(cell):
            return self._known_missing()
        if isinstance(cell, bool | int | float | np.number | np.bool_):
            return cell
        if isinstance(cell, str) and is_missing_number(cell):
            return self._known_missing()
        try:
            # What float() makes of decimals and the like; it would read texts, too, which
            # most columns refuse for numbers.
            if self._from_texts or not isinstance(cell, str | bytes):
                return float(cell)
        except (TypeError, ValueError):
            pass
        also = ", also as texts" if self._from_texts else ""
        raise TypeError(
            f"The feature {self.name!r} takes numbers{also}; got {shortened(cell)} of type "
            f"{type(cell).__name__}."
        )

    def _finite(self, array: NDArray[Any]) -> NDArray[Any]:
        """Refuse what feature columns refuse, and a graph cannot."""
        if np.isinf(array).any():
            raise ValueError(
                f"The feature {self.name!r} holds infinity (inf), which is never allowed."
            )
        if self._missing is None and np.isnan(array).any():
            self._known_missing()
        return array

    def _refuse_booleans(self, array: NDArray[Any]) -> None:
        # In an array of objects, booleans are equal to 0 and 1 and would pass as such.
        is_object = array.dtype == object
        kinds = set(map(type, array.ravel().tolist())) if is_object else set()
        if array.dtype.kind == "b" or kinds & {bool, np.bool_}:
            raise TypeError(
                f"The feature {self.name!r} takes whole numbers; got booleans, which are "
                "other categories to feature columns. Convert them as for the training."
            )

    def _check_integers(self, array: NDArray[Any]) -> None:
        there = array[np.isfinite(array)]
        # Beyond, other integers have become the same float.
        wrong = there[(there != np.floor(there)) | (np.abs(there) >= _EXACT_INTEGERS)]
        if len(wrong):
            raise ValueError(
                f"The feature {self.name!r} takes whole numbers below 2**53, which are "
                f"categories, too; got {wrong[0]}. Convert it as for the training."
            )

    def _whole(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return whole numbers as the feature's dtype; refuse what it can't hold."""
        self._refuse_booleans(array)
        if array.dtype.kind == "f" and np.isnan(array).any():
            array = array.astype(object)
            # NaN is the only value that differs from itself; no integer stands for it.
            array[array != array] = self._known_missing()
        with np.errstate(invalid="ignore"):
            try:
                whole = array.astype(self.dtype)
            except OverflowError:
                whole = np.zeros(array.shape, self.dtype)
        # Compared after the cast: this finds fractions and what does not fit the type.
        if not np.all(whole == array):
            first = array[np.asarray(whole != array, bool)].ravel().tolist()[0]
            raise ValueError(
                f"The feature {self.name!r} takes whole numbers of dtype {self.dtype}; "
                f"got {shortened(first)}."
            )
        return whole

    def _shaped(self, array: NDArray[Any]) -> NDArray[Any]:
        rank = len(self.shape)
        # A column of a frame has no axis for its cell; a tensor may have one too many.
        if array.ndim == rank - 1:
            array = array[..., np.newaxis]
        elif array.ndim == rank + 1 and array.shape[-1] == 1:
            array = array[..., 0]
        # The usual case at once: one row takes about .1 ms in all.
        if self.shape[0] is None and array.shape[1:] == self.shape[1:]:
            return array
        if array.ndim != rank or not all(
            size in (None, found)
            for size, found in zip(self.shape, array.shape, strict=True)
        ):
            sizes = ("any" if size is None else str(size) for size in self.shape)
            raise ValueError(
                f"The feature {self.name!r} has the shape ({', '.join(sizes)}); got "
                f"{array.shape}."
            )
        return array


def _objects(cells: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(len(cells), object)
    array[:] = cells
    return array.reshape(shape)


def _has_texts(values: Any) -> bool:
    kinds = set(map(type, values)) if isinstance(values, list | tuple) else set()
    return str in kinds or (list in kinds and any(map(_has_texts, values)))


def _is_named(cell: Any) -> bool:
    """Tell whether a cell is a boolean or an interval, whose text is a category."""
    # By its name, for pandas need not be there to read values.
    return isinstance(cell, bool | np.bool_) or type(cell).__name__ == "Interval"


def _is_missing(cell: Any) -> bool:
    # By the names of their classes: pandas, which has them, need not be installed.
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating) and bool(cell != cell)
