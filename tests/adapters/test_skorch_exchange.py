# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import (
    NeuralNet,
    NeuralNetBinaryClassifier,
    NeuralNetClassifier,
    NeuralNetRegressor,
)
from torch import nn

import skest
from skest.adapters.skorch import (
    from_skorch,
    skorch_features,
    skorch_model_fn,
    to_skorch,
)
from skest.exceptions import NotFittedError
from tests.adapters import _model_fns as model_fns
from tests.adapters._nets import (
    IRIS,
    IRIS_32,
    predictions,
    small_net,
    table_fn,
    variables,
)
from tests.adapters.conftest import make

CANCER = load_breast_cancer(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)


class Perceptron(nn.Module):
    def __init__(self, n_inputs, n_outputs, num_units=4):
        super().__init__()
        self.hidden = nn.Linear(n_inputs, num_units)
        self.logits = nn.Linear(num_units, n_outputs)

    def forward(self, X):
        return self.logits(torch.relu(self.hidden(X)))


def perceptron(net_class, n_inputs, n_outputs, **params):
    given = {"optimizer": torch.optim.Adam, "lr": 0.01, "verbose": 0, **params}
    module = {"module__n_inputs": n_inputs, "module__n_outputs": n_outputs}
    return net_class(Perceptron, **module, **given)


def test_a_net_as_classifier_in_a_grid_search():
    X, y = CANCER
    y = np.array(["malignant", "benign"])[y]
    net = perceptron(NeuralNetClassifier, 30, 2, criterion=nn.CrossEntropyLoss)
    model = make(skest.ModelFnClassifier, model_fn=skorch_model_fn(net), max_iter=8)
    grid = {"params__lr": [1e-5, 0.02], "params__module__num_units": [2, 8]}
    search = GridSearchCV(model, grid, cv=3)
    pipe = make_pipeline(StandardScaler(), search).fit(X, y)
    assert search.best_params_["params__lr"] == 0.02
    assert search.best_score_ > 0.95
    assert set(pipe.predict(X)) == {"malignant", "benign"}
    best = search.best_estimator_
    n_units = search.best_params_["params__module__num_units"]
    weight = best.estimator_.get_variable_value("module.hidden.weight")
    assert weight.shape == (n_units, 30)


def test_a_net_as_regressor():
    X, y = DIABETES
    model_fn = skorch_model_fn(perceptron(NeuralNetRegressor, 10, 1, lr=0.3))
    model = make(skest.ModelFnRegressor, model_fn=model_fn, max_iter=30)
    assert model.fit(X, y[:, None]).score(X, y[:, None]) > 0.4
    with pytest.raises(ValueError, match=r"got labels of shape \(148,\).*reshape"):
        model.fit(X, y)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, sepal, petal):
        return self.linear(torch.cat([sepal, petal], dim=1))


def test_dictionaries_become_keywords_as_in_skorch():
    X, y = IRIS_32
    features = {"sepal": X[:, :2], "petal": X[:, 2:]}
    net = NeuralNetClassifier(
        TwoInputs, criterion=nn.CrossEntropyLoss, lr=0.1, verbose=0
    ).fit(features, y)
    estimator = from_skorch(net)
    expected = net.predict_proba(features)
    np.testing.assert_array_equal(
        predictions(estimator, "probabilities", features), expected
    )


def test_a_net_that_is_none():
    with pytest.raises(TypeError, match="'net' must be a skorch.NeuralNet; got Linear"):
        skorch_model_fn(nn.Linear(1, 1))
    with pytest.raises(TypeError, match="'net' must be a skorch.NeuralNet; got dict"):
        from_skorch({})


# Exchange


