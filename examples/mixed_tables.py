# SPDX-License-Identifier: Apache-2.0
"""Real tables of numbers and strings for the examples."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

CENSUS_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status",
    "occupation", "relationship", "race", "gender", "capital_gain", "capital_loss",
    "hours_per_week", "native_country", "income_bracket",
]  # fmt: skip


@dataclass(frozen=True)
class MixedTable:
    """A table with a binary target, split into training and test rows."""

    name: str
    target: str
    numeric: Sequence[str]
    categorical: Sequence[str]
    bucketized: tuple[str, Sequence[float]]
    crosses: Sequence[Sequence[str]]
    X_train: pd.DataFrame
    y_train: pd.Series
    X_test: pd.DataFrame
    y_test: pd.Series


def load_census(data: Path | None, offline: bool) -> MixedTable | None:
    """Load Census income: from `data`, from beside the checkout, or from OpenML.

    Returns None if it is not at hand and `offline`.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "adult"
    folder = data or (beside if beside.is_dir() else None)
    if folder is not None:
        train, test = (
            _read_census(folder, f"adult.{part}") for part in ("data", "test")
        )
    elif offline:
        return None
    else:
        train, test = _fetch_census()
    return MixedTable(
        name="Census income (UCI adult)",
        target="income above 50K",
        numeric=["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"],
        categorical=[
            "workclass", "education", "marital_status", "occupation", "relationship",
            "race", "gender", "native_country",
        ],
        bucketized=("age", [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]),
        crosses=[
            ["education", "occupation"],
            ["native_country", "occupation"],
            ["marital_status", "occupation"],
        ],
        X_train=train.drop(columns="income_bracket"),
        y_train=train["income_bracket"],
        X_test=test.drop(columns="income_bracket"),
        y_test=test["income_bracket"],
    )  # fmt: skip


def load_fair() -> MixedTable:
    """Load the survey `fair` that comes with statsmodels (Fair 1978)."""
    from sklearn.model_selection import train_test_split
    from statsmodels.datasets import fair

    occupations = {
        1: "student", 2: "farming or unskilled", 3: "white-collar",
        4: "teacher, nurse or skilled", 5: "managerial", 6: "professional",
    }  # fmt: skip
    table = fair.load_pandas().data
    for column in ("occupation", "occupation_husb"):
        table[column] = table[column].astype(int).map(occupations)
    y = (table.pop("affairs") > 0).map({True: "yes", False: "no"})
    X_train, X_test, y_train, y_test = train_test_split(
        table, y, test_size=0.3, random_state=0, stratify=y
    )
    return MixedTable(
        name="Extramarital affairs (Fair 1978, from statsmodels)",
        target="had an affair",
        numeric=[
            "rate_marriage",
            "age",
            "yrs_married",
            "children",
            "religious",
            "educ",
        ],
        categorical=["occupation", "occupation_husb"],
        bucketized=("yrs_married", [1, 3, 7, 10, 14, 20]),
        crosses=[["occupation", "occupation_husb"]],
        X_train=X_train,
        y_train=y_train,
        X_test=X_test,
        y_test=y_test,
    )


def _read_census(folder: Path, name: str) -> pd.DataFrame:
    path = folder / f"{name}.gz"
    opened = gzip.open(path, "rt") if path.exists() else (folder / name).open()
    with opened as file:
        table = pd.read_csv(
            file,
            names=CENSUS_COLUMNS,
            skipinitialspace=True,
            na_values="?",
            skiprows=1 if name.endswith("test") else 0,
        )
    table["income_bracket"] = table["income_bracket"].str.rstrip(".")
    return table


def _fetch_census() -> tuple[pd.DataFrame, pd.DataFrame]:
    from sklearn.datasets import fetch_openml
    from sklearn.model_selection import train_test_split

    fetched = fetch_openml("adult", version=2, as_frame=True)
    table = fetched.data.rename(columns=lambda name: name.replace("-", "_"))
    table = table.rename(columns={"sex": "gender"})
    for column in table.select_dtypes("category"):
        table[column] = table[column].astype(object)
    table["income_bracket"] = fetched.target.astype(object)
    return tuple(train_test_split(table, test_size=1 / 3, random_state=0))
