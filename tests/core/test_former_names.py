# SPDX-License-Identifier: Apache-2.0
"""Names of tf.estimator that are gone: the error says what to write instead."""

import copy
import importlib
import inspect
import pickle

import pytest
import torch

import skest
from skest import export, feature_columns, heads, hooks, inputs
from skest.adapters.parameters import FORMER_ARGUMENTS
from skest.core.tf_names import _ATTRIBUTES
from tests._models import model_fn

ESTIMATORS = [
    getattr(skest, name)
    for name in skest.__all__
    if name.endswith(("Classifier", "Regressor")) or name == "DNNEstimator"
]


def test_names_of_modules():
    for module, name, instead in [
        (skest, "feature_column", "it is called skest.feature_columns"),
        (skest, "BestExporter", "it is in skest.export"),
        (skest, "MultiHead", "it is in skest.heads"),
        (skest, "BoostedTreesRegressor", "scikit-learn's HistGradientBoosting"),
        (feature_columns, "input_layer", "skest.feature_columns.DenseFeatures"),
        (heads, "regression_head", "use RegressionHead"),
        (hooks, "SessionRunHook", "it is called Hook"),
        (export, "ServingInputReceiver", "leave it out: an export takes raw columns"),
    ]:
        match = f"module '{module.__name__}' has no attribute '{name}'; .*{instead}"
        with pytest.raises(AttributeError, match=match):
            getattr(module, name)


def test_no_name_that_exists_is_called_gone():
    for owner in _ATTRIBUTES:
        module = importlib.import_module(owner)
        assert not [name for name in _ATTRIBUTES[owner] if hasattr(module, name)]


def test_methods_of_an_estimator():
    estimator = skest.Estimator(model_fn, params={"units": 2})
    match = (
        r"'Estimator' object has no attribute 'export_saved_model'; use export\(base\)"
    )
    with pytest.raises(AttributeError, match=match):
        estimator.export_saved_model("base", lambda: None)
    assert not hasattr(estimator, "nothing")
    for same in (copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
        assert same.params == estimator.params


def test_arguments_of_estimators():
    for estimator in ESTIMATORS:
        parameters = inspect.signature(estimator).parameters
        assert "args" not in parameters  # those of __init__, not of __new__
        for name in FORMER_ARGUMENTS:
            if name == "loss" and name in parameters:
                continue
            assert name not in parameters
            match = f"^{estimator.__name__} has no argument '{name}'; "
            with pytest.raises(TypeError, match=match):
                estimator(**{name: 1})


def test_guessed_arguments_of_estimators():
    for name, instead in [
        ("epochs", "use 'max_iter'"),
        ("lr", "use 'learning_rate'"),
        ("hidden_layer_sizes", "use 'hidden_units'"),
        ("alpha", "use 'weight_decay'"),
        ("loss", "leave it out"),
        ("scoring", "leave it out: early stopping"),
    ]:
        with pytest.raises(TypeError, match=f"no argument '{name}'; {instead}"):
            skest.DNNClassifier(**{name: 1})


def test_arguments_of_others():
    for call, name, instead in [
        (skest.RunConfig, "tf_random_seed", "use 'random_seed'"),
        (skest.RunConfig, "session_config", "leave it out"),
        (skest.EstimatorSpec, "train_op", "use 'optimizer'"),
        (skest.EstimatorSpec, "eval_metric_ops", "use 'eval_metrics'"),
        (export.BestExporter, "serving_input_receiver_fn", "leave it out: an export"),
        (export.FinalExporter, "assets_extra", "use 'assets'"),
        (feature_columns.numeric_column, "normalizer_fn", "use 'normalizer'"),
        (feature_columns.embedding_column, "ckpt_to_load_from", "'initializer'"),
        (inputs.numpy_input_fn, "queue_capacity", "leave it out"),
        (inputs.pandas_input_fn, "target_column", "leave it out"),
        (inputs.csv_input_fn, "label_name", "use 'label'"),
    ]:
        match = f"{call.__name__} has no argument '{name}'; .*{instead}"
        with pytest.raises(TypeError, match=match):
            call("eval", **{name: 1})
        assert name not in inspect.signature(call).parameters


def test_a_subclass_may_have_such_an_argument():
    class Own(skest.DNNClassifier):
        def __init__(self, n_classes=2, random_state=None):
            super().__init__((2,), max_iter=1, random_state=random_state)
            self.n_classes = n_classes

    class Wide(skest.DNNClassifier):
        def __init__(self, **kwargs):
            self.n_classes = kwargs["n_classes"]

    assert Own(n_classes=3).n_classes == 3
    assert Own().set_params(n_classes=4).n_classes == 4
    assert Wide(n_classes=4).n_classes == 4
    with pytest.raises(TypeError, match="Own has no argument 'activation_fn'"):
        Own(activation_fn=torch.relu)
