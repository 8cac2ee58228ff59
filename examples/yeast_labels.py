# SPDX-License-Identifier: Apache-2.0
"""
Several labels per row
======================

The functions of a yeast gene (Mulan's "yeast").

A gene has some of 14 functions, told from 103 numbers. `DNNClassifier` takes the matrix of
zeros and ones as it is; a search on the training genes chooses its hidden units and
dropout. It is compared with scikit-learn's multilabel models on the official split.

Usage: python examples/yeast_labels.py [--data FOLDER] [--seed 0]
"""

import argparse
import gzip
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import arff
from sklearn.datasets import fetch_openml
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    f1_score,
    hamming_loss,
    label_ranking_average_precision_score,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skest import DNNClassifier

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "yeast"
N_FEATURES, N_TRAIN = 103, 1500


def load(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return features and labels, the training rows first."""
    if folder.is_dir():
        parts = []
        for part in ("train", "test"):
            with gzip.open(folder / f"yeast-{part}.arff.gz", "rt") as file:
                parts.append(pd.DataFrame(arff.loadarff(io.StringIO(file.read()))[0]))
        table = pd.concat(parts, ignore_index=True)
    else:
        table = fetch_openml("yeast", version=4, as_frame=True).frame
    labels = table.iloc[:, N_FEATURES:]
    if labels.iloc[0, 0] in ("TRUE", "FALSE"):
        labels = labels == "TRUE"
    return table.iloc[:, :N_FEATURES].astype(float), labels.astype(int)


def models(seed: int) -> dict[str, Any]:
    network = DNNClassifier(
        optimizer="adam", learning_rate=0.001, max_iter=60, random_state=seed
    )
    logistic = LogisticRegression(C=0.05, max_iter=1000)
    boosting = HistGradientBoostingClassifier(max_iter=50, random_state=seed)
    return {
        "DNNClassifier, searched": GridSearchCV(
            network,
            {"hidden_units": [(128, 64), (256,)], "dropout": [0.0, 0.5]},
            scoring="f1_micro",
            cv=3,
        ),
        "LogisticRegression for each label": make_pipeline(
            StandardScaler(), MultiOutputClassifier(logistic)
        ),
        "MLPClassifier, early stopping": make_pipeline(
            StandardScaler(),
            MLPClassifier((128, 64), early_stopping=True, random_state=seed),
        ),
        "HistGradientBoosting for each label": MultiOutputClassifier(boosting),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--data", type=Path, default=BESIDE)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    X, y = load(arguments.data)
    X_train, y_train = X[:N_TRAIN], y[:N_TRAIN]
    X_test, y_test = X[N_TRAIN:], y[N_TRAIN:]
    print(
        f"{len(X_train)} genes to train, {len(X_test)} to test, {y.shape[1]} labels; "
        "one thread for all"
    )
    print(f"{'':<36} wrong labels micro F1 ranking precision seconds")
    for name, model in models(arguments.seed).items():
        start = time.perf_counter()
        model.fit(X_train, y_train)
        seconds = time.perf_counter() - start
        probability = model.predict_proba(X_test)
        if isinstance(probability, list):  # of MultiOutputClassifier
            probability = np.stack([p[:, 1] for p in probability], axis=1)
        labels = probability > 0.5
        ranking = label_ranking_average_precision_score(y_test, probability)
        print(
            f"{name:<36} {hamming_loss(y_test, labels):12.4f}"
            f" {f1_score(y_test, labels, average='micro'):8.4f}"
            f" {ranking:17.4f} {seconds:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # for a fair comparison of times
        main()
