# SPDX-License-Identifier: Apache-2.0
"""The cells of one raw column, read as numbers or as categories.

Raw cells come as a NumPy array, or as a pandas Series if they are from a DataFrame. The
difference matters once: a DataFrame stores integers with gaps as floats, so floats of a
Series may stand for integers, and floats of an array may not.

Cells that are lists are taken apart to be read, and padded to a rectangle.
"""

from collections.abc import Hashable, Sequence
from decimal import Decimal
from itertools import chain
from numbers import Real
from reprlib import repr as shown
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_hashable, is_numeric_dtype

from skest.core.checks import warn
from skest.core.texts import is_missing_number, split_text

Cells = np.ndarray | pd.Series

#: What False and True are as categories.
BOOLEANS = np.array(["False", "True"], dtype=object)

# Floats hold every integer up to here, and not every one beyond.
_EXACT_INTEGERS = 2.0**53
_NUMBERS_AMONG_OBJECTS = ("integer", "floating", "mixed-integer-float", "decimal")
TIMES_AMONG_OBJECTS = ("date", "datetime", "period", "time", "timedelta")


class Factorized(NamedTuple):
    """Cells as positions among their distinct values.

    Attributes
    ----------
    codes : ndarray of int64, of the shape of the cells
        Position in `distinct`, or -1 for a missing cell (None, NaN, pd.NA, "").
    distinct : ndarray of shape (n_distinct,)
        Either int64, or str with dtype object; all occur in cells, or are "".
    """

    codes: np.ndarray
    distinct: np.ndarray

    @property
    def are_strings(self) -> bool:
        """Whether there are distinct values and they are strings."""
        return self.distinct.dtype == object and len(self.distinct) > 0

    @property
    def are_integers(self) -> bool:
        """Whether there are distinct values and they are integers."""
        return self.distinct.dtype != object and len(self.distinct) > 0

    @property
    def example(self) -> str | int:
        """One of the distinct values."""
        return self.distinct[:1].tolist()[0]


def as_array(values: Any) -> np.ndarray:
    """Turn a list into an array; strings become objects.

    NumPy turns a list of strings and numbers into strings without a word.
    """
    array = np.asarray(values)
    return np.asarray(values, dtype=object) if array.dtype.kind in "US" else array


def factorize(cells: Cells, key: Hashable) -> Factorized:
    """Read cells as categories: strings or integers, each distinct one judged once.

    Booleans and intervals become strings, "True" or "(1, 2]"; bytes are decoded as UTF-8.

    Parameters
    ----------
    cells : ndarray of shape (n_rows,) or (n_rows, n_values), or Series
        The raw cells.
    key : str or int
        Name of the column, for messages.

    Raises
    ------
    ValueError
        If the cells are neither strings nor integers, or a mix of them, or a string
        holds a lone surrogate.
    TypeError
        If a cell holds an object that cannot be a category, such as a dict.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import factorize
    >>> factorize(np.array(["b", "", "a", "b"]), "c").codes
    array([ 0, -1,  2,  0])
    """
    if cells.ndim > 2:
        raise ValueError(
            f"Column {key!r} must have one or two dimensions to be read as categories; "
            f"got shape {cells.shape}."
        )
    if cells.size == 1 and cells.dtype.kind == "O":  # as in a request, in a short way
        cell = (cells.array if isinstance(cells, pd.Series) else cells.flat)[0]
        if type(cell) is str and cell:
            check_unicode([cell], f"Column {key!r}")
            codes = np.zeros(cells.shape, np.int64)
            return Factorized(codes, np.array([cell], dtype=object))
    # pandas has codes already, and nothing need be hashed.
    if isinstance(cells.dtype, pd.CategoricalDtype):
        codes, distinct = _factorize_category(cells)
    else:
        codes, distinct = _factorize_plain(cells, key)
    values = _canonical(distinct, key, isinstance(cells, pd.Series))
    if values.dtype == object:
        codes = without(codes, np.flatnonzero(values == ""))
    return Factorized(codes.astype(np.int64, copy=False).reshape(cells.shape), values)


