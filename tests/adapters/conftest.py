# SPDX-License-Identifier: Apache-2.0
"""Small tables for the scikit-learn estimators."""

import numpy as np
import pandas as pd
import pytest

from skest import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    LinearClassifier,
    LinearRegressor,
)

# One network, one linear model and both at once: the ways through the code.
CLASSIFIERS = [DNNClassifier, LinearClassifier]
REGRESSORS = [LinearRegressor, DNNLinearCombinedRegressor]
ESTIMATORS = [DNNClassifier, LinearRegressor, DNNLinearCombinedClassifier]
# Those of networks; "auto" is tested in test_recipe.py.
TF_SETTINGS = {
    "optimizer": "adagrad",
    "learning_rate": 0.05,
    "dnn_optimizer": "adagrad",
    "dnn_learning_rate": 0.05,
}


def tf_settings(estimator_class):
    """The settings of tf.estimator, of those that have the recipe as their default."""
    given = estimator_class().get_params()
    names = TF_SETTINGS.keys() & given if "n_members" in given else ()
    return {name: TF_SETTINGS[name] for name in names}


def make(estimator_class, **params):
    """A small, quick estimator, with the settings of tf.estimator."""
    given = estimator_class().get_params()
    for name in ("hidden_units", "dnn_hidden_units"):
        if name in given:
            params.setdefault(name, (8,))
    params.setdefault("max_iter", 20)
    params.setdefault("random_state", 0)
    return estimator_class(**tf_settings(estimator_class) | params)


@pytest.fixture(params=CLASSIFIERS, ids=lambda c: c.__name__)
def classifier_class(request):
    return request.param


@pytest.fixture(params=REGRESSORS, ids=lambda c: c.__name__)
def regressor_class(request):
    return request.param


@pytest.fixture(params=ESTIMATORS, ids=lambda c: c.__name__)
def estimator_class(request):
    return request.param


@pytest.fixture
def table():
    """A mixed table of 200 rows; `y` follows from it."""
    rng = np.random.default_rng(0)
    n = 200
    X = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "hours": rng.normal(40, 10, n),
            "city": rng.choice(["Rome", "Oslo", "Bern"], n),
            "job": rng.choice([f"job {i}" for i in range(15)], n),
        }
    )
    y = ((X["age"] > 45) ^ (X["city"] == "Oslo")).astype(int)
    return X, y


@pytest.fixture
def blobs():
    """Arrays of 120 rows, 4 features and 3 classes."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 40)
    X = rng.normal(size=(120, 4)) + 2 * y[:, None]
    return X, y
