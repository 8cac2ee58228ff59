# SPDX-License-Identifier: Apache-2.0
"""
Sequences: who comes back to hospital
=====================================

Told by a history of events and the age.

The histories are simulated. What counts is the order: an infection that antibiotics or a
month of rest follow does no harm, and a fall is bad after surgery without physiotherapy.
`RNNClassifier` reads the events as sequences; the others see which events there were and
how often, a bag: `DNNClassifier` on the same lists, and scikit-learn's
`LogisticRegression` and `HistGradientBoostingClassifier` on their counts. The last line is
the best that anyone could reach, by the probabilities of the simulation.

Usage: python examples/sequences.py [--rows 8000] [--seed 0]
"""

import argparse
import time
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler
from threadpoolctl import threadpool_limits

from skest import DNNClassifier, RNNClassifier

EVENTS = ["checkup", "infection", "antibiotics", "surgery", "physiotherapy", "fall"]


def risk(events: list[str], rest: list[float], age: int) -> float:
    """Return the probability to come back after a history."""
    infected = weak = False
    falls = 0
    for event, days in zip(events, rest, strict=True):
        infected = event == "infection" or (infected and event != "antibiotics")
        weak = event == "surgery" or (weak and event != "physiotherapy")
        falls += weak and event == "fall"
        infected &= days < 30
    return float(1 / (1 + np.exp(2.5 - 4 * infected - 2 * falls - 0.05 * (age - 65))))


def simulate(n_rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return histories, who came back, and the true probabilities."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 13, n_rows)
    X = pd.DataFrame(
        {
            "event": [rng.choice(EVENTS, n).tolist() for n in lengths],
            "days of rest": [rng.exponential(15, n).round(1).tolist() for n in lengths],
            "age": rng.integers(40, 90, n_rows),
        }
    )
    columns = X["event"], X["days of rest"], X["age"]
    probability = np.array([risk(*row) for row in zip(*columns, strict=True)])
    return X, (rng.random(n_rows) < probability).astype(int), probability


def bags(X: pd.DataFrame) -> list[dict[str, float]]:
    """Return the numbers of events, the days of rest and the age of each row."""
    return [
        {**Counter(events), "days of rest": sum(rest), "age": age}
        for events, rest, age in X.itertuples(index=False)
    ]


def bag_pipeline(model: object) -> object:
    dense = DictVectorizer(sparse=False)
    return make_pipeline(FunctionTransformer(bags), dense, MaxAbsScaler(), model)


def without_rest(X: pd.DataFrame) -> pd.DataFrame:
    """Return total days in place of the list, which a DNN cannot take."""
    return X.assign(**{"days of rest": X["days of rest"].map(sum)})


def models(seed: int) -> dict[str, Any]:
    return {
        "RNNClassifier": RNNClassifier(
            cell_type="gru", optimizer="adam", learning_rate=0.003,
            early_stopping=True, random_state=seed,
        ),
        "DNNClassifier, bag": make_pipeline(
            FunctionTransformer(without_rest), DNNClassifier(random_state=seed)
        ),
        "LogisticRegression, bag": bag_pipeline(LogisticRegression()),
        "HistGradientBoosting, bag": bag_pipeline(
            HistGradientBoostingClassifier(random_state=seed)
        ),
    }  # fmt: skip


def report(name: str, y: np.ndarray, probability: np.ndarray, seconds: float) -> None:
    scores = (
        accuracy_score(y, probability > 0.5),
        roc_auc_score(y, probability),
        log_loss(y, probability),
    )
    print(f"{name:<27}" + "".join(f" {s:8.3f}" for s in scores) + f" {seconds:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    X, y, p = simulate(arguments.rows, arguments.seed)
    X_train, X_test, y_train, y_test, _, p_test = train_test_split(
        X, y, p, test_size=0.5, random_state=arguments.seed
    )
    print(
        f"{len(X_train)} histories to train, {len(X_test)} to test; one thread for all"
    )
    print(f"{'':<27} accuracy      auc log_loss  seconds")
    for name, model in models(arguments.seed).items():
        start = time.perf_counter()
        model.fit(X_train, y_train)
        seconds = time.perf_counter() - start
        report(name, y_test, model.predict_proba(X_test)[:, 1], seconds)
    report("the simulation itself", y_test, p_test, 0.0)


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # for a fair comparison of times
        main()
