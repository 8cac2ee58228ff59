# SPDX-License-Identifier: Apache-2.0
"""How well networks predict of tables that were encoded before, as pipelines do.

``python -m benchmarks.encoded_tables [--rows 8000] [--seeds 2]`` prints for some tables the
loss of `DNN…` as constructed on the frame, and on what scikit-learn and pandas make of it;
beside it that of `LogisticRegression` or `Ridge`, which encode the frame.
"""

import argparse
import warnings
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from benchmarks.measure import threads
from benchmarks.quality_models import MODELS, answers, scores
from benchmarks.quality_tables import TABLES

NAMES = ("adult", "telco", "diamonds", "flights")
_NUMBERS = make_column_selector(dtype_include="number")
_STRINGS = make_column_selector(dtype_exclude="number")
_IMPUTED = SimpleImputer(strategy="median")


def _encoder(strings: Any, numbers: Any, sparse_threshold: float) -> Any:
    return make_column_transformer(
        (numbers, _NUMBERS), (strings, _STRINGS), sparse_threshold=sparse_threshold
    )


def _one_hot(sparse: bool) -> OneHotEncoder:
    return OneHotEncoder(handle_unknown="ignore", sparse_output=sparse)


SCALED = make_pipeline(_IMPUTED, StandardScaler())
ENCODERS = {
    "one-hot, numbers scaled, sparse": _encoder(_one_hot(True), SCALED, 1.0),
    "one-hot, numbers scaled, dense": _encoder(_one_hot(False), SCALED, 0.0),
    "one-hot, dense": _encoder(_one_hot(False), _IMPUTED, 0.0),
    "ordinal": _encoder(
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        _IMPUTED,
        0.0,
    ),
}


def encoded(name: str, X: pd.DataFrame, X_test: pd.DataFrame) -> tuple[Any, Any]:
    """Return rows to train on and others, as encoded."""
    if name == "frame":
        return X, X_test
    if name == "dummies":
        both = pd.get_dummies(
            pd.concat([X, X_test]).fillna(X.median(numeric_only=True))
        )
        return both[: len(X)], both[len(X) :]
    encoder = ENCODERS[name].fit(X)
    return encoder.transform(X), encoder.transform(X_test)


def main() -> None:
    """Print a line for each table and encoding."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoded_tables")
    parser.add_argument("--tables", nargs="+", default=NAMES)
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    with threads(1):
        for name in given.tables:
            table = TABLES[name]
            splits = [table.split(seed, given.rows) for seed in range(given.seeds)]
            for model, encoding in [
                ("linear", "frame"),
                *(("skest, DNN", how) for how in ("frame", *ENCODERS, "dummies")),
            ]:
                losses = []
                for seed, split in enumerate(splits):
                    X, X_test = encoded(encoding, split.X, split.X_test)
                    estimator = MODELS[model](table.task, split.X, seed)
                    estimator.fit(X, split.y)
                    found = answers(estimator, table.task, X_test)
                    losses.append(scores(table.task, split.y_test, *found)["loss"])
                print(
                    f"{name:<10} {model:<11} {encoding:<32} {np.mean(losses):.4g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
