# SPDX-License-Identifier: Apache-2.0
"""What is written in a text: values between delimiters, a date, a number or a boolean."""

import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

#: A date as a string that is read without being asked to.
DATE = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(?P<offset>[+-]\d\d(:?\d\d)?)?)?"
    r"(Z|\+00:00)?",
    re.ASCII,
)


def without_zone(cell: Any) -> Any:
    """Return a date or a string in UTC and without its time zone; all else as it is.

    Raises
    ------
    ValueError
        If a string is neither a `DATE` nor a missing one ("" or "NaT"), or one with an
        offset leaves the years 1 to 9999.

    Examples
    --------
    >>> from skest.core.texts import without_zone
    >>> without_zone("2026-01-31T00:30+02:00")
    datetime.datetime(2026, 1, 30, 22, 30)
    >>> without_zone("2026-01-31Z")
    '2026-01-31'
    """
    if isinstance(cell, str):
        # NumPy takes "20260131" for a year, and reads the clock for "now".
        found = DATE.fullmatch(cell)
        if found is None and cell not in ("", "NaT"):
            raise ValueError(f"{cell!r} is no date")
        # UTC is what comes out anyway: no datetime is made of such a string.
        cell = cell.removesuffix("Z").removesuffix("+00:00")
        if found and found["offset"] and cell.endswith(found["offset"]):
            cell = datetime.fromisoformat(cell)
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        try:
            # NumPy's datetime64 has no time zones.
            return cell.astimezone(UTC).replace(tzinfo=None)
        except OverflowError as error:
            raise ValueError(str(error)) from None
    return cell


def is_plain_number(text: str) -> bool:
    """Tell whether the graph of an export reads a number as `float` does.

    It fails at digits of other scripts.

    Examples
    --------
    >>> from skest.core.texts import is_plain_number
    >>> [is_plain_number(text) for text in ("1e3 ", "1_000", "1e-400")]
    [True, False, False]
    """
    is_zero = not any(digit in text for digit in "123456789")
    is_read = is_zero or not abs(float(text)) < sys.float_info.min
    return is_read and text.rstrip().isascii() and "_" not in text


#: What stands for a missing number, in CSV files and in tables of other programs. Words
#: do not: beside codes such as "0" and "1", "unknown" is one more of them.
NO_NUMBERS = (
    *("?", "-", "--", ".", "..", "NULL", "null", "None"),
    *("NA", "na", "N/A", "n/a", "n.a.", "#N/A", "#NA", "<NA>"),
)


def is_missing_number(text: str) -> bool:
    """Tell whether a string is blank, or one of `NO_NUMBERS`.

    Examples
    --------
    >>> from skest.core.texts import is_missing_number
    >>> [is_missing_number(text) for text in (" ", ".", "NA ", "0", "none of them")]
    [True, True, True, False, False]
    """
    stripped = text.strip()
    return not stripped or stripped in NO_NUMBERS


#: What other programs write for True and False.
OF_BOOLEANS = frozenset(
    form(word)
    for word in ("true", "false", "t", "f", "yes", "no", "y", "n", "1", "0")
    for form in (str, str.upper, str.title)
) - {"True", "False"}

#: The delimiter that stands for the words of a text.
WORDS = r"\w+"
#: Characters of Chinese and Japanese, which have no spaces between words.
UNSPACED = "々\u3041-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_RUN = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_ANY_UNSPACED, _UNSPACED = map(re.compile, (f"[{UNSPACED}]", f"[{UNSPACED}]{{2,}}"))


def split_text(text: str, delimiter: str) -> list[str]:
    r"""Return the parts of a text between delimiters; of ``r"\w+"``, its words.

    Words are in lower case, without what stands between them. Of Chinese and Japanese,
    they are pairs of neighbouring characters, as in Lucene's ``CJKAnalyzer``.

    Examples
    --------
    >>> from skest.core.texts import split_text
    >>> split_text("a||b", "|"), split_text("Well, it's OK!", r"\w+")
    (['a', '', 'b'], ['well', 'it', 's', 'ok'])
    >>> split_text("北京大学, 2026", r"\w+")
    ['北京', '京大', '大学', '2026']
    """
    if delimiter != WORDS:
        return text.split(delimiter)
    if text.isascii() or not _ANY_UNSPACED.search(text):
        return re.findall(WORDS, text.lower())
    return [
        word
        for run in _RUN.findall(text.lower())
        for word in (map("".join, pairwise(run)) if _UNSPACED.match(run) else [run])
    ]


def joined_text(parts: Iterable[str], delimiter: str) -> str:
    """Return a text that has these parts."""
    return (" " if delimiter == WORDS else delimiter).join(parts)
