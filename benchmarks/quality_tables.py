# SPDX-License-Identifier: Apache-2.0
"""The tables of `benchmarks.quality`, as a careful user reads them."""

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.io import arff
from sklearn import datasets
from sklearn.model_selection import train_test_split

__all__ = ["DATA", "TABLES", "Split", "Table"]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


class Split(NamedTuple):
    """Rows to train with and rows held out."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray


@dataclass(frozen=True)
class Table:
    """A table and the way to split it.

    `task` is "classes", "labels" (several for a row) or "numbers". `load` returns X and y,
    or the four parts of an official split, which is taken as it is.
    """

    task: str
    load: Callable[[], tuple[Any, ...]]

    def split(self, seed: int, n_rows: int) -> Split:
        """Return a quarter of the rows as held out; `n_rows` of each part at most."""
        loaded = self.load()
        if len(loaded) == 4:
            return Split(*loaded)
        X, y = loaded
        classes = y if self.task == "classes" else None
        X, X_test, y, y_test = train_test_split(
            X, y, test_size=0.25, random_state=seed, stratify=classes
        )
        return Split(X[:n_rows], y[:n_rows], X_test[:n_rows], y_test[:n_rows])


def _adult(part: str) -> tuple[pd.DataFrame, np.ndarray]:
    names = (
        "age workclass fnlwgt education education_num marital_status occupation "
        "relationship race gender capital_gain capital_loss hours_per_week "
        "native_country income"
    ).split()
    table = pd.read_csv(
        DATA / "adult" / f"adult.{part}.gz",
        names=names,
        skipinitialspace=True,
        na_values="?",
        skiprows=int(part == "test"),
    )
    return table.drop(columns="income"), table["income"].str.rstrip(".").to_numpy(
        object
    )


def _read(
    path: str,
    target: str,
    drop: tuple[str, ...] = (),
    change: Callable[[Any], Any] = np.asarray,
) -> tuple[pd.DataFrame, np.ndarray]:
    table = pd.read_csv(DATA / path)
    y = change(table[target].to_numpy())
    return table.drop(columns=[target, *drop]), y


def _flights() -> tuple[pd.DataFrame, np.ndarray]:
    numbers = ["month", "day", "sched_dep_time", "dep_delay", "distance"]
    strings = ["carrier", "tailnum", "origin", "dest"]
    table = pd.read_parquet(DATA / "flights" / "flights.parquet")
    table = table.dropna(subset=["arr_delay"])
    X = table[numbers + strings].astype(dict.fromkeys(strings, str))
    return X, table["arr_delay"].to_numpy()


def _telco() -> tuple[pd.DataFrame, np.ndarray]:
    X, y = _read("telco/Telco-Customer-Churn.csv", "Churn", ("customerID",))
    X["TotalCharges"] = pd.to_numeric(X["TotalCharges"], errors="coerce")
    return X, y


def _yeast() -> tuple[pd.DataFrame, np.ndarray]:
    parts = []
    for part in ("train", "test"):
        with gzip.open(DATA / "yeast" / f"yeast-{part}.arff.gz", "rt") as file:
            parts.append(pd.DataFrame(arff.loadarff(io.StringIO(file.read()))[0]))
    table = pd.concat(parts, ignore_index=True)
    return table.iloc[:, :-14].astype(float), table.iloc[:, -14:].to_numpy().astype(int)


def _bundled(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
    return X, y.to_numpy()


_BIKE = ("instant", "dteday", "casual", "registered")
TABLES = {
    "adult": Table("classes", partial(_adult, "data")),
    "adult, official": Table("classes", lambda: (*_adult("data"), *_adult("test"))),
    "telco": Table("classes", _telco),
    "credit_default": Table(
        "classes",
        partial(
            _read,
            "credit_default/UCI_Credit_Card.csv.gz",
            "default.payment.next.month",
            ("ID",),
        ),
    ),
    "letter": Table("classes", partial(_read, "letter/letterdata.csv.gz", "letter")),
    "yeast": Table("labels", _yeast),
    "diamonds": Table(
        "numbers", partial(_read, "diamonds/diamonds.csv.gz", "price", change=np.log)
    ),
    "flights": Table("numbers", _flights),
    "bike": Table(
        "numbers",
        partial(_read, "bike_sharing/hour.csv", "cnt", _BIKE, change=np.log1p),
    ),
    "wine_quality": Table(
        "numbers", partial(_read, "wine_quality/winequality-white.csv", "quality")
    ),
    "iris": Table("classes", partial(_bundled, "iris")),
    "digits": Table("classes", partial(_bundled, "digits")),
    "wine": Table("classes", partial(_bundled, "wine")),
    "breast_cancer": Table("classes", partial(_bundled, "breast_cancer")),
    "diabetes": Table("numbers", partial(_bundled, "diabetes")),
}