def _factorize_plain(cells: Cells, key: Hashable) -> tuple[np.ndarray, np.ndarray]:
    if cells.dtype.kind in "mMc":
        _refuse_kind(cells, key)
    if cells.dtype.kind == "f" and isinstance(cells, np.ndarray):
        if np.isnan(cells).all():  # a batch without a value
            return np.full(cells.size, -1), np.empty(0, dtype=object)
        raise ValueError(
            f"Column {key!r} holds floats of a NumPy array, not integer or string "
            "categories. Convert it, e.g. with .astype('int64'), or cut it into buckets "
            "with bucketized_column."
        )
    if cells.dtype.kind == "f":
        values: Any = numbers(cells, key)
    elif isinstance(cells.dtype, np.dtype):
        values = np.asarray(cells).ravel()
        if values.dtype.kind in "SUT":
            values = values.astype(object)
        elif not values.dtype.isnative:  # pandas refuses them
            values = values.astype(values.dtype.newbyteorder("="))
    else:
        # Not the Series, or pandas would make an Index of what is distinct.
        values = cells.array
    try:
        codes, distinct = pd.factorize(values)
    except (TypeError, NotImplementedError) as error:  # the second is pyarrow's
        wrong = next((cell for cell in values if not is_hashable(cell)), values[0])
        advice = (
            "Make lists of sets, e.g. with .map(sorted, na_action='ignore')."
            if isinstance(wrong, set | frozenset)
            else "Give each part of it a column of its own, e.g. with "
            "pandas.json_normalize."
        )
        raise TypeError(
            # "argument must be a string or a number": scikit-learn's checks want that.
            f"Column {key!r} holds {shown(wrong)} ({type(wrong).__name__}); a cell used "
            "as argument must be a string or an integer number, or a list of them. "
            f"{advice}"
        ) from error
    if values.dtype == object and len(distinct) and not isinstance(distinct[0], str):
        # True, 1 and 1.0 are one value when they are hashed.
        present = values[codes >= 0]
        if infer_dtype(present, skipna=False) != infer_dtype(distinct, skipna=False):
            _refuse_mix(present, key)
    return codes, np.asarray(distinct)


