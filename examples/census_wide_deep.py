# SPDX-License-Identifier: Apache-2.0
"""
Wide & deep on Census income
============================

A real mixed table, from a DataFrame to held-out scores.

Run it with ``python examples/census_wide_deep.py``. It takes the Census income table from
``--data DIR``, from ``../shared/data/adult``, or from OpenML. With ``--offline`` and no
such folder it takes a survey that comes with statsmodels instead.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mixed_tables import MixedTable, load_census, load_fair
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from skest import DNNLinearCombinedClassifier
from skest import feature_columns as fc


def log_of_amounts(X: pd.DataFrame) -> pd.DataFrame:
    """Take logarithms of amounts of money, most of which are zero."""
    amounts = [name for name in X if str(name).startswith("capital_")]
    return X.assign(**{str(name): np.log1p(X[name]) for name in amounts})


def make_columns(table: MixedTable) -> tuple[fc.FeatureColumns, fc.FeatureColumns]:
    """Describe the features: what the wide part takes, and what the deep part takes."""
    name, boundaries = table.bucketized
    words = {
        key: fc.categorical_column_with_vocabulary_list(key)
        for key in table.categorical
    }
    wide: list[tuple[str, Any]] = list(words.items())
    wide.append(
        (f"{name}_bucket", fc.bucketized_column(fc.numeric_column(name), boundaries))
    )
    for keys in table.crosses:
        wide.append(("_x_".join(keys), fc.crossed_column(keys, hash_bucket_size=1000)))

    deep: list[tuple[str, Any]] = [
        (key, fc.numeric_column(key, normalizer="standard")) for key in table.numeric
    ]
    deep += [
        (key, fc.embedding_column(word, dimension=8)) for key, word in words.items()
    ]
    return (
        fc.FeatureColumns(wide, remainder="drop"),
        fc.FeatureColumns(deep, remainder="drop"),
    )


def make_model(table: MixedTable, max_iter: int) -> Pipeline:
    """Return the wide & deep model in a Pipeline."""
    wide, deep = make_columns(table)
    model = DNNLinearCombinedClassifier(
        dnn_hidden_units=(128, 64),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_optimizer="adagrad",
        dnn_learning_rate=0.05,
        max_iter=max_iter,
        n_iter_no_change=np.inf,
        random_state=0,
    )
    return make_pipeline(FunctionTransformer(log_of_amounts), model)


def search(table: MixedTable, n_rows: int, n_jobs: int) -> GridSearchCV:
    """Search hidden units, the dimension of one embedding and the learning rate."""
    model = "dnnlinearcombinedclassifier"
    embedding = table.crosses[0][0]
    grid = {
        f"{model}__dnn_hidden_units": [(64, 32), (128, 64)],
        f"{model}__dnn_feature_columns__{embedding}__dimension": [4, 8],
        f"{model}__dnn_learning_rate": [0.02, 0.05],
    }
    found = GridSearchCV(
        make_model(table, max_iter=8),
        grid,
        cv=3,
        scoring="neg_log_loss",
        n_jobs=n_jobs,
        verbose=1,
        refit=False,
    )
    return found.fit(table.X_train[:n_rows], table.y_train[:n_rows])


def make_peers(table: MixedTable) -> dict[str, Pipeline]:
    """Return what a scikit-learn user would pick instead."""

    def one_hot() -> Any:
        numbers = make_pipeline(SimpleImputer(), StandardScaler())
        words = OneHotEncoder(handle_unknown="ignore")
        return make_column_transformer(
            (numbers, list(table.numeric)), (words, list(table.categorical))
        )

    mlp = MLPClassifier((128, 64), early_stopping=True, random_state=0)
    as_categories = FunctionTransformer(
        lambda X: X.astype(dict.fromkeys(table.categorical, "category"))
    )
    boosting = HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=0
    )
    return {
        "HistGradientBoostingClassifier": make_pipeline(as_categories, boosting),
        "LogisticRegression, one-hot": make_pipeline(
            one_hot(), LogisticRegression(max_iter=1000)
        ),
        "MLPClassifier, one-hot": make_pipeline(
            FunctionTransformer(log_of_amounts), one_hot(), mlp
        ),
    }


def held_out_scores(model: Any, table: MixedTable) -> dict[str, float]:
    """Fit a model and score it on the test rows."""
    with threadpool_limits(limits=1):  # for a fair comparison of times
        start = time.perf_counter()
        model.fit(table.X_train, table.y_train)
        seconds = time.perf_counter() - start
        probability = model.predict_proba(table.X_test)
    return {
        "accuracy": accuracy_score(table.y_test, model.predict(table.X_test)),
        "AUC": roc_auc_score(table.y_test, probability[:, 1]),
        "log loss": log_loss(table.y_test, probability),
        "seconds": seconds,
    }


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument(
        "--data", type=Path, help="folder with adult.data and adult.test"
    )
    parser.add_argument(
        "--offline", action="store_true", help="download nothing; use a smaller survey"
    )
    parser.add_argument(
        "--survey", action="store_true", help="use the smaller survey in any case"
    )
    parser.add_argument("--search-rows", type=int, default=6000, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--epochs", type=int, default=15, metavar="N")
    options = parser.parse_args()

    census = None if options.survey else load_census(options.data, options.offline)
    table = census or load_fair()
    print(f"Table: {table.name}")
    print(
        f"  {len(table.X_train):,} training rows, {len(table.X_test):,} test rows; "
        f"{len(table.numeric)} numeric and {len(table.categorical)} string columns"
    )
    print(f"  target: {table.target}\n")

    print("1. Train wide & deep as it is constructed, on the raw table")
    as_constructed = DNNLinearCombinedClassifier(random_state=0)
    results = {"DNNLinearCombinedClassifier()": held_out_scores(as_constructed, table)}
    print(f"  best epoch: {as_constructed.n_iter_}\n")

    print("2. Describe the columns, and search hidden units, an embedding and the rate")
    found = search(table, options.search_rows, options.jobs)
    for name, value in found.best_params_.items():
        print(f"  best {name.partition('__')[2]}: {value}")
    print(f"  cross-validated log loss: {-found.best_score_:.4f}\n")

    print("3. Train that on all training rows")
    wide_deep = make_model(table, options.epochs).set_params(**found.best_params_)
    wide_deep[-1].set_params(verbose=1)
    results["the same, columns by hand"] = held_out_scores(wide_deep, table)

    print("\n4. Train what scikit-learn offers on the same rows")
    for name, peer in make_peers(table).items():
        print(f"  {name} ...")
        results[name] = held_out_scores(peer, table)

    print(f"\nHeld-out scores on {len(table.X_test):,} test rows; one thread for all")
    print(pd.DataFrame(results).T.round(4).to_string())


if __name__ == "__main__":
    main()
