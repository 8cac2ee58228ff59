# SPDX-License-Identifier: Apache-2.0
"""The models of `benchmarks.quality`: as constructed, with a careful preprocessing."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    log_loss,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

import skest
from benchmarks.quality_tables import Split
from skest.feature_columns import infer_feature_columns

__all__ = ["ABLATIONS", "MODELS", "answers", "held_out_loss", "print_losses", "scores"]

# What each ingredient of a default DNN is undone with; functions are of X.
ABLATIONS: dict[str, dict[str, Any]] = {
    "settings of tf.estimator": {"optimizer": "adagrad", "learning_rate": 0.05},
    "numbers only standardised": {"feature_columns": infer_feature_columns},
    "one member": {"n_members": 1},
    "no dropout": {"dropout": 0.0},
    "no weight decay": {"weight_decay": 0.0},
    "Adagrad for all, scheduled": {"optimizer": "adagrad"},
    "no training on all rows": {"early_stopping": True},
    "layers twice as wide": {"hidden_units": (256, 128)},
}
_MOST_LEVELS = 255  # that gradient boosting takes as categories

Make = Callable[[str, pd.DataFrame, int], Any]


def _strings(X: pd.DataFrame) -> list[str]:
    return list(X.columns.difference(X.select_dtypes("number").columns, sort=False))


def _scaled(X: pd.DataFrame) -> Any:
    strings = _strings(X)
    return make_column_transformer(
        (OneHotEncoder(min_frequency=2, handle_unknown="infrequent_if_exist"), strings),
        remainder=make_pipeline(SimpleImputer(), StandardScaler()),
    )


def _linear(task: str, X: pd.DataFrame, seed: int) -> Any:
    model: Any = Ridge() if task == "numbers" else LogisticRegression(max_iter=1000)
    model = MultiOutputClassifier(model) if task == "labels" else model
    return make_pipeline(_scaled(X), model)


def _mlp(task: str, X: pd.DataFrame, seed: int) -> Any:
    options: dict[str, Any] = {"early_stopping": True, "random_state": seed}
    if task != "numbers":
        return make_pipeline(_scaled(X), MLPClassifier(**options))
    model = TransformedTargetRegressor(
        MLPRegressor(**options), transformer=StandardScaler()
    )
    return make_pipeline(_scaled(X), model)


def _forest(task: str, X: pd.DataFrame, seed: int) -> Any:
    is_number = task == "numbers"
    model: Any = RandomForestRegressor if is_number else RandomForestClassifier
    return make_pipeline(_scaled(X), model(random_state=seed))


def _boosting(task: str, X: pd.DataFrame, seed: int) -> Any:
    many = [name for name in _strings(X) if X[name].nunique() > _MOST_LEVELS]
    few = [name for name in _strings(X) if name not in many]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    encoder = make_column_transformer(
        (codes, few),
        (TargetEncoder(random_state=seed), many),
        remainder="passthrough",
    )
    options = {"categorical_features": list(range(len(few))), "random_state": seed}
    if task == "numbers":
        return make_pipeline(encoder, HistGradientBoostingRegressor(**options))
    model: Any = HistGradientBoostingClassifier(**options)
    return make_pipeline(
        encoder, MultiOutputClassifier(model) if task == "labels" else model
    )


def _skest(name: str, task: str, X: pd.DataFrame, seed: int, **options: Any) -> Any:
    kind = "Regressor" if task == "numbers" else "Classifier"
    options = {k: v(X) if callable(v) else v for k, v in options.items()}
    return getattr(skest, name + kind)(random_state=seed, **options)


MODELS: dict[str, Make] = {
    "skest, DNN": partial(_skest, "DNN"),
    "skest, wide & deep": partial(_skest, "DNNLinearCombined"),
    "linear": _linear,
    "MLP": _mlp,
    "boosting": _boosting,
    "forest": _forest,
    **{
        f"DNN: {name}": partial(_skest, "DNN", **options)
        for name, options in ABLATIONS.items()
    },
}


def answers(estimator: Any, task: str, X: Any) -> tuple[Any, Any]:
    """Return what a fitted estimator predicts for `scores`, and its classes."""
    if task == "numbers":
        return estimator.predict(X), []
    return estimator.predict_proba(X), estimator.classes_


def scores(
    task: str, y: Any, predicted: Any, classes: Iterable[Any]
) -> dict[str, float]:
    """Return "loss", which is to be small, and what else is usual for the task.

    `predicted` are numbers, or probabilities: a row for each row, a column for each of
    `classes` or labels.
    """
    if task == "numbers":
        return {"loss": root_mean_squared_error(y, predicted)}
    if task == "labels":
        loss = np.mean([log_loss(a, b) for a, b in zip(y.T, predicted.T, strict=True)])
        f1 = f1_score(y, predicted > 0.5, average="micro")
        return {"loss": float(loss), "f1": float(f1)}
    names = np.asarray(list(classes))
    found = {
        "loss": log_loss(y, predicted, labels=names),
        "accuracy": accuracy_score(y, names[predicted.argmax(axis=1)]),
    }
    if len(names) == 2:
        found["auc"] = float(roc_auc_score(y == names[1], predicted[:, 1]))
    return found


def held_out_loss(estimator: Any, task: str, split: Split) -> float:
    """Fit an estimator, and return its loss for the rows held out."""
    estimator.fit(split.X, split.y)
    return scores(task, split.y_test, *answers(estimator, task, split.X_test))["loss"]


def print_losses(models: Iterable[str], losses: dict[str, list[list[float]]]) -> None:
    """Print a line for each table: the means of its rows, which have all models."""
    print(f"{'':<30}", *(f"{model:>18}" for model in models))
    for table, rows in losses.items():
        print(f"{table:<30}", *(f"{loss:18.3f}" for loss in np.mean(rows, axis=0)))