def _factorize_category(cells: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Take only categories that occur: a few rows may come with very many of them."""
    categories = cells.array.categories
    # As wide as positions are, once: else each look-up below would widen them anew.
    codes = cells.array.codes.astype(np.intp)
    occurs = np.zeros(len(categories) + 1, dtype=bool)
    occurs[codes] = True  # of missing cells, the last
    used = np.flatnonzero(occurs[:-1])
    if len(used) == len(categories):
        return codes, categories.to_numpy()
    places = np.full(len(occurs), -1)
    places[used] = np.arange(len(used))
    # The code of a missing cell, -1, wraps to the last place, which is -1 again.
    return places.take(codes, mode="wrap"), categories.take(used).to_numpy()


def _canonical(distinct: np.ndarray, key: Hashable, from_frame: bool) -> np.ndarray:
    """Distinct values as int64 or as str objects."""
    kind = distinct.dtype.kind
    # TensorFlow's vocabularies are of strings or integers; strings say which is which.
    if kind == "b":
        return BOOLEANS[distinct.astype(np.intp)]
    if kind == "f" and from_frame:
        # Integers with gaps, which a DataFrame of NumPy types stores as floats.
        distinct = distinct.astype(np.float64)  # half precision has no such number
        whole = np.isfinite(distinct) & (distinct == np.floor(distinct))
        if not whole.all():
            raise ValueError(
                f"Column {key!r} holds numbers that are not whole, such as "
                f"{distinct[~whole][0]}, where categories are expected. Use "
                "numeric_column (for lists, sequence_numeric_column), or "
                "bucketized_column to cut it into buckets."
            )
        large = abs(distinct) >= _EXACT_INTEGERS
        if large.any():
            raise ValueError(
                f"Column {key!r} holds the float {distinct[large][0]} among its "
                "categories, which is too large to be exact as a float: other integers "
                "may have become the same. Use dtype Int64, or strings."
            )
        return distinct.astype(np.int64)
    if kind in "iu":
        return _as_int64(distinct, key)
    if kind == "O":
        return _canonical_objects(distinct, key)
    _refuse_kind(distinct, key)


def _canonical_objects(distinct: np.ndarray, key: Hashable) -> np.ndarray:
    found = infer_dtype(distinct, skipna=False)
    if found in ("string", "empty"):
        check_unicode(distinct.tolist(), f"Column {key!r}")
        return distinct.astype(object, copy=False)
    if found == "integer":
        return _as_int64(distinct, key)
    if found in ("boolean", "interval"):  # intervals are what pandas.cut makes
        return np.array([str(value) for value in distinct], dtype=object)
    if found == "bytes":
        return np.array([_decoded(value, key) for value in distinct], dtype=object)
    if found in TIMES_AMONG_OBJECTS:
        _refuse_times(key, type(distinct[0]).__name__)
    _refuse_mix(distinct, key)


def _as_int64(distinct: np.ndarray, key: Hashable) -> np.ndarray:
    limits = np.iinfo(np.int64)
    # astype would wrap a uint64 beyond the range to another id without a word.
    for extreme in (distinct.min(), distinct.max()) if len(distinct) else ():
        if not limits.min <= extreme <= limits.max:
            raise ValueError(
                f"Column {key!r} holds the integer {shown(int(extreme))}, which is "
                "outside the range of int64. Convert the column to strings."
            )
    return distinct.astype(np.int64)


def _decoded(value: bytes, key: Hashable) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Column {key!r} holds bytes that are not UTF-8: {value!r}. Decode the "
            "column to str first."
        ) from error


def check_unicode(values: Sequence[str], owner: str) -> None:
    """Raise ValueError if a string cannot be written as UTF-8."""
    try:
        "".join(values).encode()
    except UnicodeEncodeError as error:
        wrong = next(v for v in values if any("\ud800" <= c <= "\udfff" for c in v))
        raise ValueError(
            f"{owner} holds {wrong!r}, which is not valid Unicode (it has a lone "
            "surrogate). Clean it, e.g. with value.encode('utf-8', 'replace').decode()."
        ) from error


def without(codes: np.ndarray, dropped: np.ndarray) -> np.ndarray:
    """Mark the cells of one distinct value as missing, if there is such a value."""
    return np.where(codes == dropped[0], -1, codes) if len(dropped) else codes


def numbers(cells: Cells, key: Hashable) -> np.ndarray:
    """Read cells as real numbers; missing ones become NaN.

    Parameters
    ----------
    cells : ndarray of shape (n_rows, ...), or Series
        The raw cells.
    key : str or int
        Name of the column, for messages.

    Returns
    -------
    ndarray of the same shape
        Of a boolean or integer dtype, or of floats of at most 64 bits. It may share
        memory with `cells`.

    Raises
    ------
    ValueError
        If the cells are strings, dates or complex numbers, or too large for a float.
    TypeError
        If a cell holds an object that is not a number.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.feature_columns.cells import numbers
    >>> numbers(pd.Series([1, None], dtype="Int64"), "x")
    array([ 1., nan])
    """
    if isinstance(cells, pd.Series):
        # Those of NumPy hold their NaN themselves, and need no search for gaps.
        is_extension = not isinstance(cells.dtype, np.dtype)
        if is_extension and is_numeric_dtype(cells.dtype) and cells.hasnans:
            values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            values = cells.to_numpy()
    else:
        values = cells
    if values.dtype.kind in "SUT":
        values = values.astype(object)
    # Of Python's own types, by pandas or CSV files; all else is judged by its dtype.
    if values.dtype.kind == "O":
        return _numbers_of_objects(values, key)
    if values.dtype.kind not in "biuf":
        _refuse_kind(values, key)
    if values.dtype.itemsize > 8:  # long doubles, of which torch knows nothing
        return values.astype(np.float64)
    return values


def warn_of_merged(values: np.ndarray, dtype: Any, key: Hashable) -> None:
    """Warn if a dtype of floats can't tell most of a column's integers apart.

    Parameters
    ----------
    values : ndarray
        Numbers of the column.
    dtype : dtype
        What they are to become.
    key : str or int
        Name of the column.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import warn_of_merged
    >>> warn_of_merged(2**20 + np.arange(5), "float32", "x")
    """
    dtype = np.dtype(dtype)
    if values.dtype.kind not in "iu" or dtype.kind != "f" or not values.size:
        return
    n_bits = np.finfo(dtype).nmant + 1  # up to 2 ** n_bits, all of them are held
    if max(int(values.max()), -int(values.min())) <= 2**n_bits:
        return
    # Timestamps lose some digits and nothing is lost; ids become alike, and a model
    # learns nonsense.
    n_distinct, n_left = (len(np.unique(v)) for v in (values, values.astype(dtype)))
    if 2 * n_left <= n_distinct:
        wider = "give dtype='float64', or " if dtype.itemsize < 8 else ""
        warn(
            f"Column {key!r} holds integers beyond 2**{n_bits}, most of which become alike "
            f"as {dtype}. If they name things, make categories of them, e.g. "
            f"X[{key!r}].astype('category'); if they count, {wider}subtract the least."
        )


def _numbers_of_objects(values: np.ndarray, key: Hashable) -> np.ndarray:
    missing = pd.isna(values)
    present = values[~missing]
    # The types are few, while there is a cell for every row.
    if any(issubclass(kind, str | bytes) for kind in set(map(type, present))):
        missing[~missing] = list(map(is_mark, present))  # as in a sheet of Excel
        present = values[~missing]
        texts = [value for value in present if isinstance(value, str | bytes)]
        if texts:
            # Of a CSV file, all are strings then, also numbers.
            read = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce")
            text = texts[int(read.isna().argmax())]
            raise ValueError(
                f"Column {key!r} must hold numbers; got the string {text!r}. Convert it "
                "with pandas.to_numeric, or use a categorical column."
            )
    if infer_dtype(present, skipna=False) in TIMES_AMONG_OBJECTS:
        _refuse_times(key, type(present[0]).__name__)
    # Decimals, fractions and Python's integers; the gaps stay NaN.
    result = np.full(values.shape, np.nan)
    try:
        result[~missing] = present.astype(np.float64)
    except OverflowError as error:
        reals: list[Any] = [value for value in present if isinstance(value, Real)]
        raise ValueError(
            f"Column {key!r} holds {shown(max(reals, key=abs))}, which is too large for "
            "a float. Scale the column, for example by taking logarithms."
        ) from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"Column {key!r} must hold real numbers: {error}.") from error
    return result


def holds_numbers(cells: Cells) -> bool:
    """Tell whether cells are numbers rather than categories; booleans are categories.

    Strings such as "n/a" may stand among numbers for missing ones.
    """
    if isinstance(cells.dtype, pd.CategoricalDtype):
        return False
    if cells.dtype.kind == "O" and not isinstance(cells.dtype, pd.StringDtype):
        values = np.asarray(cells).ravel()
        found = infer_dtype(values, skipna=True)
        if found.startswith("mixed"):  # decimals and fractions among others, and marks
            present = [v for v in values[~pd.isna(values)] if not is_mark(v)]
            kinds = set(map(type, present))
            return all(issubclass(k, Real | Decimal) and k is not bool for k in kinds)
        return found in _NUMBERS_AMONG_OBJECTS
    return cells.dtype.kind in "iuf"


def is_mark(cell: Any) -> bool:
    """Tell whether a cell is a string that stands for a missing number or date.

    Examples
    --------
    >>> from skest.feature_columns.cells import is_mark
    >>> is_mark("n/a"), is_mark("soon"), is_mark(None)
    (True, False, False)
    """
    return isinstance(cell, str) and is_missing_number(cell)


def _refuse_kind(cells: Any, key: Hashable) -> NoReturn:
    if cells.dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: column {key!r} has dtype {cells.dtype}. Split "
            "it into its real and imaginary parts."
        )
    if cells.dtype.kind in "mM":
        _refuse_times(key, f"dtype {cells.dtype}")
    raise ValueError(
        f"Column {key!r} must hold numbers, strings or booleans; got dtype {cells.dtype}."
    )


def _refuse_times(key: Hashable, kind: str) -> NoReturn:
    raise ValueError(
        f"Column {key!r} holds dates or durations ({kind}), which have no meaning as a "
        "feature by themselves. Derive numbers or categories from them first: "
        "parsed_numeric_column reads the month, the weekday or the hour of dates, and "
        "pandas makes dates of periods by .dt.to_timestamp(), and numbers of durations by "
        ".dt.total_seconds()."
    )


def _refuse_mix(distinct: np.ndarray, key: Hashable) -> NoReturn:
    kinds = {type(value): value for value in distinct[::-1]}
    examples = " and ".join(f"{shown(v)} ({k.__name__})" for k, v in kinds.items())
    raise ValueError(
        f"Column {key!r} must hold either strings or integers only; got {examples}. "
        "Convert the column to one type: pandas.to_numeric(column, errors='coerce') makes "
        "gaps of words, .astype(str) makes words of numbers."
    )


# Cells that hold several values.
_LISTS = (list, tuple, np.ndarray, pd.Series, pd.Index)
_NEVER_LISTS = pd.CategoricalDtype | pd.StringDtype


class Flat(NamedTuple):
    """The values of all cells, one after the other.

    Attributes
    ----------
    values : Series, or ndarray of shape (n_values, ...)
        Values of the first cell, of the second and so on.
    lengths : ndarray of int64, shape (n_rows,)
        How many of them each cell has.
    """

    values: Cells
    lengths: np.ndarray


def as_cells(values: Any) -> np.ndarray:
    """Turn the values of a column, such as a list, into an array; lists stay lists.

    Examples
    --------
    >>> from skest.feature_columns.cells import as_cells
    >>> as_cells([["a", "b"], ["c", "d"]])
    array([list(['a', 'b']), list(['c', 'd'])], dtype=object)
    """
    if isinstance(values, list | tuple):
        if any(issubclass(kind, _LISTS) for kind in set(map(type, values))):
            return np.fromiter(values, dtype=object, count=len(values))
    return as_array(values)


def holds_lists(cells: Cells) -> bool:
    """Tell whether cells are lists, tuples or arrays, by the first one not missing."""
    if (
        cells.ndim != 1
        or cells.dtype.kind != "O"
        or isinstance(cells.dtype, _NEVER_LISTS)
    ):
        return False
    # By the first cell: to look at all would take as long as to read them. Others are
    # refused when they are taken apart.
    present = (cell for cell in cells if isinstance(cell, _LISTS) or not pd.isna(cell))
    return isinstance(next(present, None), _LISTS)


def flatten(cells: Cells, key: Hashable) -> Flat:
    """Take cells that are lists apart; a missing cell is an empty list.

    Parameters
    ----------
    cells : ndarray of shape (n_rows,), or Series
        Lists, tuples or arrays. Their elements may be arrays or lists again, all of one
        shape.
    key : str or int
        Name of the column, for messages.

    Returns
    -------
    Flat
        The values are a Series, whatever `cells` is: a gap in a list of integers makes
        floats of them, as in a DataFrame.

    Raises
    ------
    ValueError
        If a cell is no list, or elements that are lists differ in shape.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import flatten
    >>> values, lengths = flatten(np.array([["a", "b"], None, ["c"]], dtype=object), "c")
    >>> values.tolist(), lengths.tolist()
    (['a', 'b', 'c'], [2, 0, 1])
    """
    objects = np.asarray(cells, dtype=object)
    present = np.flatnonzero(~pd.isna(objects))
    lists = objects[present].tolist()
    if not all(issubclass(kind, _LISTS) for kind in set(map(type, lists))):
        single = next(cell for cell in lists if not isinstance(cell, _LISTS))
        raise ValueError(
            f"Column {key!r} holds lists, but also {single!r}, which is none. Make every "
            f"cell a list, here [{single!r}]."
        )
    lengths = np.zeros(len(objects), dtype=np.int64)
    lengths[present] = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    return Flat(_joined([cell for cell in lists if len(cell)], key), lengths)


def _joined(lists: Sequence[Any], key: Hashable) -> Cells:
    try:
        # Arrays keep their types; numbers taken out of them one by one would be
        # objects.
        if set(map(type, lists)) == {np.ndarray}:
            values: Any = np.concatenate([_as_objects(cell) for cell in lists])
            if values.ndim > 1:
                return values
        else:
            values = list(chain.from_iterable(lists))
        series = pd.Series(values, dtype=None if len(values) else object)
        return np.array(series.tolist()) if holds_lists(series) else series
    except UnicodeEncodeError:  # pandas cannot hold it; `factorize` says what it is
        return pd.Series(values, dtype=object)
    except ValueError as error:
        raise ValueError(
            f"Column {key!r} holds lists of lists, or of arrays, that differ in shape. "
            "Every step of a sequence must have the same number of values."
        ) from error


def _as_objects(cell: np.ndarray) -> np.ndarray:
    # NumPy joins strings and numbers to strings without a word, objects it leaves alone.
    return cell.astype(object) if cell.dtype.kind in "SUT" else cell


def pad(values: np.ndarray, lengths: np.ndarray, fill: float) -> np.ndarray:
    """Return values cell by cell in an array of shape (n_rows, n_steps, ...).

    Parameters
    ----------
    values : ndarray of shape (n_values, ...)
        Values of all cells, one after the other.
    lengths : ndarray of int64, shape (n_rows,)
        How many of them each cell has. The longest is `n_steps`, which is at least 1.
    fill : float
        What stands behind the end of shorter cells.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import pad
    >>> pad(np.array([5, 6, 7]), np.array([2, 0, 1]), -1)
    array([[ 5,  6],
           [-1, -1],
           [ 7, -1]])
    """
    n_steps = max(1, lengths.max())
    shape = (len(lengths), n_steps, *values.shape[1:])
    padded = np.full(shape, fill, dtype=values.dtype)
    # As tf.sparse.to_dense: behind the end of a row there is `fill`.
    padded[np.arange(n_steps) < lengths[:, np.newaxis]] = values
    return padded


def lengths_of(present: np.ndarray) -> np.ndarray:
    """Return the length of each row up to its last value.

    Parameters
    ----------
    present : ndarray of bool, shape (n_rows, n_values)
        Whether there is a value.

    Returns
    -------
    ndarray of int64, shape (n_rows,)

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import lengths_of
    >>> lengths_of(np.array([[True, False, True, False], [False] * 4]))
    array([3, 0])
    """
    # Gaps inside of a sequence are steps; only those behind the last value are padding.
    positions = np.arange(1, present.shape[1] + 1)
    return np.where(present, positions, 0).max(axis=1)


def split(cells: Factorized, delimiter: str, key: Hashable) -> Factorized:
    """Split cells that are strings into several values, each distinct cell once.

    Parameters
    ----------
    cells : Factorized
        One string in each cell; codes of shape (n_rows,) or (n_rows, 1).
    delimiter : str
        What stands between two values; see `skest.core.texts.split_text`.
    key : str or int
        Name of the column, for messages.

    Returns
    -------
    Factorized
        Codes of shape (n_rows, n_values), with -1 for empty values and behind the end
        of shorter cells.

    Raises
    ------
    ValueError
        If the cells are integers, or hold several values already.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import factorize
    >>> from skest.feature_columns.cells import split
    >>> cells = factorize(np.array(["a|b", "", "b"]), "c")
    >>> split(cells, "|", "c").codes
    array([[ 0,  1],
           [-1, -1],
           [ 1, -1]])
    """
    # Nothing could be split there: the option is a mistake, and would be ignored
    # silently.
    if cells.are_integers or cells.codes.size > len(cells.codes):
        found = "integers" if cells.are_integers else "several values in a cell"
        raise ValueError(
            f"Column {key!r} must hold one string in each cell, because its feature "
            f"column has delimiter={delimiter!r}; got {found}. Leave 'delimiter' out, or "
            "convert the column with .astype(str)."
        )
    if len(cells.distinct) == 0:
        return cells
    lists = [split_text(text, delimiter) for text in cells.distinct]
    values = np.array(list(chain.from_iterable(lists)), dtype=object)
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    codes, distinct = factorize(values, key)
    rows = pad(codes, lengths, -1)
    missing = np.full((1, rows.shape[1]), -1)
    return Factorized(np.concatenate([rows, missing])[cells.codes.ravel()], distinct)
