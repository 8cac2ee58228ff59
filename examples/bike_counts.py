# SPDX-License-Identifier: Apache-2.0
"""
Counts: bicycles rented in an hour (UCI bike sharing)
=====================================================

Compares `DNNRegressor(loss="poisson")` with scikit-learn's `PoissonRegressor` and
`HistGradientBoostingRegressor` by the mean Poisson deviance on the same fifth of the rows.

Usage: python examples/bike_counts.py [--data FOLDER] [--seed 0]
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from skest import DNNRegressor

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "bike_sharing"
CATEGORICAL = [
    "season", "yr", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit",
]  # fmt: skip
NUMERIC = ["temp", "atemp", "hum", "windspeed"]


def read_table(folder: Path) -> pd.DataFrame:
    """Return the table of hours."""
    if not (folder / "hour.csv").is_file():
        sys.exit(
            f"There is no hour.csv in {folder}. Download the table from "
            "https://archive.ics.uci.edu/dataset/275 and name its folder with --data."
        )
    return pd.read_csv(folder / "hour.csv")


def load(folder: Path) -> tuple[pd.DataFrame, pd.Series]:
    """Return features and hourly counts."""
    table = read_table(folder)
    X = table[[*CATEGORICAL, *NUMERIC]].astype(dict.fromkeys(CATEGORICAL, "category"))
    return X, table["cnt"]


def models(seed: int) -> dict[str, Any]:
    one_hot = make_column_transformer(
        (OneHotEncoder(), CATEGORICAL), (StandardScaler(), NUMERIC)
    )
    return {
        'DNNRegressor(loss="poisson")': DNNRegressor(
            loss="poisson",
            optimizer="adam",
            learning_rate=0.001,
            max_iter=30,
            random_state=seed,
        ),
        "PoissonRegressor, one-hot": make_pipeline(
            one_hot, PoissonRegressor(alpha=1e-4, solver="newton-cholesky")
        ),
        "HistGradientBoostingRegressor": HistGradientBoostingRegressor(
            loss="poisson", random_state=seed
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
    print(f"{'':<32} deviance seconds")
    for name, model in models(arguments.seed).items():
        start = time.perf_counter()
        model.fit(X_train, y_train)
        seconds = time.perf_counter() - start
        deviance = mean_poisson_deviance(y_test, model.predict(X_test))
        print(f"{name:<32} {deviance:8.2f} {seconds:7.1f}")


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # for a fair comparison of times
        main()
