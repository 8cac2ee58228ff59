# SPDX-License-Identifier: Apache-2.0
"""`parsed_numeric_column`: numbers that are written as strings, and parts of dates."""

import re
from collections.abc import Callable, Hashable
from datetime import date
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from pandas.api.types import is_hashable

from skest.core.checks import check_choice, warn
from skest.core.texts import DATE, is_missing_number, without_zone
from skest.feature_columns.cells import Cells, is_mark, numbers
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.table import Key, Table

_DATE_PARTS = ("seconds", "month", "weekday", "hour", "day_of_year")
_SEASONS = ("month", "day_of_year")
_CODE = re.compile(r"\s*[+-]?0\d")  # a leading zero makes a code of it, as in "01234"
# Nanoseconds, as of pandas, end in 2262, and dates such as 9999-12-31 are common.
_TIME = np.dtype("datetime64[us]")
_UTC = ("UTC", "UTC+00:00", "+00:00", "Etc/UTC", "Etc/GMT", "GMT", "Zulu")


def parsed_numeric_column(
    key: Key,
    parse: str = "number",
    *,
    default_value: float | str | None = None,
    dtype: str = "float64",
    normalizer: str | Callable[[np.ndarray], np.ndarray] | None = None,
    indicate_missing: bool | str = False,
) -> "ParsedColumn":
    """Numbers that are written as strings, or a part of dates.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array or frame.
    parse : str, default="number"
        "number" reads strings such as " 3.5"; blanks and marks such as "?", ".", "-",
        "NA", "n/a" and "NULL" are missing. "seconds" gives
        the seconds since 1970 of dates and times, "month" 1 to 12, "weekday" 0 (Monday)
        to 6, "hour" 0 to 23, "day_of_year" 1 to 366. Dates are those of NumPy, pandas
        and Python, or strings in ISO form, with the day, and hours with their minutes
        ("2026-01-31", "2026-01-31 12:30"); with a time zone they are taken in UTC. The
        same marks are missing dates.
    default_value, dtype, normalizer, indicate_missing
        As in `numeric_column`.

    Returns
    -------
    ParsedColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Examples
    --------
    >>> from skest.feature_columns import parsed_numeric_column
    >>> column = parsed_numeric_column("when", "month")
    >>> column.transform({"when": ["2026-01-31", "2026-12-01T08:30"]})
    array([[ 1.], [12.]])
    """
    return ParsedColumn(
        key, parse, default_value, dtype, normalizer, indicate_missing
    ).validated()


class ParsedColumn(NumericColumn):
    """Column made by `parsed_numeric_column`, where the parameters are documented.

    The attributes that it learns are those of `NumericColumn`.
    """

    shape = (1,)  # no parameter: a string is one number

    def __init__(
        self,
        key: Key,
        parse: str = "number",
        default_value: float | str | None = None,
        dtype: str = "float64",
        normalizer: str | Callable[[np.ndarray], np.ndarray] | None = None,
        indicate_missing: bool | str = False,
    ) -> None:
        self.key = key
        self.parse = parse
        self.default_value = default_value
        self.dtype = dtype
        self.normalizer = normalizer
        self.indicate_missing = indicate_missing

    @property
    def name(self) -> str:
        """The key; of a part of dates, with it behind."""
        return str(self.key) if self.parse == "number" else f"{self.key}_{self.parse}"

    def _validate(self) -> None:
        super()._validate()
        owner = f"parsed numeric column {self.key!r}"
        check_choice(self.parse, "parse", owner, ("number", *_DATE_PARTS))

    def _learn(self, table: Table) -> dict[str, Any]:
        learned = super()._learn(table)
        if self.parse != "number":
            learned["has_zone_"] = _has_zone_of(table, self.key)
        return learned

    def _raw(self, table: Table) -> np.ndarray:
        cells = table.cells(self.key)
        if self.parse != "number":
            times = _times_of(table, self.key)  # first, for it refuses by name
            known = vars(self).get("has_zone_")
            if known is not None and _has_zone_of(table, self.key) not in (None, known):
                warn(
                    f"Column {self.key!r} had dates with{'out' * (not known)} a time zone "
                    f"in fit, and has dates with{'out' * known} one now. Those without are "
                    "taken for UTC. Let all have one, or none."
                )
            return _part(times, self.parse)
        # Of a CSV file that is read in parts, some may hold nothing but numbers.
        if cells.dtype.kind in "biuf":
            return numbers(cells, self.key)
        # Once for the number and for the piecewise-linear column beside it.
        parse = partial(_parsed, cells, self.key, _number, np.dtype(np.float64))
        return table.learned(("parsed numbers", self.key), parse)


def _has_zone_of(table: Table, key: Key) -> bool | None:
    # Each part asks, as in `_times_of`.
    return table.learned(("has zone", key), partial(_has_zone, table.cells(key)))


def _has_zone(cells: Cells) -> bool | None:
    """Tell whether dates have a time zone, by the first of them.

    None if nothing says so: in UTC it may be left out.
    """
    if isinstance(cells, pd.Series) and cells.dtype.kind == "M":
        dtype: Any = getattr(cells.dtype, "pyarrow_dtype", cells.dtype)
        zone = getattr(dtype, "tz", None)
    else:
        values = np.asarray(cells).ravel()
        known = np.flatnonzero(~pd.isna(values))
        first = values[known[0]] if len(known) else ""
        zone = getattr(first, "tzinfo", None)
        if isinstance(first, str):
            # Of a day, a zone says nothing.
            if ":" not in first or first.endswith(("Z", "+00:00")):
                return None
            zone = without_zone(first) if without_zone(first) != first else None
    return None if str(zone) in _UTC else zone is not None


