# SPDX-License-Identifier: Apache-2.0
"""
Three targets of one network
============================

Who rents a bicycle, and is it rush hour (UCI bikes)?

`MultiHeadEstimator` learns the casual and the registered rentals of an hour as counts, and
whether the hour is among the busiest fifth. It is compared with separate models for each
target: scikit-learn's gradient boosting and generalised linear models, and separate
networks of the same kind. Lower is better in all columns but the last two.

Usage: python examples/bike_tasks.py [--data FOLDER] [--seed 0]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from bike_counts import BESIDE, CATEGORICAL, NUMERIC, read_table
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from skest import DNNClassifier, DNNRegressor, MultiHeadEstimator

NETWORK: dict[str, Any] = {
    "hidden_units": (256, 128),
    "dropout": 0.1,
    "optimizer": "adam",
    "learning_rate": 0.001,
    "max_iter": 60,
}
BUSY = 0.8  # the quantile of the hourly rentals above which it is rush hour


def load(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return features and the three targets."""
    table = read_table(folder)
    X = table[[*CATEGORICAL, *NUMERIC]].astype(dict.fromkeys(CATEGORICAL, "category"))
    rush_hour = table["cnt"] > table["cnt"].quantile(BUSY)
    return X, table[["casual", "registered"]].assign(rush_hour=rush_hour)


def several_heads(seed: int, X: pd.DataFrame, y: pd.DataFrame) -> Callable[..., Any]:
    """Fit one network with three heads; return its predictions as a function."""
    model = MultiHeadEstimator(
        heads={
            "casual": "poisson",
            "registered": "poisson",
            "rush_hour": "classification",
        },
        # A log loss is a fraction of a deviance of counts.
        head_weights={"rush_hour": 10.0},
        random_state=seed,
        **NETWORK,
    ).fit(X, y)

    def predict(X: pd.DataFrame) -> list[np.ndarray]:
        counts = model.predict(X)
        return [
            counts["casual"],
            counts["registered"],
            model.predict_proba(X)[2][:, 1],
        ]

    return predict


def separate(
    regressor: Callable[..., Any],
    classifier: Callable[..., Any],
    X: pd.DataFrame,
    y: pd.DataFrame,
) -> Callable[..., Any]:
    """Fit a model for each target; return their predictions as a function."""
    casual = regressor().fit(X, y["casual"])
    registered = regressor().fit(X, y["registered"])
    rush_hour = classifier().fit(X, y["rush_hour"])
    return lambda X: [
        casual.predict(X),
        registered.predict(X),
        rush_hour.predict_proba(X)[:, 1],
    ]


def fits(seed: int) -> dict[str, Callable[..., Any]]:
    one_hot = make_column_transformer(
        (OneHotEncoder(), CATEGORICAL), (StandardScaler(), NUMERIC)
    )
    network: dict[str, Any] = {"random_state": seed, **NETWORK}
    boosted = {"random_state": seed}
    return {
        "MultiHeadEstimator, three heads": partial(several_heads, seed),
        "separate DNNRegressor, DNNClassifier": partial(
            separate,
            lambda: DNNRegressor(loss="poisson", **network),
            lambda: DNNClassifier(**network),
        ),
        "separate HistGradientBoosting…": partial(
            separate,
            lambda: HistGradientBoostingRegressor(loss="poisson", **boosted),
            lambda: HistGradientBoostingClassifier(**boosted),
        ),
        "separate linear models, one-hot": partial(
            separate,
            lambda: make_pipeline(
                one_hot, PoissonRegressor(alpha=1e-4, solver="newton-cholesky")
            ),
            lambda: make_pipeline(one_hot, LogisticRegression(max_iter=1000)),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--data", type=Path, default=BESIDE, help="where hour.csv is")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    X, y = load(arguments.data)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.2, random_state=arguments.seed
    )
    print(f"{len(X_train)} rows to train, {len(X_test)} to test; one thread for all")
    print(f"{'':<36}  deviance of counts    rush hour")
    print(f"{'':<36} casual registered log loss    AUC seconds")
    for name, fit in fits(arguments.seed).items():
        start = time.perf_counter()
        predict = fit(X_train, y_train)
        seconds = time.perf_counter() - start
        casual, registered, rush_hour = predict(X_test)
        print(
            f"{name:<36}"
            f" {mean_poisson_deviance(y_test['casual'], casual):6.2f}"
            f" {mean_poisson_deviance(y_test['registered'], registered):10.2f}"
            f" {log_loss(y_test['rush_hour'], rush_hour):8.4f}"
            f" {roc_auc_score(y_test['rush_hour'], rush_hour):6.4f} {seconds:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # for a fair comparison of times
        main()
