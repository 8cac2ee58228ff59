# SPDX-License-Identifier: Apache-2.0
"""The data of the benchmarks, made with fixed seeds, and the Census table."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

LEVELS = (10, 100, 1_000, 10_000, 50_000)
NUMBERS = [f"number_{i}" for i in range(8)]
STRINGS = [f"string_{n}" for n in LEVELS]
CROSSED = ("string_10", "string_1000")
CROSS_BUCKETS = 100_000
IDS = [f"id_{i}" for i in range(4)]
ID_BUCKETS = 1_000_000


class Split(NamedTuple):
    """Rows to train with and rows held out; `y` is 0 and 1."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray
    numbers: list[str]
    strings: list[str]


def dense(n_rows: int, n_inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of shape (n_rows, n_inputs), float32, and labels 0 and 1."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_inputs), dtype=np.float32)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int64)


def levels_of() -> dict[str, list[str]]:
    """Return the levels of each string column."""
    numbers = zip(STRINGS, LEVELS, strict=True)
    return {name: [f"level {i}" for i in range(n)] for name, n in numbers}


def mixed_arrays(n_rows: int) -> dict[str, np.ndarray]:
    """Return the mixed table in numbers: strings as positions among their levels."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=n_rows) for name in NUMBERS}
    for name, n_levels in zip(STRINGS, LEVELS, strict=True):
        arrays[name] = rng.integers(0, n_levels, n_rows)
    return arrays


def mixed(n_rows: int, dtype: str = "str") -> pd.DataFrame:
    """Return 8 columns of numbers and 5 of strings, these of a dtype of pandas."""
    table: dict[str, Any] = dict(mixed_arrays(n_rows))
    for name, levels in levels_of().items():
        values = np.array(levels, dtype=object)[table[name]]
        table[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(table)


def mixed_labels(table: pd.DataFrame) -> np.ndarray:
    """Return labels 0 and 1 for a mixed table."""
    return (table["number_0"] > 0).to_numpy().astype(np.int64)


def encoding() -> dict[str, Any]:
    """Return what is to be done with the columns of a mixed table."""
    return {
        "numbers": NUMBERS,
        "strings": STRINGS,
        "crossed": CROSSED,
        "n_buckets": CROSS_BUCKETS,
    }


def ids(n_rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return four columns of ids below `ID_BUCKETS`, and labels 0 and 1."""
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, ID_BUCKETS, n_rows) for name in IDS}
    return columns, columns[IDS[0]] % 2


def census(folder: Path | None = None) -> Split:
    """Return Census income: from a folder, ``../shared/data/adult`` or OpenML."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from mixed_tables import load_census

    table = load_census(folder, offline=False)
    if table is None:
        raise SystemExit("The Census table is not at hand.")
    numbers, strings = list(table.numeric), list(table.categorical)

    def plain(X: pd.DataFrame) -> pd.DataFrame:
        X = X[numbers + strings].copy()
        X[strings] = X[strings].astype(object).fillna("unknown")
        return X

    positive = ">50K"
    return Split(
        plain(table.X_train),
        (table.y_train == positive).to_numpy().astype(np.int64),
        plain(table.X_test),
        (table.y_test == positive).to_numpy().astype(np.int64),
        numbers,
        strings,
    )
