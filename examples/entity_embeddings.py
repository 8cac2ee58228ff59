# SPDX-License-Identifier: Apache-2.0
"""
Learned vectors for gradient boosting
=====================================

A `DNNClassifier` learns an embedding of every string column. Its fitted
``feature_columns_`` are a scikit-learn transformer that gives these vectors, and
`HistGradientBoostingClassifier` takes them in place of codes. Two tables: Census income,
whose columns have at most 41 levels, and simulated orders of 2,000 shops.

Run it with ``python examples/entity_embeddings.py``. It takes Census from ``--data DIR``,
from ``../shared/data/adult``, or from OpenML. With ``--offline`` and no such folder it
takes a survey that comes with statsmodels instead.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from mixed_tables import load_census, load_fair
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

from skest import DNNClassifier
from skest import feature_columns as fc


class Table(NamedTuple):
    """A table with a binary target, split into training and test rows."""

    name: str
    numeric: list[str]
    words: list[str]
    X_train: pd.DataFrame
    y_train: Any
    X_test: pd.DataFrame
    y_test: Any


def census(data: Path | None, offline: bool) -> Table:
    table = load_census(data, offline) or load_fair()
    split = (table.X_train, table.y_train, table.X_test, table.y_test)
    return Table(table.name, list(table.numeric), list(table.categorical), *split)


def orders(n_rows: int, seed: int) -> Table:
    """Simulate orders, which are returned if the shop does not suit the buyer's age."""
    rng = np.random.default_rng(seed)
    n_shops = 2000
    suits, tolerance = rng.uniform(20, 70, n_shops), rng.uniform(5, 20, n_shops)
    shop, age = rng.integers(0, n_shops, n_rows), rng.uniform(18, 80, n_rows)
    distance = abs(age - suits[shop]) / tolerance[shop]
    returned = rng.random(n_rows) < 1 / (1 + np.exp(3 - 2 * distance))
    X = pd.DataFrame({"age": age, "shop": [f"shop {i}" for i in shop]})
    half = n_rows // 2
    split = (X[:half], returned[:half], X[half:], returned[half:])
    return Table("Simulated orders of 2,000 shops", ["age"], ["shop"], *split)


def make_network(table: Table, seed: int) -> DNNClassifier:
    """Return a network with an embedding of every string column."""
    numbers = [
        fc.numeric_column(key, normalizer="standard", default_value="mean")
        for key in table.numeric
    ]
    vectors = [
        fc.embedding_column(fc.categorical_column_with_vocabulary_list(key), "auto")
        for key in table.words
    ]
    return DNNClassifier(
        feature_columns=[*numbers, *vectors],
        optimizer="adam",
        learning_rate=0.003,
        early_stopping=True,
        random_state=seed,
    )


def encoders(table: Table, seed: int) -> dict[str, Any]:
    """Return what turns the strings into numbers in the usual ways."""
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
    # One-hot columns of all shops would be too many for a dense matrix.
    one_hot = {"handle_unknown": "infrequent_if_exist", "max_categories": 200}
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    made = {
        "ordinal codes": OrdinalEncoder(**unknown),
        "one-hot": OneHotEncoder(**one_hot, sparse_output=False),
        "means of the target": TargetEncoder(cv=folds),
    }
    return {
        name: make_column_transformer(
            (encoder, table.words), ("passthrough", table.numeric)
        )
        for name, encoder in made.items()
    }


def report(name: str, table: Table, model: Any, seconds: float) -> None:
    probability = model.predict_proba(table.X_test)
    scores = (
        accuracy_score(table.y_test, model.predict(table.X_test)),
        roc_auc_score(table.y_test, probability[:, 1]),
        log_loss(table.y_test, probability),
    )
    print(f"{name:<31}" + "".join(f" {s:8.4f}" for s in scores) + f" {seconds:8.1f}")


def compare(table: Table, seed: int) -> None:
    """Print the scores of the network, and of boosting on what it and others give."""
    sizes = f"{len(table.X_train):,} rows to train, {len(table.X_test):,} to test"
    print(f"\n{table.name}: {sizes}")
    print(f"{'':<31} accuracy      AUC log loss  seconds")
    start = time.perf_counter()
    network = make_network(table, seed).fit(table.X_train, table.y_train)
    seconds = time.perf_counter() - start
    report("DNNClassifier", table, network, seconds)

    # Frozen, the columns keep their vectors when the pipeline is fitted.
    learned = FrozenEstimator(network.feature_columns_)
    for name, encoder in {"learned vectors": learned, **encoders(table, seed)}.items():
        start = time.perf_counter()
        model = make_pipeline(
            encoder, HistGradientBoostingClassifier(random_state=seed)
        )
        model.fit(table.X_train, table.y_train)
        boosting = time.perf_counter() - start
        total = boosting + seconds if encoder is learned else boosting
        report(f"boosting, {name}", table, model, total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--data", type=Path, help="folder with adult.data and .test")
    parser.add_argument("--offline", action="store_true", help="download nothing")
    parser.add_argument("--rows", type=int, default=100_000, help="simulated orders")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    compare(census(options.data, options.offline), options.seed)
    compare(orders(options.rows, options.seed), options.seed)


if __name__ == "__main__":
    main()
