# SPDX-License-Identifier: Apache-2.0
"""Models of scikeras: as they are, and with the kind of estimator said by a subclass."""

from typing import Any

import keras
from scikeras.wrappers import KerasClassifier, KerasRegressor
from sklearn.utils import ClassifierTags, RegressorTags

PACKAGES = ["scikeras", "keras", "tensorflow-cpu"]


def classes(meta: dict[str, Any]) -> Any:
    """Build a classifier from what scikeras found out about the data."""
    kind = meta["target_type_"]
    if kind == "multiclass":
        last, loss = (meta["n_classes_"], "softmax"), "sparse_categorical_crossentropy"
    else:  # "binary", "multilabel-indicator"
        last, loss = (meta["n_outputs_"], "sigmoid"), "binary_crossentropy"
    return perceptron(meta, keras.layers.Dense(*last), loss)


def numbers(meta: dict[str, Any]) -> Any:
    """Build a regression for one or several numbers."""
    return perceptron(
        meta, keras.layers.Dense(meta["n_outputs_"]), "mean_squared_error"
    )


def perceptron(meta: dict[str, Any], output: Any, loss: str) -> Any:
    """Return a compiled network."""
    inputs = keras.Input((meta["n_features_in_"],))
    hidden = keras.layers.Dense(16, activation="relu")
    network = keras.Sequential([inputs, hidden, output])
    network.compile(keras.optimizers.Adam(0.03), loss)
    return network


class TaggedClassifier(KerasClassifier):
    """Says that it is a classifier."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        tags.target_tags.required = True
        tags.classifier_tags = ClassifierTags()
        return tags


class TaggedRegressor(KerasRegressor):
    """Says that it is a regressor."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        tags.target_tags.required = True
        tags.regressor_tags = RegressorTags()
        return tags


PARAMETERS = {"epochs": 20, "verbose": 0, "random_state": 0}
ESTIMATORS = {
    "scikeras `KerasClassifier`, as it is": KerasClassifier(classes, **PARAMETERS),
    "scikeras `KerasRegressor`, as it is": KerasRegressor(numbers, **PARAMETERS),
    "scikeras `KerasClassifier`, with tags": TaggedClassifier(classes, **PARAMETERS),
    "scikeras `KerasRegressor`, with tags": TaggedRegressor(numbers, **PARAMETERS),
}
