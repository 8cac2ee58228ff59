# SPDX-License-Identifier: Apache-2.0
"""What a person is told of feature columns: kind, size and learned state, in a table."""

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import NotFittedError

_MOST_LEVELS = 5
# What center_ and scale_ are.
_SCALES = {
    "standard": "mean {}, deviation {}",
    "auto": "center {}, scale {}",
    "minmax": "least {}, range {}",
    "robust": "median {}, spread {}",
}
_SECONDS_OF_A_DAY = 86400


class Description(NamedTuple):
    """A line about a feature column, and those that are over it."""

    name: str
    kind: str
    reads: str
    size: str
    learned: str


def describe(columns: Iterable[Any]) -> list[Description]:
    """Return lines about some columns, fitted or not.

    A column that is over another of them, as the piecewise linear code of a number is,
    shares its line: most tables of numbers have one beside each. One that reads a frame
    as an array, or joins others, has a line for each column of the frame.

    Examples
    --------
    >>> from skest.feature_columns import numeric_column
    >>> from skest.feature_columns.describe import describe
    >>> column = numeric_column("age", normalizer="standard").fit({"age": [20.0, 40.0]})
    >>> describe([column])[0]
    Description(name='age', kind='numeric', reads='age', size='1 number', \
learned='mean 30, deviation 10')
    """
    columns = [part for column in columns for part in _of_frame(column)]
    names = {column.name for column in columns}
    lines: dict[str, list[Any]] = {}
    for column in columns:
        # By name: what is inferred as a source of others has parameters of its own.
        inner = getattr(_inner(column), "name", column.name)
        lines.setdefault(inner if inner in names else column.name, []).append(column)
    return [_line(name, group) for name, group in lines.items()]


def _of_frame(column: Any) -> list[Any]:
    """Return columns as the given one, of one column of its frame each."""
    parts = getattr(_inner(column) or column, "categoricals", None)
    if parts is not None:
        return [type(column)(part) for part in parts] if _inner(column) else [*parts]
    names = getattr(_inner(column) or column, "feature_names", None)
    if names is None:
        return [column]
    return [_of_one(column, i, name) for i, name in enumerate(names)]


def _of_one(column: Any, i: int, name: str) -> Any:
    one = copy.copy(column)
    state = vars(one)
    for learned in ("center_", "scale_", "limit_", "fill_", "edges_"):
        if learned in state:
            state[learned] = state[learned][i : i + 1]
    for source in ("source_column", "source_column_"):
        if source in state:
            state[source] = _of_one(state[source], i, name)
    if "indicated_" in state:
        one.indicated_ = np.zeros(int(i in one.indicated_), np.int64)
    if "feature_names" in state:
        one.key, one.shape, one.feature_names = name, (1,), [name]
    return one


def _line(name: str, columns: Sequence[Any]) -> Description:
    keys = chain.from_iterable(map(_read_keys, columns))
    learned = chain.from_iterable(map(_learned, columns))
    return Description(
        name,
        ", ".join(dict.fromkeys(_kind(column, name) for column in columns)),
        ", ".join(dict.fromkeys(map(str, keys))),
        _size(columns),
        "; ".join(dict.fromkeys(learned)),
    )


def _read_keys(column: Any) -> Sequence[Any]:
    part = _inner(column) or column
    # Of a part of a matrix, its own name tells more.
    return [part.key] if hasattr(part, "source_key") else column.feature_keys


def _kind(column: Any, line: str | None = None) -> str:
    """Return what a column is, and over what, if that is not said by its line."""
    # "Numeric", also of one that reads a frame, or several columns.
    name = re.sub("^Joined|(Frame|Part)?Column$", "", type(column).__name__)
    words = re.findall("[A-Z][a-z]*", name)
    part = getattr(column, "parse", "").replace("_", " ")  # of a date
    kind = f"{' '.join(words).lower()} {part}".rstrip()
    inner = _inner(column)
    return kind if inner is None or inner.name == line else f"{kind} of {_kind(inner)}"


def _inner(column: Any) -> Any | None:
    """Return the column that this one is over, fitted if it is."""
    return getattr(column, "categorical", None) or getattr(column, "source", None)


def _size(columns: Iterable[Any]) -> str:
    sizes = Counter[str]()
    for column in columns:
        is_dense = hasattr(type(column), "size")
        try:
            size = column.size if is_dense else column.num_buckets
        except (NotFittedError, TypeError, ValueError):  # wrong parameters are for fit
            return "open"
        sizes["number" if is_dense else "level"] += size
    return ", ".join(f"{n:,} {what}{'s' * (n != 1)}" for what, n in sizes.items())


def _said(number: float, column: Any, is_range: bool = False) -> str:
    """Return a number as people say it: of seconds since 1970 it is the day, or days."""
    if getattr(_inner(column) or column, "parse", None) != "seconds":
        return f"{number:.4g}"
    if is_range:
        return f"{number / _SECONDS_OF_A_DAY:.4g} days"
    return str(np.datetime64(int(number), "s").astype("datetime64[D]"))


def _learned(column: Any) -> Iterator[str]:
    state = vars(column)
    if "vocabulary_" in state:
        # Of a blank one nothing could be seen.
        levels = [
            str(word) if str(word).strip() else repr(word) for word in column.vocabulary
        ]
        more = ", …" if len(levels) > _MOST_LEVELS else ""
        yield f"levels {', '.join(levels[:_MOST_LEVELS])}{more}"
    # Only of a single number: a line of a thousand means is read by nobody.
    filled = state.get("fill_", ())
    fill = [_said(number, column) for number in filled] if len(filled) == 1 else []
    if "center_" in state and "statistics_" not in state:
        if len(column.center_) > 1:
            yield f"scales of {len(column.center_):,} numbers"
        else:
            center = _said(column.center_[0], column)
            scale = _said(column.scale_[0], column, is_range=True)
            # Mostly it is the mean, and said once.
            fills = " fills gaps" if center in fill else ""
            # What fills gaps is the mean.
            is_standard = fills and column.normalizer == "auto"
            said = _SCALES["standard" if is_standard else column.normalizer]
            yield said.format(center + fills, scale)
            fill = [] if fills else fill
    yield from (f"gaps become {value}" for value in fill)
    if len(state.get("indicated_", ())):
        yield "gaps marked"
    if "quantile_maps_" in state:
        yield "quantiles"
    for name, what in (("edges_", "edges"), ("boundaries_", "boundaries")):
        # Boundaries are one array for all elements, edges are a list with one for each.
        cuts = np.concatenate([np.empty(0), *map(np.ravel, state.get(name, ()))])
        if len(cuts):
            least, most = (_said(cut, column) for cut in (cuts.min(), cuts.max()))
            yield f"{len(cuts)} {what} from {least} to {most}"
    if "statistics_" in state:
        yield f"means of the target for {len(column.statistics_) - 1:,} levels"
    if "coefficients_" in state:
        yield f"coefficients of {len(column.coefficients_):,} levels"
    # A dictionary holds the waves of a periodic column, which has no levels.
    if "weights_" in state and not isinstance(column.weights_, dict):
        yield f"a vector for each of {len(column.weights_):,} levels"
    inner = _inner(column)
    if inner is not None:
        yield from _learned(inner)
