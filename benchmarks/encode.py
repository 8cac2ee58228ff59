# SPDX-License-Identifier: Apache-2.0
"""What it costs to encode a mixed table: pandas, scikit-learn and tf.estimator beside it.

Run it with ``python -m benchmarks.encode [--rows 1000000] [--no-tensorflow]``. The table
has 8 numeric columns, 5 string columns of 10 to 50,000 levels, and one cross of two of
them. Below are the best processor times of some runs in turn, all with one thread, and the
peak of the memory that encoding takes beside the table (Linux only). TensorFlow runs in an
environment of its own, which is made at the first run, see `benchmarks.peers`.
"""

import argparse
import ctypes
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from benchmarks import peers
from benchmarks.tables import (
    CROSS_BUCKETS,
    CROSSED,
    NUMBERS,
    STRINGS,
    levels_of,
    mixed,
    mixed_arrays,
)
from skest import feature_columns as fc

MIB = 2**20
OWN = "skest, FeatureColumns.encode"
FACTORIZE = "pandas.factorize of the strings"
ONE_HOT = "scikit-learn, one-hot only"


def make_columns() -> fc.FeatureColumns:
    """Return the feature columns: a vocabulary for each string column but the largest."""
    columns: list[fc.FeatureColumn] = [
        fc.numeric_column(name, normalizer="standard") for name in NUMBERS
    ]
    for name in STRINGS[:-1]:
        vocabulary = fc.categorical_column_with_vocabulary_list(name)
        columns.append(fc.embedding_column(vocabulary, "auto"))
    hashed = fc.categorical_column_with_hash_bucket(STRINGS[-1], CROSS_BUCKETS)
    columns.append(fc.embedding_column(hashed, "auto"))
    columns.append(fc.crossed_column(CROSSED, CROSS_BUCKETS))
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
    strings = fc.FeatureColumns(make_columns().columns[len(NUMBERS) :]).fit(table)
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
        OWN: lambda: columns.encode(table),
        "skest, strings and cross alone": lambda: strings.encode(table),
        FACTORIZE: lambda: [pd.factorize(table[name]) for name in STRINGS],
        "scikit-learn, the same columns": lambda: both.transform(table),
        ONE_HOT: lambda: one_hot.transform(table),
        "scikit-learn, hashing only": lambda: hashing.transform(table),
    }


def best_seconds(
    functions: dict[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Return the least time of each function, which are called in turn.

    It is the time of the processor, which counts no other work on the machine.
    """
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.process_time()
            function()
            best[name] = min(best[name], time.process_time() - start)
    return best


def tensorflow(n_rows: int, repeats: int) -> dict[str, Any]:
    """Return what `benchmarks/peers/encode_tensorflow.py` measures."""
    arrays = mixed_arrays(n_rows)
    numbers = {name: (arrays[name].mean(), arrays[name].std()) for name in NUMBERS}
    arguments = {
        "numbers": numbers,
        "levels": levels_of(),
        "hashed": STRINGS[-1],
        "crossed": CROSSED,
        "n_buckets": CROSS_BUCKETS,
        "repeats": repeats,
    }
    return peers.run(peers.TENSORFLOW, "encode_tensorflow.py", arguments, arrays)


def memory(n_rows: int, dtype: str) -> tuple[float, float]:
    """Return MiB of the encoded tensors, and the peak beside the table until then."""
    table = mixed(n_rows, dtype)
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


def print_times(dtype: str, arguments: argparse.Namespace) -> None:
    """Print the times for strings of a dtype."""
    functions = contenders(mixed(arguments.rows, dtype))
    seconds = best_seconds(functions, arguments.repeats)
    rows = dict(seconds)
    peer = None
    if dtype == "object" and arguments.tensorflow:  # these TensorFlow takes
        peer = tensorflow(arguments.rows, arguments.repeats)
        rows |= {
            "tf.estimator, whole table, tensors": peer["seconds"]["tensors"],
            "tf.estimator, whole table, arrays": peer["seconds"]["arrays"],
            f"tf.estimator, batches of {peer['batch']}": peer["seconds"]["batches"],
        }
    print(f"\n{'strings of dtype ' + dtype:<36} seconds  times skest")
    for name, value in rows.items():
        print(f"{name:<36} {value:7.3f} {value / seconds[OWN]:12.2f}")
    print(
        "bound: an encoder that looks at every string once, as factorize does, can be at "
        f"most {seconds[ONE_HOT] / seconds[FACTORIZE]:.1f} times as fast as one-hot only"
    )
    if peer and peer["peak"] is not None:
        print_memory("tf.estimator", peer["size"], peer["peak"])


def print_memory(who: str, size: float, peak: float) -> None:
    """Print the peak of memory beside the size of the result."""
    print(
        f"memory of {who}: encoded tensors {size:.0f} MiB, peak {peak:.0f} MiB, "
        f"{peak / size:.1f} times as much",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--tensorflow", action=argparse.BooleanOptionalAction, default=True
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.rows:,} rows; 8 numeric and 5 string columns, one cross")
    for dtype in ("str", "object", "category"):
        print_times(dtype, arguments)
        if Path("/proc/self/clear_refs").exists():
            with get_context("spawn").Pool(1) as pool:
                size, peak = pool.apply(memory, (arguments.rows, dtype))
            print_memory("skest", size, peak)


if __name__ == "__main__":
    main()
