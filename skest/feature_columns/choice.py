# SPDX-License-Identifier: Apache-2.0
"""`chosen_columns`: feature columns by a look at raw columns."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from skest.core.checks import warn
from skest.core.texts import (
    DATE,
    NO_NUMBERS,
    UNSPACED,
    WORDS,
    is_plain_number,
    split_text,
)
from skest.feature_columns.base import CategoricalColumn, FeatureColumn
from skest.feature_columns.categorical import (
    KeyedCategoricalColumn,
    categorical_column_with_hash_bucket,
)
from skest.feature_columns.cells import Cells, holds_numbers, is_mark, numbers
from skest.feature_columns.dense import embedding_column, indicator_column
from skest.feature_columns.matrix_parts import (
    MAX_INDICATOR_LEVELS,
    FlagsColumn,
    NumberedVocabularyPartColumn,
    NumericPartColumn,
    OneHotColumn,
    Parts,
    parts_of,
)
from skest.feature_columns.naming_numbers import are_names
from skest.feature_columns.numeric import NumericColumn, numeric_column
from skest.feature_columns.parsed import (
    are_dates,
    are_numbers,
    are_whole,
    parsed_numeric_column,
    varying_parts,
)
from skest.feature_columns.sequence import (
    SequenceCategoricalColumn,
    sequence_numeric_column,
    steps_of,
)
from skest.feature_columns.sparse_matrix import SparseMatrixColumn, stored_numbers
from skest.feature_columns.table import Key, Table
from skest.feature_columns.target_statistics import (
    target_ridge_column,
    target_statistics_column,
)
from skest.feature_columns.vocabulary import (
    NumberedVocabularyColumn,
    VocabularyListColumn,
    categorical_column_with_vocabulary_list,
)

#: Categories with more levels are hashed, in place of a vocabulary.
MAX_VOCABULARY_LEVELS = 50_000
#: Number of buckets for hashed categories.
HASH_BUCKET_SIZE = 100_000
#: Levels of an embedding that fewer rows have share a vector: rows of which little can be
#: learned (Micci-Barreca 2001 and Pargent et al. 2022 shrink them for the same reason).
RARE_LEVEL = 5
#: Share of the rows that train the vector of unknown levels, as in ml4ir.
UNKNOWN_RATE = 0.01
#: With fewer cells, all levels may differ by chance.
FEWEST_UNIQUE = 20
#: So many levels tell whether strings are numbers but for a few.
MOST_LOOKED_AT = 1000
#: Cells of more words on average are a text, if at least half of them differ; and those
#: of fewer, such as titles, if most cells are rare levels and most words are not.
MOST_WORDS, FEWEST_WORDS = 4, 2
#: So many cells tell whether they are texts.
MOST_TEXTS = 10_000
#: Integers are row numbers if they differ and fill at least so much of their range; with
#: less than all, for rows are held out.
ROW_NUMBER_SHARE, FEWEST_ROW_NUMBERS = 0.7, 100
#: With a smaller share of rows that differ, equal ones need not be repetitions. A
#: bootstrap has .63, and where the smaller of two classes is repeated, it is .5 at least.
MOST_REPEATED = 0.5
#: In a matrix of more columns, those of two values are kept apart.
MANY_COLUMNS = 64
#: Length of the vectors of the columns of a sparse matrix, if it has so many.
SPARSE_MATRIX_DIMENSION = 64
# Not "3f", nor "2026".
_WORD = re.compile(rf"[^\W\d_]\w{{2,}}|[{UNSPACED}]{{2}}")
_ABOUT_A_WORD = re.compile(rf"[{UNSPACED}]{{1,2}}|[^\s{UNSPACED}]+")
# Their values do not tell ids from numbers: distances of flights and zip codes look alike.
_LAST_WORD = "(^|[^A-Za-z]|(?<=[a-z])(?=[A-Z]))(?i:{})$"
_ID = re.compile(_LAST_WORD.format("id"))
_IDS = re.compile(_LAST_WORD.format("id|code|zip|zipcode|postcode|postalcode"))

# Of a row for each day, its number is the season, or the trend.
_TIME = re.compile(
    r"(?<![a-z])(t|time|hour|day|week|month|quarter|year|period)s?(?![a-z])", re.I
)

_AMOUNT = (
    r"\s*[-+(]?\s*(?!0\d)"
    r"(?:\d+(?:[.,]\d+)?|\d{1,3}(?:[.,'\u2019\s]\d{3})+(?:[.,]\d+)?)\s*"
)
_CURRENCY = (
    r"(?:[a-z]{0,2}[$€£¥₹]|rs\.?|kr|usd|eur|gbp|chf|jpy|inr|cny|brl|cad|aud|sek|nok|dkk"
    r"|pln)"
)
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\\.?"
# As "$1,234.50", "12 %", "51,3", "10:30", "31/12/2020 10:00" or "Jan 31, 2020".
_FORMATTED = re.compile(
    rf"\s*[-+(]?\s*(?:{_CURRENCY}\s*[-+]?\d[\d,.\s]*|\d[\d,.\s]*(?:%|{_CURRENCY}))\)?\s*"
    rf"|{_AMOUNT}\)?\s*"
    r"|\s*\d{1,2}:\d{2}(:\d{2}(\.\d*)?)?\s*([ap]m)?\s*"
    r"|\s*(\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})(\s.*)?"
    r"|\s*(19|20)\d\d-(0[1-9]|1[0-2]|W[0-5]\d|Q[1-4])\s*"
    rf"|\s*\d{{1,2}}\.?[ -]{_MONTH}[ -]\d{{2,4}}.*|\s*{_MONTH} \d{{1,2}},? \d{{4}}.*",
    re.IGNORECASE,
)
# As "51.3 kg": codes, such as "14C", end in various letters.
_MEASURED = re.compile(rf"{_AMOUNT}(?P<unit>°?[^\W\d_][^\d\s]{{0,5}})\s*")


def chosen_columns(
    table: Table, keys: Sequence[Key], kind: str, dtype: str | None = None
) -> tuple[list[Key], list[FeatureColumn]]:
    """Return which of some raw columns are meant, and feature columns for them.

    Parameters
    ----------
    table : Table
        Training data.
    keys : sequence of str or int
        Of the raw columns.
    kind, dtype
        As in `skest.feature_columns.infer_feature_columns`, which documents the rules.
    """
    if kind in ("sequence", "context"):
        wanted = kind == "sequence"
        keys = [key for key in keys if _holds_sequences(table, key) is wanted]
    columns = [column for key in keys for column in _columns(table, key, kind, dtype)]
    return list(keys), columns


def _sparse_matrix(
    table: Table, key: Key, kind: str, dtype: str | None
) -> list[FeatureColumn]:
    # Text in TF-IDF form, mostly: a dense layer behind a hundred thousand inputs would
    # be the whole model.
    matrix = SparseMatrixColumn(key)
    if kind == "linear":
        return [matrix]
    cells = stored_numbers(table, key)
    parts = parts_of(cells)
    columns = _of_parts(parts, table, key, cells, dtype)
    if parts.is_all:
        return columns
    dimension = min(cells.shape[1], SPARSE_MATRIX_DIMENSION)
    columns.append(embedding_column(matrix, dimension, combiner="sum"))
    if dimension == SPARSE_MATRIX_DIMENSION:  # the vectors do not hold all numbers
        columns.append(target_ridge_column(matrix))
    return columns


def _matrix(
    table: Table, key: Key, values: np.ndarray, kind: str, dtype: str | None
) -> list[FeatureColumn]:
    """Return the columns of several numbers in each cell."""
    # Once for the parts of a wide and deep model.
    parts = table.learned(("parts", key), lambda: parts_of(values))
    # A few flags need no column of their own.
    has_parts = parts.blocks or (len(parts.flags) and values.shape[1] > MANY_COLUMNS)
    if kind == "dense" and has_parts:
        columns = _of_parts(parts, table, key, values, dtype)
    else:
        columns = [_numeric(numeric_column, key, values, dtype, kind)]
    # Not of images, of which it would take seconds.
    for i in parts.numbers if len(parts.numbers) <= MANY_COLUMNS else ():
        of_column = values[:, i]
        if _are_names(table, of_column):
            (name,) = _names_in(table, key, [i])
            if kind == "linear" and (of_column == -1).any():
                _warn_of_minus_one(name)
            where = {
                "source_key": key,
                "element": int(i),
                "n_columns": values.shape[1],
            }
            make: Any = partial(NumberedVocabularyPartColumn, **where)
            columns += _names(table, name, kind, make)
    return columns


def _of_parts(
    parts: Parts, table: Table, key: Key, matrix: Any, dtype: str | None
) -> list[FeatureColumn]:
    """Return the columns of parts of a matrix."""
    n_columns = matrix.shape[1]
    found: list[FeatureColumn] = []
    for name, make, elements in (
        (str(key), NumericPartColumn, parts.numbers),
        (f"{key}_flags", FlagsColumn, parts.flags),
    ):
        if len(elements):
            part: Any = partial(
                make,
                source_key=key,
                elements=elements.tolist(),
                n_columns=n_columns,
                feature_names=_names_in(table, key, elements),
            )
            # Of the width only the type and the shape count.
            cells = np.empty((1, len(elements)), matrix.dtype)
            found.append(_numeric(part, name, cells, dtype, "dense"))
    for block in parts.blocks:
        names = _names_in(table, key, block)
        make_block: Any = partial(
            OneHotColumn,
            source_key=key,
            elements=block.tolist(),
            n_columns=n_columns,
            thresholds=parts.thresholds[block].tolist(),
            level_names=names,
        )
        name = f"{names[0]}_to_{names[-1]}"
        found += _names(table, name, "dense", make_block)
    return found


def _names_in(table: Table, key: Key, elements: Iterable[int]) -> list[str]:
    """Return names for columns of a matrix, of which an array has the same."""
    stem = key if isinstance(key, str) else f"{key}_"
    # Of a dictionary, "x1" may be beside "x".
    while table.whole_key is None and any(f"{stem}{i}" in table for i in elements):
        stem += "_"
    return [f"{stem}{i}" for i in elements]


def _holds_sequences(table: Table, key: Key) -> bool:
    return table.cells(key).ndim > 1 or table.flat(key) is not None


def _holds_numbers(table: Table, key: Key, is_sequence: bool) -> bool:
    flat = table.flat(key)
    dtype = table.cells(key).dtype
    if isinstance(dtype, pd.CategoricalDtype) and dtype.categories.dtype.kind == "f":
        # Such as ratings in halves; whole ones are categories.
        return bool((dtype.categories % 1 != 0).any())
    if flat is None:
        return table.holds_numbers(key)
    if is_sequence:
        return holds_numbers(flat.values)
    if flat.values.dtype.kind != "f":
        return False
    values = numbers(flat.values, key)
    gaps = np.isnan(values)  # which make floats of integers, and those are categories
    return not gaps.any() or bool((values[~gaps] % 1 != 0).any())


def _columns(
    table: Table, key: Key, kind: str, dtype: str | None
) -> list[FeatureColumn]:
    """Return the columns of one raw column; none if there is nothing to learn from it."""
    # The order matters: numbers first, then what strings may be, and categories last.
    if table.holds_sparse(key):
        return _sparse_matrix(table, key, kind, dtype)
    is_sequence = kind == "sequence"
    if _holds_numbers(table, key, is_sequence):
        if is_sequence:
            steps = numbers(steps_of(table, key).values, key)
            return [_numeric(sequence_numeric_column, key, steps, dtype, kind)]
        values = table.numbers(key)
        # Left out with a warning rather than refused: tables have such columns, and the
        # others are good.
        if values.ndim == 1 and np.isnan(values).all():
            return left_out(key, "has no values")
        is_time = _TIME.search(str(key)) is not None
        if len(table.keys) > 1 and not is_time and are_row_numbers(values):
            return left_out(key, "numbers the rows")
        if len(table.keys) > 1 and are_ids_of_rows(key, values):
            return left_out(key, "has another value in each row")
        is_constant = values.ndim == 1 and _are_equal(values)
        if len(table.keys) > 1 and is_constant and not np.isinf(values).any():
            return left_out(key, "has the same value in each row")
        if values.ndim == 2 and not is_sequence:
            return _matrix(table, key, values, kind, dtype)
        number = _numeric(numeric_column, key, values, dtype, kind)
        warn_of_calendar(key, values)
        if not _are_names(table, values):
            warn_of_id(key, values)
            return [number]
        # A deep model has a vector for what is missing, and so for -1.
        if kind == "linear" and (values == -1).any():
            _warn_of_minus_one(key)
        return [number, *_names(table, key, kind, NumberedVocabularyColumn)]
    is_single = table.cells(key).ndim == 1 and table.flat(key) is None
    is_category = isinstance(table.cells(key).dtype, pd.CategoricalDtype)
    if is_single and not is_category and are_dates(table.cells(key)):
        parts = varying_parts(table, key)
        if not parts:
            return left_out(key, "has no values")
        if len(table.keys) > 1 and _are_equal(table.cells(key)):
            return left_out(key, "has the same value in each row")
        return [_parsed(key, part, dtype, kind) for part in parts]
    cells = table.factorized(key)
    if cells.are_integers and -1 in cells.distinct:
        _warn_of_minus_one(key)
    counts = np.bincount(cells.codes[cells.codes >= 0])
    n_levels = int(np.count_nonzero(counts))
    if not n_levels:
        return left_out(key, "has no values")
    if is_single and cells.are_strings:
        # Who makes a category of numbers has said what they are.
        if not is_category and are_numbers(cells.distinct):
            number = _parsed(key, "number", dtype, kind)
            warn_of_calendar(key, pd.to_numeric(pd.Series(cells.distinct), "coerce"))
            # As a category, "?" would be another thing than a gap, and 5 than "5".
            has_marks = any(text.strip() in NO_NUMBERS for text in cells.distinct)
            if has_marks or not _may_name_things(cells.distinct, counts.sum()):
                return [number]
            names = _categories(table, key, kind, n_levels, is_single)
            return names if kind == "linear" else [number, *names]
        _warn_of_other_than_numbers(cells.distinct, key)
        if _are_texts(cells.distinct, counts, kind):
            words = categorical_column_with_hash_bucket(
                key, HASH_BUCKET_SIZE, delimiter=WORDS
            )
            return [words] if kind == "linear" else _bag(words)
    # A vector for each row would learn the rows by heart.
    if is_single and n_levels == counts.sum() >= FEWEST_UNIQUE:
        are_words = cells.are_strings and any(" " in text for text in cells.distinct)
        return left_out(key, "has another value in each row", are_words)
    return _categories(table, key, kind, n_levels, is_single)


def _categories(
    table: Table, key: Key, kind: str, n_levels: int, is_single: bool
) -> list[FeatureColumn]:
    """Return the columns of categories, a single one in each cell or several."""
    keyed: KeyedCategoricalColumn = categorical_column_with_vocabulary_list(key)
    if n_levels > MAX_VOCABULARY_LEVELS:
        keyed = categorical_column_with_hash_bucket(key, HASH_BUCKET_SIZE)
    if kind == "linear":
        return [keyed]
    categorical = SequenceCategoricalColumn(keyed) if kind == "sequence" else keyed
    if n_levels <= MAX_INDICATOR_LEVELS:
        return [indicator_column(categorical)]
    if kind == "sequence":
        return [embedding_column(categorical, dimension="auto")]
    if not is_single:
        return _bag(keyed)
    if n_levels > MAX_VOCABULARY_LEVELS:
        return [embedding_column(keyed, "auto"), target_statistics_column(keyed)]
    return _names(table, key, kind, categorical_column_with_vocabulary_list)


def _names(
    table: Table, key: Key, kind: str, make: Callable[..., VocabularyListColumn]
) -> list[FeatureColumn]:
    """Return the columns of many categories, one in each cell."""
    if kind == "linear":
        return [make(key)]
    # Beside the embedding: vectors of rare levels learn slowly, and a mean is there at
    # once.
    embedded = make(
        key,
        num_oov_buckets=1,
        min_frequency=RARE_LEVEL / table.n_rows,  # whatever the scale of weights
        missing_bucket=True,
        unknown_rate=UNKNOWN_RATE,
    )
    # Of all levels: what shrinks the mean of a rare one needs no threshold. A level that
    # is new later has no rows, which is not what gaps have.
    counted = make(key, missing_bucket=True)
    return [embedding_column(embedded, "auto"), target_statistics_column(counted)]


def _bag(several: CategoricalColumn) -> list[FeatureColumn]:
    """Return the columns of cells with several categories, such as words."""
    # Of some thousand texts, a network alone predicts worse than a linear model.
    return [embedding_column(several, dimension="auto"), target_ridge_column(several)]


def left_out(key: Key, reason: str, are_words: bool = False) -> list[FeatureColumn]:
    """Warn that a column is left out, and return no feature column."""
    bag = f", for its words categorical_column_with_hash_bucket({key!r}, 10_000, "
    how = (
        f"a feature column{bag}delimiter={WORDS!r})"
        if are_words
        else "a feature column"
    )
    warn(
        f"Column {key!r} {reason}, from which nothing can be learned of other rows; it is "
        f"left out. To use it, describe it by {how}; if it is of no use, drop it, and this "
        "is not said again."
    )
    return []


def _are_equal(values: Cells) -> bool:
    """Tell whether numbers or dates are all the same.

    A network would not train the weight of what is always zero, and a number or a date
    that comes later is far from zero.
    """
    array = np.asarray(values)
    return bool((array == array[0]).all())


def stands_alone(table: Table, key: Key) -> bool:
    """Tell whether a column of numbers is not to be one of many in an array."""
    values = table.numbers(key)
    return are_ids_of_rows(key, values) or _are_names(table, values)


def _are_names(table: Table, values: np.ndarray) -> bool:
    if table.target is None or not are_names(values, table.target):
        return False
    hashes = table.row_hashes()
    # Where few columns of few values tell one row from another, equal ones say little.
    are_repeated = len(np.unique(hashes)) < MOST_REPEATED * table.n_rows
    return are_repeated or are_names(values, table.target, hashes)


def are_ids_of_rows(key: Key, values: np.ndarray) -> bool:
    """Tell whether integers in a column that is called an id all differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.choice import are_ids_of_rows
    >>> are_ids_of_rows("user_id", np.arange(20)), are_ids_of_rows("grid", np.arange(20))
    (True, False)
    """
    is_id = values.dtype.kind in "iu" and values.ndim == 1 and _ID.search(str(key))
    n_rows = len(values)
    return bool(is_id) and len(np.unique(values)) == n_rows >= FEWEST_UNIQUE


def are_row_numbers(values: np.ndarray) -> bool:
    """Tell whether integers number the rows, of which some may have been held out.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.choice import are_row_numbers
    >>> are_row_numbers(np.random.default_rng(0).permutation(500)[:400])
    True
    """
    if values.dtype.kind not in "iu" or values.ndim > 1:
        return False
    least, n_rows = values.min(), len(values)
    if least < 0 or n_rows < FEWEST_ROW_NUMBERS:
        return False
    # Rows were shuffled and some held out: what is left has gaps, but few.
    is_dense = int(values.max()) * ROW_NUMBER_SHARE <= n_rows
    return is_dense and len(np.unique(values)) == n_rows


def warn_of_id(key: Key, values: np.ndarray) -> None:
    """Warn if numbers are ids, to go by the column's name.

    Parameters
    ----------
    key : str or int
        Of the column.
    values : ndarray
        Its numbers; NaN is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.choice import warn_of_id
    >>> warn_of_id("grid", np.arange(5))
    """
    if values.ndim > 1 or not _IDS.search(str(key)):
        return
    distinct = np.unique(values[~np.isnan(values)])
    if len(distinct) > 2 and (distinct % 1 == 0).all():
        warn(
            f"Column {key!r} holds whole numbers and is called an id or a code, but is "
            "used as a number, so that ids nearby count as alike. If they name things, "
            f"make categories of them, e.g. X[{key!r}].astype('category'), or describe "
            "the column by a feature column."
        )


def warn_of_calendar(key: Key, values: Any) -> None:
    """Warn if numbers are dates such as 20260131.

    Parameters
    ----------
    key : str or int
        Of the column.
    values : ndarray or Series
        Its numbers; NaN is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.choice import warn_of_calendar
    >>> warn_of_calendar("sales", np.arange(20_250_101, 20_260_101))  # the 99th of March
    """
    if values.ndim > 1:
        return
    known = pd.Series(values).dropna()
    if float(known.min()) < 19000101 or float(known.max()) > 21001231:
        return
    distinct = pd.Series(np.unique(known))
    texts = distinct[:: len(distinct) // MOST_LOOKED_AT + 1].map("{:.0f}".format)
    read = pd.to_datetime(texts, format="%Y%m%d", errors="coerce")
    if len(texts) > MAX_INDICATOR_LEVELS and read.notna().all():
        warn(
            f"Column {key!r} holds dates as numbers, such as {texts[0]}, and is used as a "
            "number, by which a month has a hundred days. Convert it: "
            f"pandas.to_datetime(X[{key!r}], format='%Y%m%d')."
        )


def _may_name_things(distinct: np.ndarray, n_cells: int) -> bool:
    """Tell whether strings of numbers may be codes: they are whole, and come again."""
    are_few = 2 < len(distinct) <= n_cells / 2
    # What the graph of an export could not read as a number is not a category as well.
    return are_few and are_whole(distinct) and all(map(is_plain_number, distinct))


def _are_texts(distinct: np.ndarray, counts: np.ndarray, kind: str) -> bool:
    """Tell whether cells that mostly differ are sentences, or of words that come again."""
    n_cells, texts = counts.sum(), distinct[:MOST_TEXTS].tolist()
    if 2 * len(distinct) < n_cells:
        return False
    if np.mean([len(_ABOUT_A_WORD.findall(text)) for text in texts]) > MOST_WORDS:
        return True
    # Of frequent levels, such as titles of jobs, each says more than its words do. And a
    # linear model learns words of names and addresses, which tell nothing, by heart.
    if kind == "linear" or 4 * counts[counts >= RARE_LEVEL].sum() > n_cells:
        return False
    words = (set(split_text(text, WORDS)) for text in texts)
    n_cells_of = Counter(word for each in words for word in each if _WORD.match(word))
    # What most cells have tells nothing: of "ORD-8f3a", nothing is left.
    counted = [n for n in n_cells_of.values() if 2 * n <= len(texts)]
    n_frequent = sum(n for n in counted if n >= RARE_LEVEL)
    return sum(counted) >= FEWEST_WORDS * len(texts) and 2 * n_frequent > sum(counted)


def _warn_of_other_than_numbers(distinct: np.ndarray, key: Key) -> None:
    """Warn if strings are numbers or dates but for a few, or in another form."""
    texts = distinct[:MOST_LOOKED_AT]
    n_dates = sum(map(bool, map(DATE.fullmatch, texts)))
    if 2 * n_dates > len(texts) > MAX_INDICATOR_LEVELS:
        # Of all: a single cell is enough, and may come late.
        others = [t for t in distinct if not (DATE.fullmatch(t) or is_mark(t))]
        if others:
            warn(
                f"Column {key!r} holds dates, but also {others[0]!r}, and is not read as "
                f"dates: {len(others)} of {len(distinct)} different cells are none in ISO "
                "form. Mend them, or let missing values be empty, e.g. by "
                f"pandas.to_datetime(X[{key!r}], errors='coerce')."
            )
            return
    others = [text for text in texts if not are_numbers(np.array([text], object))]
    measured = [_MEASURED.fullmatch(text) for text in others]
    units = Counter(found["unit"] for found in measured if found)
    unit = max(units, key=units.__getitem__, default=None)
    formatted = [
        text
        for text, found in zip(others, measured, strict=True)
        if _FORMATTED.fullmatch(text) or (found and found["unit"] == unit)
    ]
    n_numbers = len(texts) - len(others)
    # "950" beside "1,200" as well.
    is_formatted = formatted and n_numbers + len(formatted) > 0.9 * len(texts)
    if is_formatted and len(texts) > MAX_INDICATOR_LEVELS:
        in_form = (text for text in formatted if not DATE.fullmatch(text))
        unread = next(in_form, formatted[0])
        warn(
            f"Column {key!r} holds numbers or dates in a form that is not read, such as "
            f"{unread!r}, so that each is a category of its own. Convert them, with "
            "pandas.to_numeric without signs, units and separators, pandas.to_datetime, or "
            "pandas.to_timedelta(...).dt.total_seconds()."
        )
    elif others and n_numbers > max(9 * len(others), MAX_INDICATOR_LEVELS):
        warn(
            f"Column {key!r} holds numbers written as strings, but also {others[0]!r}, and "
            "is not read as numbers. If they are, let missing values be empty, e.g. by "
            f"pandas.to_numeric(X[{key!r}], errors='coerce')."
        )


def _parsed(key: Key, parse: str, dtype: str | None, kind: str) -> FeatureColumn:
    return parsed_numeric_column(
        key,
        parse,
        default_value="mean",
        dtype=dtype or "float64",
        normalizer=_normalizer(kind),
        # The parts of a date are missing together: one of them says so.
        indicate_missing="auto" if parse in ("number", "seconds") else False,
    )


def _warn_of_minus_one(key: Key) -> None:
    warn(
        f"Column {key!r} holds the integer -1 among its categories, where it means "
        "missing, as in TensorFlow. If it is a category, make strings of the column, "
        "e.g. with .astype(str).astype('category')."
    )


def _numeric(
    make: Callable[..., NumericColumn],
    key: Key,
    values: np.ndarray,
    dtype: str | None,
    kind: str,
) -> NumericColumn:
    return make(
        key,
        shape=values.shape[1:] or (1,),
        default_value="mean",
        # float64 for integers, of which float32 does not hold all.
        dtype=dtype or np.result_type(values.dtype, np.float32).name,
        normalizer=_normalizer(kind),
        indicate_missing="auto",
    )


def _normalizer(kind: str) -> str:
    # FTRL, which trains linear models, keeps what is rare in bounds and wants it large.
    return "standard" if kind == "linear" else "auto"