def are_numbers(distinct: np.ndarray) -> bool:
    """Tell whether all distinct strings are numbers or missing, and none is a code."""
    texts = [text for text in distinct.tolist() if not is_missing_number(text)]
    try:
        return bool(texts) and not any(
            # "inf" and "1e999" would be read, and then refused as infinite.
            _CODE.match(text) or np.isinf(_number(text))
            for text in texts
        )
    except ValueError:
        return False


def are_whole(distinct: np.ndarray) -> bool:
    """Tell whether strings that are numbers or missing are whole numbers."""
    values = np.array([_number(text) for text in distinct.tolist()])
    return bool((values[~np.isnan(values)] % 1 == 0).all())


def are_dates(cells: Cells) -> bool:
    """Tell whether cells are dates, or strings in ISO form, or marks of missing ones."""
    if cells.ndim > 1 or cells.dtype.kind not in "OU":
        return cells.ndim == 1 and cells.dtype.kind == "M"
    values = np.asarray(cells, dtype=object)
    present = values[~pd.isna(values)]
    # Mostly the first cell says that they are none, and the others are not looked at.
    first = next((cell for cell in present if not is_mark(cell)), None)
    if not _is_date(first):
        return False
    return all(_is_date(c) or is_mark(c) for c in pd.unique(present).tolist())


def varying_parts(table: Table, key: Key) -> list[str]:
    """Return the parts of dates that vary; of a single date, its seconds.

    Raises
    ------
    ValueError
        If a cell is no date.
    """
    times = _times_of(table, key)
    # Each time once: a million rows have few days.
    times = np.unique(times[~np.isnat(times)])
    if not len(times):
        return []
    # Later, a season that no row is of would be beyond all that was learned.
    has_all = len(np.unique(_part(times, "month"))) == 12
    return [
        part
        for part in _DATE_PARTS
        if part == "seconds"
        or (
            len(np.unique(_part(times, part))) > 1 and (has_all or part not in _SEASONS)
        )
    ]


def _is_date(cell: Any) -> bool:
    is_text = isinstance(cell, str)
    return DATE.fullmatch(cell) is not None if is_text else isinstance(cell, date)


def _parsed(
    cells: Cells, key: Hashable, parse: Callable[[Any], Any], dtype: np.dtype
) -> np.ndarray:
    """Return what becomes of cells, each distinct one parsed once."""
    values = np.asarray(cells, dtype=object)
    # A million rows have few days.
    try:
        codes, distinct = pd.factorize(values)
    except (TypeError, ValueError) as error:  # of lists, or of rows of an array
        wrong = next((cell for cell in values if not is_hashable(cell)), values[0])
        _refuse(wrong, key, dtype, error)
    # The code of a missing cell, -1, finds the last place.
    result = np.full(len(distinct) + 1, np.nan if dtype.kind == "f" else "NaT", dtype)
    for i, cell in enumerate(distinct.tolist()):
        try:
            result[i] = parse(cell)
        except (TypeError, ValueError) as error:
            _refuse(cell, key, dtype, error)
    return result[codes]


def _refuse(cell: Any, key: Hashable, dtype: np.dtype, error: Exception) -> NoReturn:
    what = "numbers" if dtype.kind == "f" else "dates in ISO form"
    raise ValueError(
        f"Column {key!r} must hold {what}, also as strings; got {cell!r}. Mend the cell, "
        "or use a categorical column."
    ) from error


def _number(cell: Any) -> float:
    if isinstance(cell, str) and is_missing_number(cell):
        return np.nan
    return float(cell)


def _times_of(table: Table, key: Key) -> np.ndarray:
    # Each part is a column of its own, and strings take long to read.
    return table.learned(("times", key), partial(_times, table.cells(key), key))


def _times(cells: Cells, key: Hashable) -> np.ndarray:
    """Return dates as microseconds, which hold every year that has four digits."""
    if isinstance(cells, pd.Series) and cells.dtype.kind == "M":
        if isinstance(cells.dtype, pd.ArrowDtype):
            cells = pd.to_datetime(cells.astype(object), utc=True)
        if cells.dt.tz is not None:
            cells = cells.dt.tz_convert("UTC").dt.tz_localize(None)
        return cells.to_numpy(dtype=_TIME)
    if cells.dtype.kind == "M":
        return np.asarray(cells).astype(_TIME)
    if cells.dtype.kind not in "OU":
        # An empty column of a file is one of NaN; all else is refused.
        if np.isnan(numbers(cells, key)).all():
            return np.full(len(cells), "NaT", _TIME)
        raise ValueError(
            f"Column {key!r} must hold dates; got dtype {cells.dtype}. Convert it with "
            "pandas.to_datetime."
        )
    return _parsed(cells, key, _time, _TIME)


def _time(cell: Any) -> np.datetime64:
    if not isinstance(cell, str | date | np.datetime64):
        raise TypeError(type(cell).__name__)
    cell = "NaT" if is_mark(cell) else without_zone(cell)
    return np.datetime64(cell).astype(_TIME)


def _part(times: np.ndarray, part: str) -> np.ndarray:
    """Return a part of dates as floats, for a missing one is NaN."""
    if part == "seconds":
        return np.where(np.isnat(times), np.nan, times.astype(np.int64) / 1e6)
    # pandas 4 has no other name for it.
    attribute = "day_of_week" if part == "weekday" else part
    found: np.ndarray = getattr(pd.DatetimeIndex(times), attribute).to_numpy(np.float64)
    return found
