# SPDX-License-Identifier: Apache-2.0
"""What it costs to encode a mixed table, against pandas and scikit-learn.

Run it with ``python -m benchmarks.encode [--rows 1000000]``. The table has 8 numeric
columns, 5 string columns of 10 to 50,000 levels, and one cross of two of them. Below are
the best times of some runs side by side, and the peak of the memory that encoding takes
beside the table (Linux only).
"""

import argparse
import ctypes
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from skest import feature_columns as fc

LEVELS = (10, 100, 1_000, 10_000, 50_000)
NUMBERS = [f"number_{i}" for i in range(8)]
STRINGS = [f"string_{n}" for n in LEVELS]
CROSSED = ("string_10", "string_1000")
MIB = 2**20


def make_table(n_rows: int, dtype: str) -> pd.DataFrame:
    """Return the table, its strings of a dtype of pandas."""
    rng = np.random.default_rng(0)
    table = {name: rng.normal(size=n_rows) for name in NUMBERS}
    for name, n_levels in zip(STRINGS, LEVELS, strict=True):
        levels = np.array([f"level {i}" for i in range(n_levels)], dtype=object)
        values = levels[rng.integers(0, n_levels, n_rows)]
        table[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(table)


def make_columns() -> fc.FeatureColumns:
    """Return the feature columns: a vocabulary for each string column but the largest."""
    columns: list[fc.FeatureColumn] = [
        fc.numeric_column(name, normalizer="standard") for name in NUMBERS
    ]
    for name in STRINGS[:-1]:
        vocabulary = fc.categorical_column_with_vocabulary_list(name)
        columns.append(fc.embedding_column(vocabulary, "auto"))
    hashed = fc.categorical_column_with_hash_bucket(STRINGS[-1], 100_000)
    columns.append(fc.embedding_column(hashed, "auto"))
    columns.append(fc.crossed_column(CROSSED, 100_000))
    return fc.FeatureColumns(columns)


def cross(table: pd.DataFrame) -> pd.DataFrame:
    """Return the two crossed columns as one, as a user of scikit-learn would."""
    first, second = (table[name].astype(object) for name in CROSSED)
    return pd.DataFrame({"cross": first + " x " + second})


def hashed_strings(table: pd.DataFrame) -> list[list[str]]:
    """Return "column=value" for every cell, which `FeatureHasher` takes."""
    named = [(name + "=" + table[name].astype(object)).tolist() for name in table]
    return list(map(list, zip(*named, strict=True)))


def contenders(table: pd.DataFrame) -> dict[str, Callable[[], object]]:
    """Return what is timed, everything fitted before."""
    columns = make_columns().fit(table)
    one_hot = make_column_transformer(
        (StandardScaler(), NUMBERS),
        (OneHotEncoder(handle_unknown="ignore"), STRINGS),
        (
            make_pipeline(
                FunctionTransformer(cross), OneHotEncoder(handle_unknown="ignore")
            ),
            list(CROSSED),
        ),
    ).fit(table)
    hasher = FeatureHasher(2**17, input_type="string")
    both = make_column_transformer(
        (StandardScaler(), NUMBERS),
        (OneHotEncoder(handle_unknown="ignore"), STRINGS[:-1]),
        (make_pipeline(FunctionTransformer(hashed_strings), hasher), STRINGS[-1:]),
        (
            make_pipeline(
                FunctionTransformer(cross), FunctionTransformer(hashed_strings), hasher
            ),
            list(CROSSED),
        ),
    ).fit(table)
    hashing = make_column_transformer(
        (StandardScaler(), NUMBERS),
        (make_pipeline(FunctionTransformer(hashed_strings), hasher), STRINGS),
        (
            make_pipeline(
                FunctionTransformer(cross), FunctionTransformer(hashed_strings), hasher
            ),
            list(CROSSED),
        ),
    ).fit(table)
    return {
        "skest, FeatureColumns.encode": lambda: columns.encode(table),
        "pandas.factorize of the strings": lambda: [
            pd.factorize(table[name]) for name in STRINGS
        ],
        "scikit-learn, the same columns": lambda: both.transform(table),
        "scikit-learn, one-hot only": lambda: one_hot.transform(table),
        "scikit-learn, hashing only": lambda: hashing.transform(table),
    }


def best_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the least time of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def memory(n_rows: int, dtype: str) -> tuple[float, float]:
    """Return MiB of the encoded tensors, and the peak beside the table until then."""
    table = make_table(n_rows, dtype)
    columns = make_columns().fit(table)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    encoded = columns.encode(table)
    peak = status("VmHWM") - before
    return sum(tensor.nbytes for tensor in encoded.values()) / MIB, peak


def status(field: str) -> float:
    """Return a field of this process's status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith(field)) / 1024


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.rows:,} rows; 8 numeric and 5 string columns, one cross")
    for dtype in ("str", "object", "category"):
        table = make_table(arguments.rows, dtype)
        functions = contenders(table)
        print(f"\n{'strings of dtype ' + dtype:<34} seconds  times skest")
        own = None
        for name, function in functions.items():
            seconds = best_seconds(function, arguments.repeats)
            own = own or seconds
            print(f"{name:<34} {seconds:7.3f} {seconds / own:12.2f}", flush=True)
        del table, functions
        if Path("/proc/self/clear_refs").exists():
            with get_context("spawn").Pool(1) as pool:
                size, peak = pool.apply(memory, (arguments.rows, dtype))
            print(
                f"memory: encoded tensors {size:.0f} MiB, peak {peak:.0f} MiB, "
                f"{peak / size:.1f} times as much"
            )


if __name__ == "__main__":
    main()
