# SPDX-License-Identifier: Apache-2.0
"""Arguments of tf.estimator, scikit-learn and Keras: the error says what to write."""

import inspect

import pytest

import skest
from skest import export, feature_columns
from skest.adapters.parameters import FORMER_ARGUMENTS

ESTIMATORS = [
    getattr(skest, name)
    for name in skest.__all__
    if name.endswith(("Classifier", "Regressor")) or name == "DNNEstimator"
]


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


def test_arguments_of_one_part_of_two():
    deep = set(inspect.signature(skest.DNNRegressor).parameters)
    wide_and_deep = set(inspect.signature(skest.DNNLinearCombinedRegressor).parameters)
    for name in deep - wide_and_deep:
        with pytest.raises(TypeError, match=f"no argument '{name}'; use 'dnn_{name}'"):
            skest.DNNLinearCombinedRegressor(**{name: None})


def test_arguments_of_others():
    for call, name, instead in [
        (skest.RunConfig, "tf_random_seed", "use 'random_seed'"),
        (skest.RunConfig, "session_config", "leave it out"),
        (export.BestExporter, "serving_input_receiver_fn", "leave it out: an export"),
        (export.FinalExporter, "assets_extra", "use 'assets'"),
        (feature_columns.numeric_column, "normalizer_fn", "use 'normalizer'"),
        (feature_columns.embedding_column, "ckpt_to_load_from", "'initializer'"),
    ]:
        match = f"{call.__name__} has no argument '{name}'; .*{instead}"
        with pytest.raises(TypeError, match=match):
            call("eval", **{name: 1})
        assert name not in inspect.signature(call).parameters
