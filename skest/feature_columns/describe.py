# SPDX-License-Identifier: Apache-2.0
"""What a person is told of feature columns: kind, size and learned state, in a table."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import NotFittedError

_MOST_LEVELS = 5
# What center_ and scale_ are.
_SCALES = {
    "standard": "mean {}, deviation {}",
    "minmax": "least {}, range {}",
    "robust": "median {}, spread {}",
}
_SECONDS_OF_A_DAY = 86400


class Description(NamedTuple):
    """A line about a feature column."""

    name: str
    kind: str
    reads: str
    size: str
    learned: str


def describe(columns: Iterable[Any]) -> list[Description]:
    """Return a line about each of some columns, fitted or not.

    Examples
    --------
    >>> from skest.feature_columns import numeric_column
    >>> from skest.feature_columns.describe import describe
    >>> column = numeric_column("age", normalizer="standard").fit({"age": [20.0, 40.0]})
    >>> describe([column])[0]
    Description(name='age', kind='numeric', reads='age', size='1 number', \
learned='mean 30, deviation 10')
    """
    return [
        Description(
            column.name,
            _kind(column),
            ", ".join(map(str, column.feature_keys)),
            _size(column),
            "; ".join(_learned(column)),
        )
        for column in columns
    ]


def _kind(column: Any) -> str:
    words = re.findall("[A-Z][a-z]*", type(column).__name__.removesuffix("Column"))
    kind = " ".join(words).lower()
    inner = _inner(column)
    return kind if inner is None else f"{kind} of {_kind(inner)}"


def _inner(column: Any) -> Any | None:
    """Return the column that this one is over, fitted if it is."""
    return getattr(column, "categorical", None) or getattr(column, "source", None)


def _size(column: Any) -> str:
    is_dense = hasattr(type(column), "size")
    try:
        size = column.size if is_dense else column.num_buckets
    except (NotFittedError, TypeError, ValueError):  # wrong parameters are for fit
        return "open"
    what = "number" if is_dense else "level"
    return f"{size:,} {what}{'s' * (size != 1)}"


def _value(number: float, column: Any) -> str:
    """Return a number as people say it: of seconds since 1970 it is the day."""
    if not _holds_seconds(column):
        return f"{number:.4g}"
    return str(np.datetime64(int(number), "s").astype("datetime64[D]"))


def _range(number: float, column: Any) -> str:
    if not _holds_seconds(column):
        return f"{number:.4g}"
    return f"{number / _SECONDS_OF_A_DAY:.4g} days"


def _holds_seconds(column: Any) -> bool:
    return getattr(_inner(column) or column, "parse", None) == "seconds"


def _learned(column: Any) -> Iterator[str]:
    state = vars(column)
    if "vocabulary_" in state:
        levels = list(map(str, column.vocabulary))
        more = ", …" if len(levels) > _MOST_LEVELS else ""
        yield f"levels {', '.join(levels[:_MOST_LEVELS])}{more}"
    if "center_" in state and "statistics_" not in state:
        if len(column.center_) > 1:
            yield f"scales of {len(column.center_):,} numbers"
        else:
            center = _value(column.center_[0], column)
            scale = _range(column.scale_[0], column)
            yield _SCALES[column.normalizer].format(center, scale)
    if len(state.get("fill_", ())) == 1:
        yield f"gaps become {_value(column.fill_[0], column)}"
    if len(state.get("indicated_", ())):
        yield "gaps marked"
    if "quantile_maps_" in state:
        yield "quantiles"
    for name, what in (("edges_", "edges"), ("boundaries_", "boundaries")):
        cuts = np.concatenate([np.empty(0), *map(np.ravel, state.get(name, ()))])
        if len(cuts):
            least, most = (_value(cut, column) for cut in (cuts.min(), cuts.max()))
            yield f"{len(cuts)} {what} from {least} to {most}"
    if "statistics_" in state:
        yield f"means of the target for {len(column.statistics_) - 1:,} levels"
    if "weights_" in state and not isinstance(column.weights_, dict):
        yield f"a vector for each of {len(column.weights_):,} levels"
    inner = _inner(column)
    if inner is not None:
        yield from _learned(inner)