NETS = {
    "classes": (small_net(), IRIS_32[1]),
    "softmax": (
        NeuralNetClassifier(
            nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)),
            optimizer__momentum=0.9,
            verbose=0,
        ),
        IRIS_32[1],
    ),
    "two classes": (
        NeuralNetBinaryClassifier(
            nn.Sequential(nn.Linear(4, 1)), verbose=0, threshold=0.3
        ),
        (IRIS_32[1] > 0).astype(np.float32),
    ),
    "numbers": (
        NeuralNetRegressor(nn.Sequential(nn.Linear(4, 1)), verbose=0),
        IRIS_32[0][:, :1],
    ),
    "any": (
        NeuralNet(nn.Sequential(nn.Linear(4, 2)), criterion=nn.L1Loss, verbose=0),
        IRIS_32[0][:, :2],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_from_skorch_and_on(name):
    net, y = NETS[name]
    X = IRIS_32[0]
    net = clone(net).set_params(train_split=None, max_epochs=3, batch_size=32).fit(X, y)
    estimator = from_skorch(net, config=skest.RunConfig(random_seed=0))
    if name in ("classes", "softmax", "two classes"):
        np.testing.assert_array_equal(
            predictions(estimator, "probabilities"), net.predict_proba(X)
        )
        class_ids = predictions(estimator, "class_ids")[:, 0]
        np.testing.assert_array_equal(class_ids, net.predict(X))
    else:
        np.testing.assert_array_equal(
            predictions(estimator, "predictions"), net.predict(X)
        )
    # Both go on with the same state of the optimizer.
    assert estimator.checkpoint.global_step == 15
    estimator.train(table_fn(X, y, num_epochs=2))
    net.set_params(max_epochs=2).partial_fit(X, y)
    for variable, value in net.module_.state_dict().items():
        torch.testing.assert_close(variables(estimator)[f"module.{variable}"], value)


def test_from_skorch_needs_an_initialized_net():
    with pytest.raises(NotFittedError, match="not initialized"):
        from_skorch(small_net())


TWO_NUMBERS = (DIABETES[0], np.c_[DIABETES[1], -DIABETES[1]])


@pytest.mark.parametrize(
    "model, data",
    [
        (skest.DNNClassifier((8,), dropout=0.5, batch_norm=True), IRIS),
        (skest.LinearClassifier(dtype="float32"), CANCER),
        (skest.DNNLinearCombinedClassifier((8,)), IRIS),
        (skest.DNNRegressor((8,), dtype="float32"), TWO_NUMBERS),
        (skest.DNNRegressor((8,), loss="poisson"), DIABETES),
        (skest.DNNLinearCombinedRegressor((8,)), DIABETES),
    ],
)
def test_to_skorch(model, data):
    X, y = data
    model = clone(model).set_params(early_stopping=False, max_iter=2)
    model.fit(X, y)
    net, features = to_skorch(model, verbose=0), skorch_features(model, X)
    if hasattr(model, "classes_"):
        assert isinstance(net, NeuralNetClassifier)
        np.testing.assert_array_equal(
            net.predict_proba(features), model.predict_proba(X)
        )
        labels = model.classes_[net.predict(features)]
        np.testing.assert_array_equal(labels, model.predict(X))
    else:
        assert isinstance(net, NeuralNetRegressor)
        expected = model.predict(X).reshape(len(X), -1)
        rtol = 1e-5 if model.dtype == "float32" else 1e-12
        np.testing.assert_allclose(net.predict(features), expected, rtol=rtol)


@pytest.mark.parametrize(
    "model, data, n_members",
    [(skest.DNNClassifier, CANCER, 1), (skest.DNNRegressor, DIABETES, 3)],
)
def test_a_net_of_skest_can_be_trained_on(model, data, n_members):
    X, y = data
    model = make(model, max_iter=2, n_members=n_members).fit(X, y)
    net = to_skorch(model, lr=0.1, max_epochs=5, train_split=None, verbose=0)
    features = skorch_features(model, X)
    y = y if hasattr(model, "classes_") else y.reshape(-1, 1)
    net.fit(features, y)
    losses = net.history[:, "train_loss"]
    assert losses[-1] < losses[0] < 1.5 * model.loss_  # in the same scale
    assert net.score(features, y) > model.score(X, y)


def test_to_skorch_refuses_what_has_no_counterpart():
    X, y = IRIS
    labels = make(skest.DNNClassifier, max_iter=1).fit(X, np.eye(3, dtype=int)[y])
    heads = make(skest.MultiHeadEstimator, max_iter=1).fit(X, {"a": y, "b": X[:, 0]})
    for model in (labels, heads):
        name = type(model).__name__
        with pytest.raises(ValueError, match=f"this {name} was fitted to another kind"):
            to_skorch(model)
    with pytest.raises(TypeError, match="scikit-learn estimators; got Linear"):
        to_skorch(nn.Linear(1, 1))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        skorch_features(skest.DNNClassifier(), X)
    own = make(skest.ModelFnClassifier, model_fn=model_fns.with_head, max_iter=1).fit(
        X, y
    )
    with pytest.raises(ValueError, match="ModelFnClassifier is built by 'model_fn'"):
        to_skorch(own)
