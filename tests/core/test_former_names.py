# SPDX-License-Identifier: Apache-2.0
"""Arguments of tf.estimator, scikit-learn and Keras: the error says what to write."""

import inspect

import pytest

import skest
from skest import export, feature_columns, hooks, inputs
from skest.adapters.parameters import FORMER_ARGUMENTS
from skest.heads import RegressionHead

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
        (skest.EstimatorSpec, "eval_metric_ops", "use 'eval_metrics'"),
        (skest.EstimatorSpec, "train_op", "give the 'network', its 'optimizer'"),
        (RegressionHead().create_estimator_spec, "train_op_fn", "an 'optimizer'"),
        (hooks.LoggingHook, "every_n_iter", "use 'every_steps'"),
        (hooks.StepCounterHook, "every_n_steps", "use 'every_steps'"),
        (inputs.numpy_input_fn, "queue_capacity", "the table is in memory"),
        (inputs.csv_input_fn, "label_name", "use 'label'"),
        (skest.DNNClassifier().train, "hooks", "give 'hooks' to the constructor"),
        (skest.DNNClassifier().evaluate, "input_fn", "give X and y"),
    ]:
        match = f"{call.__name__} has no argument '{name}'; .*{instead}"
        with pytest.raises(TypeError, match=match):
            call("eval", **{name: 1})
        assert name not in inspect.signature(call).parameters
