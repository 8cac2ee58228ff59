# SPDX-License-Identifier: Apache-2.0
"""Fits a model as constructed to a table of numbers and codes of categories.

Columns of categories are told as such, in the way of each library; -1 is a missing one.
"""

import importlib
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd

MODULES = {"LightGBM": ("lightgbm", "LGBM"), "CatBoost": ("catboost", "CatBoost")}


def make(model, task, seed):
    """Return an estimator, one thread."""
    kind = "Regressor" if task == "numbers" else "Classifier"
    module, name = MODULES.get(model, ("pytabkit", f"{model}_"))
    options = {"random_state": seed}
    if model == "LightGBM":
        options |= {"n_jobs": 1, "verbose": -1}
    elif model == "CatBoost":
        options |= {"thread_count": 1, "verbose": False, "allow_writing_files": False}
    else:
        options |= {"n_threads": 1, "device": "cpu"}
    return getattr(importlib.import_module(module), name + kind)(**options)


def table(part, as_category):
    """Return numbers and codes in one table."""
    numbers, codes = np.load(f"numbers_{part}.npy"), np.load(f"codes_{part}.npy")
    X = pd.DataFrame(numbers, columns=[f"n{i}" for i in range(numbers.shape[1])])
    for i, column in enumerate(codes.T):
        X[f"c{i}"] = pd.Categorical(column.astype(str)) if as_category else column
    return X


def main():
    """Fit, predict and write the predictions."""
    given = json.loads(Path("arguments.json").read_text())
    model, task = given["model"], given["task"]
    X, X_test = (table(part, model != "CatBoost") for part in ("train", "test"))
    names = [name for name in X if name.startswith("c")]
    options = {"cat_features": names} if model == "CatBoost" else {}
    if model != "CatBoost":  # the levels of both
        for name in names:
            levels = pd.api.types.union_categoricals([X[name], X_test[name]]).categories
            X[name] = X[name].cat.set_categories(levels)
            X_test[name] = X_test[name].cat.set_categories(levels)
    if model not in MODULES:  # those of pytabkit take no gaps
        median = X.median(numeric_only=True)
        X, X_test = X.fillna(median), X_test.fillna(median)
    y = np.load("y.npy")
    columns = y.T if task == "labels" else [y]
    predicted, seconds = [], 0.0
    for column in columns:
        estimator = make(model, task, given["seed"])
        start = time.process_time()
        estimator.fit(X, column, **options)
        seconds += time.process_time() - start
        if task == "numbers":
            predicted = estimator.predict(X_test).tolist()
        elif task == "labels":
            predicted.append(estimator.predict_proba(X_test)[:, 1].tolist())
        else:
            predicted = estimator.predict_proba(X_test).tolist()
    if task == "labels":
        predicted = np.transpose(predicted).tolist()
    result = {"predicted": predicted, "seconds": seconds}
    Path("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
