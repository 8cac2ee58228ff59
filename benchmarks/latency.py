# SPDX-License-Identifier: Apache-2.0
"""How long ``predict_proba`` takes, for one row and for a million.

Usage: ``python -m benchmarks.latency [--rows 1 100 1000 1000000]``. It compares a fitted
`DNNClassifier((128, 64))` with scikit-learn's `MLPClassifier` of the same layers behind
what a user would put before it, and with PyTorch written by hand. One table is an array of
30 numbers, the other a DataFrame of 8 numbers and 4 columns of strings.

Times are those of the processor, the least of repeats in turn: other work on the machine
does not count. All have one thread. The memory is what a prediction of all rows takes at
its peak beside the table, in a process of its own.
"""

import argparse
import ctypes
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.encode import best_seconds, status
from skest import DNNClassifier

__all__ = ["contenders", "main", "make_array", "make_table"]

UNITS = (128, 64)
N_FITTED = 2_000
CHUNK = 4_096
LEVELS = {"country": 40, "device": 6, "browser": 12, "plan": 4}
Predict = Callable[[Any], np.ndarray]


def make_array(n_rows: int) -> np.ndarray:
    """Return 30 columns of numbers."""
    return np.random.default_rng(0).normal(size=(n_rows, 30))


def make_table(n_rows: int) -> pd.DataFrame:
    """Return a table of numbers and strings."""
    rng = np.random.default_rng(0)
    numbers = {f"n{i}": rng.normal(size=n_rows) for i in range(8)}
    strings = {
        name: pd.Series([f"{name} {i}" for i in range(n)]).iloc[
            rng.integers(0, n, n_rows)
        ]
        for name, n in LEVELS.items()
    }
    return pd.DataFrame(
        numbers | {name: values.array for name, values in strings.items()}
    )


def contenders(make: Callable[[int], Any]) -> dict[str, Predict]:
    """Return functions of rows that predict probabilities, of fitted models."""
    X = make(N_FITTED)
    is_array = isinstance(X, np.ndarray)
    y = (np.asarray(X if is_array else X["n0"]).reshape(N_FITTED, -1)[:, 0] > 0) * 1
    peer: Any = make_pipeline(
        StandardScaler()
        if is_array
        else make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), list(LEVELS)),
            remainder=StandardScaler(),
        ),
        MLPClassifier(UNITS, max_iter=2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer.fit(X, y)
        alone = MLPClassifier(UNITS, max_iter=2).fit(X, y) if is_array else None
    found: dict[str, Predict] = {
        f"skest, {execution}": DNNClassifier(
            UNITS,
            optimizer="adagrad",
            learning_rate=0.05,
            max_iter=2,
            random_state=0,
            execution=execution,
        )
        .fit(X, y)
        .predict_proba
        for execution in ("auto", "eager")
    }
    found["scikit-learn, Pipeline with an MLP"] = peer.predict_proba
    if alone is not None:
        found["scikit-learn, MLP alone"] = alone.predict_proba
        found["PyTorch by hand, not checked"] = by_hand(X)
    return found


def by_hand(X: np.ndarray) -> Predict:
    """Return the least that has to be done, without any check."""
    layers = [
        module
        for n_in, n_out in zip((X.shape[1], *UNITS), (*UNITS, 1), strict=True)
        for module in (torch.nn.Linear(n_in, n_out), torch.nn.ReLU())
    ]
    network = torch.nn.Sequential(*layers[:-1]).double().eval()
    mean, scale = (torch.from_numpy(v) for v in (X.mean(axis=0), X.std(axis=0)))

    def predict(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found = []
            for chunk in torch.from_numpy(rows).split(CHUNK):
                logits = network((chunk - mean) / scale)
                both = torch.cat([-logits, logits], dim=1)
                found.append(both.sigmoid())
            return torch.cat(found).numpy()

    return predict


def peak(make: Callable[[int], Any], name: str, n_rows: int) -> float:
    """Return how many MiB a prediction takes at most beside the table."""
    torch.set_num_threads(1)
    predict, X = contenders(make)[name], make(n_rows)
    predict(X[:CHUNK])
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    predict(X)
    return status("VmHWM") - before


def print_table(make: Callable[[int], Any], n_rows: int, repeats: int) -> None:
    """Print times, and for many rows the memory, of all contenders."""
    X = make(n_rows)
    n_calls = max(1, 100 // n_rows)

    def called(predict: Predict) -> Callable[[], None]:
        def call() -> None:
            for _ in range(n_calls):
                predict(X)

        return call

    functions = contenders(make)
    for predict in functions.values():
        for _ in range(100):  # until all that is learned from calls is learned
            predict(X[:1])
    seconds = best_seconds({k: called(f) for k, f in functions.items()}, repeats)
    has_memory = n_rows >= 100 * CHUNK and Path("/proc/self/clear_refs").exists()
    print(f"\n{type(X).__name__}, {n_rows:,} rows", "  ms a call  µs a row   MiB")
    for name, value in seconds.items():
        each = value / n_calls
        memory = ""
        if has_memory:
            with get_context("spawn").Pool(1) as pool:
                memory = f"{pool.apply(peak, (make, name, n_rows)):6.0f}"
        per_row = 1e6 * each / n_rows
        print(f"{name:<36} {1e3 * each:9.3f} {per_row:9.3f} {memory}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [1, 100, 1000, 1_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for make in (make_array, make_table):
        for n_rows in arguments.rows:
            few = n_rows >= 100 * CHUNK
            print_table(make, n_rows, 3 if few else arguments.repeats)


if __name__ == "__main__":
    main()
