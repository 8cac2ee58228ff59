# SPDX-License-Identifier: Apache-2.0
"""The runners of golden cases know the vocabulary, and refuse what they don't know."""

import math

import numpy as np
import pytest
import torch

from skest.heads import RegressionHead
from tests.golden import test_canned as canned
from tests.golden import test_heads as heads
from tests.golden import test_linear_sdca as linear_sdca
from tests.golden._optimizers import keras_optimizer, learning_rate_of
from tests.golden.test_feature_columns import build
from tests.golden.test_optimizers import run

# Learning rates

DECAY = {"initial_learning_rate": 0.8, "decay_steps": 4, "decay_rate": 0.5}
POLYNOMIAL = {"initial_learning_rate": 1.0, "decay_steps": 4, "end_learning_rate": 0.2}
RATES = [
    ("ExponentialDecay", DECAY, [0.8, 0.8 * 0.5**0.25, 0.8 * 0.5**1.5], [0, 1, 6]),
    (
        "ExponentialDecay",
        DECAY | {"staircase": True},
        [0.8, 0.8, 0.4, 0.2],
        [0, 3, 4, 8],
    ),
    ("InverseTimeDecay", DECAY, [0.8, 0.8 / 1.25, 0.4], [0, 2, 8]),
    ("InverseTimeDecay", DECAY | {"staircase": True}, [0.8, 0.8 / 1.5], [3, 4]),
    (
        "PiecewiseConstantDecay",
        {"boundaries": [2, 5], "values": [3.0, 0.7, 0.1]},
        [3.0, 3.0, 0.7, 0.7, 0.1, 0.1],
        [0, 2, 3, 5, 6, 99],
    ),
    ("PolynomialDecay", POLYNOMIAL, [1.0, 0.6, 0.2, 0.2], [0, 2, 4, 9]),
    ("PolynomialDecay", POLYNOMIAL | {"power": 2.0}, [0.2 + 0.8 / 4], [2]),
    (
        "PolynomialDecay",
        POLYNOMIAL | {"cycle": True},
        [1.0, 0.2, 0.2 + 0.8 * (1 - 6 / 8), 0.2],
        [0, 4, 6, 8],
    ),
    (
        "PolynomialDecay",
        {"initial_learning_rate": 1.0, "decay_steps": 2},
        [0.0001],
        [2],
    ),
    (
        "CosineDecay",
        {"initial_learning_rate": 2.0, "decay_steps": 3},
        [2.0, 1 + math.cos(math.pi / 3), 0.0, 0.0],
        [0, 1, 3, 4],
    ),
    (
        "CosineDecay",
        {"initial_learning_rate": 2.0, "decay_steps": 4, "alpha": 0.1},
        [2.0, 2 * (0.9 / 2 + 0.1), 0.2],
        [0, 2, 4],
    ),
]


@pytest.mark.parametrize(("schedule", "arguments", "rates", "steps"), RATES)
def test_schedules(schedule, arguments, rates, steps):
    rate = learning_rate_of({"schedule": schedule, **arguments})
    np.testing.assert_allclose([rate(step) for step in steps], rates, atol=1e-12)


def test_schedule_and_decay_in_a_trajectory():
    rate = {"schedule": "PiecewiseConstantDecay", "boundaries": [1], "values": [1, 0.5]}
    config = {"optimizer": "SGD", "learning_rate": rate, "decay": 1.0}
    weights, _ = run(config, np.zeros(1), torch.ones(3, 1, dtype=torch.float64))
    np.testing.assert_allclose(weights[:, 0], -np.cumsum([1, 1 / 2, 0.5 / 3]))


@pytest.mark.parametrize(
    ("definition", "settings"),
    [
        ({"optimizer": "AdamOptimizer"}, {"eps": 1e-8, "betas": (0.9, 0.999)}),
        ({"optimizer": "Adam", "beta_1": 0.5}, {"eps": 1e-7, "betas": (0.5, 0.999)}),
        ({"optimizer": "RMSPropOptimizer", "decay": 0.5}, {"eps": 1e-10, "alpha": 0.5}),
        ({"optimizer": "RMSprop", "rho": 0.5}, {"eps": 1e-7, "alpha": 0.5}),
        (
            {"optimizer": "MomentumOptimizer", "momentum": 0.5, "use_nesterov": True},
            {"momentum": 0.5, "nesterov": True},
        ),
        ({"optimizer": "SGD", "nesterov": True}, {"momentum": 0, "nesterov": False}),
    ],
)
def test_settings_of_both_versions(definition, settings):
    (group,) = keras_optimizer(definition, 0.25)([torch.zeros(1)]).param_groups
    assert {key: group[key] for key in settings} == settings
    assert group["lr"] == 0.25


# Clipping


def after_one_step(gradients, **clipping):
    parameters = [torch.zeros(2, requires_grad=True) for _ in gradients]
    optimizer = keras_optimizer({"optimizer": "SGD", "learning_rate": 1.0, **clipping})(
        parameters
    )
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return [(-parameter.detach()).tolist() for parameter in parameters]


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        ({"clipnorm": 1.0}, [[0.6, 0.8], [0.0, 0.5]]),
        ({"clipvalue": 3.5}, [[3.0, 3.5], [0.0, 0.5]]),
        ({"global_clipnorm": 1.0}, np.array([[3, 4], [0, 0.5]]) / math.sqrt(25.25)),
        ({}, [[3.0, 4.0], [0.0, 0.5]]),
    ],
)
def test_clipping(clipping, expected):
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.5])]
    np.testing.assert_allclose(
        after_one_step(gradients, **clipping), expected, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [({"clipnorm": 1.0}, [-0.6, -0.8]), ({"clipvalue": 3.5}, [-3.0, -3.5])],
)
def test_clipping_of_rows(clipping, expected):
    """Rows that occur twice count by their sum."""
    table = torch.zeros(9, 2, requires_grad=True)
    table.is_row_table = True
    definition = {"optimizer": "SGD", "learning_rate": 1.0, **clipping}
    optimizer = keras_optimizer(definition)([table])
    table.grad = torch.sparse_coo_tensor(
        [[7, 7]], [[1.0, 4.0], [2.0, 0.0]], (9, 2), check_invariants=True
    )
    optimizer.step()
    np.testing.assert_allclose(table.detach()[7], expected, rtol=1e-5)
    assert table.count_nonzero() == 2


# Heads, against NumPy


def array(values, dtype="float32"):
    values = np.asarray(values, dtype)
    return {
        "dtype": dtype,
        "shape": list(values.shape),
        "data": values.astype(float).tolist(),
    }


Y, Z = np.array([[1.0], [0.0], [2.0]]), np.array([[0.5], [1.0], [-1.0]])
SCALE, WEIGHT = np.array([1.0, 10.0, 100.0]), np.array([[0.1], [0.2], [0.4]])
ERROR = np.abs(Y - Z)
DICT_WEIGHTS = {"key": "w", "shape": [1], "default_value": 1.0, "normalizer": "x*10"}
SPEC = {"head": "RegressionHead"}
INVENTED = [
    (SPEC | {"loss_fn": "abs_error"}, ERROR, np.ones((3, 1)), Z, False),
    (
        SPEC | {"loss_fn": "abs_error_features_scale"},
        ERROR * SCALE[:, None],
        np.ones((3, 1)),
        Z,
        False,
    ),
    (
        SPEC
        | {"loss_fn": "abs_error_features_scale", "weight_column": DICT_WEIGHTS}
        | {"inverse_link_fn": "exp"},
        ERROR * SCALE[:, None],
        10 * WEIGHT,
        np.exp(Z),
        True,
    ),
    (
        SPEC | {"inverse_link_fn": "double"},
        ERROR**2,
        np.ones((3, 1)),
        2 * Z,
        True,
    ),
    (
        SPEC | {"inverse_link_fn": "sigmoid", "weight_column": "w"},
        ERROR**2,
        WEIGHT,
        1 / (1 + np.exp(-Z)),
        True,
    ),
]


@pytest.mark.parametrize(("config", "losses", "weights", "answers", "linked"), INVENTED)
def test_invented_heads(config, losses, weights, answers, linked):
    slopes = -2 * (Y - Z) if "loss_fn" not in config else -np.sign(Y - Z)
    if config.get("loss_fn") == "abs_error_features_scale":
        slopes = slopes * SCALE[:, None]
    loss = (losses * weights).mean()

    def mean(values):
        return np.average(values, weights=weights)

    metrics = {
        "average_loss": mean(losses),
        "prediction/mean": mean(answers),
        "label/mean": mean(Y),
    }
    predictions = {"predictions": array(answers)}
    predictions |= {"logits": array(Z)} if linked else {}
    features = {"scale": array(SCALE), "w": array(WEIGHT)}
    batch = {"features": features, "logits": array(Z), "labels": array(Y)}
    invented = {
        "id": "invented",
        "component": "RegressionHead",
        "config": config,
        "inputs": {"batches": [batch], "regularization_losses": None},
        "expected": {
            "logits_dimension": 1,
            "name": None,
            "loss_per_batch": [loss],
            "grad_logits_batch0": array(slopes * weights / 3),
            "predictions_batch0": predictions,
            "metrics_after_1_batch": metrics,
            "estimator_evaluate_1_batches": {**metrics, "loss": loss, "global_step": 0},
        },
    }
    heads.test_loss_and_gradient(invented)
    heads.test_predictions(invented)
    heads.test_metrics(invented)
    heads.test_evaluation_of_the_spec(invented)


def test_wrong_shape_is_an_error():
    head = heads.make_head(SPEC | {"loss_fn": "wrong_shape"})
    with pytest.raises(ValueError, match="one loss per example"):
        head.loss(Y, torch.tensor(Z))


# Canned estimators

NUMBERS = [{"kind": "numeric", "key": "x"}]
COLUMNS = [
    {"kind": "indicator", "of": {"kind": "crossed", "keys": ["a", "b"]}},
    {"kind": "indicator", "of": {"kind": "hash_bucket", "key": "a"}},
]
for spec in COLUMNS:
    spec["of"]["hash_bucket_size"] = 5
COMBINED = {
    "class": "DNNLinearCombinedRegressor",
    "linear_feature_columns": NUMBERS,
    "dnn_feature_columns": COLUMNS,
    "dnn_hidden_units": [3],
    "train_steps": 0,
    "initial_weights": {},
}


def test_arguments_of_combined_models():
    config = COMBINED | {
        "dnn_activation_fn": "tanh",
        "dnn_dropout": 0.5,
        "batch_norm": True,
        "linear_sparse_combiner": "mean",
        "label_dimension": 2,
        "weight_column": DICT_WEIGHTS,
        "loss_reduction": "sum",
    }
    bound = canned.model_fn(config).keywords
    assert bound["dnn_activation"] == "tanh"
    assert bound["dnn_dropout"] == 0.5
    assert bound["batch_norm"] and bound["batch_norm_momentum"] == 0.999
    assert bound["linear_sparse_combiner"] == "mean"
    head = bound["head"]
    assert isinstance(head, RegressionHead) and head.label_dimension == 2
    assert head.loss_reduction == "sum" and head.weight_column.key == "w"
    assert [c.name for c in bound["dnn_columns"].active] == [
        "a_X_b_indicator",
        "a_indicator",
    ]


@pytest.mark.parametrize("name", ["relu6", "softsign", "swish", "elu", None])
def test_activations_of_the_original(name):
    config = {
        "class": "DNNClassifier",
        "feature_columns": NUMBERS,
        "hidden_units": [2],
        "activation_fn": name,
        "train_steps": 0,
        "initial_weights": {},
    }
    function = canned.model_fn(config)
    spec = function({"x": np.ones(1)}, None, "infer")
    spec.network.load_state_dict(
        {
            "hidden_0.weight": torch.tensor([[-0.5], [8.0]]),
            "hidden_0.bias": torch.zeros(2),
            "logits.weight": torch.ones(1, 2),
            "logits.bias": torch.zeros(1),
        }
    )
    swish = 8 / (1 + math.exp(-8)) - 0.5 / (1 + math.exp(0.5))
    expected = {
        "relu6": 6.0,
        "softsign": 8 / 9 - 1 / 3,
        "swish": swish,
        "elu": 8 + math.exp(-0.5) - 1,
        None: 7.5,
    }[name]
    logits = spec.network.eval()({"x": torch.ones(1, 1)})
    assert logits.item() == pytest.approx(expected)


# What nobody reads


@pytest.mark.parametrize(
    ("make", "spec", "error"),
    [
        (keras_optimizer, {"optimizer": "SGD", "lr": 1}, NotImplementedError),
        (learning_rate_of, {"schedule": "CosineDecayRestarts"}, KeyError),
        (heads.make_head, SPEC | {"n_classes": 3}, TypeError),
        (heads.make_head, SPEC | {"loss_fn": "huber"}, KeyError),
        (heads.make_head, SPEC | {"weight_column": {"key": "w", "of": 1}}, TypeError),
        (build, {"kind": "indicator", "of": NUMBERS[0], "size": 1}, TypeError),
        (canned.model_fn, COMBINED | {"activation_fn": "relu"}, NotImplementedError),
        (canned.model_fn, COMBINED | {"dropout": 0.5}, NotImplementedError),
        (canned.model_fn, COMBINED | {"head": SPEC}, NotImplementedError),
        (
            canned.model_fn,
            COMBINED | {"dnn_dropout": 0.5, "train_steps": 1},
            NotImplementedError,
        ),
        (
            canned.model_fn,
            COMBINED | {"v1": True, "loss_reduction": "weighted_mean"},
            KeyError,
        ),
        (linear_sdca.settings, {"sdca": {"l1": 1}}, NotImplementedError),
    ],
)
def test_unknown_keys_are_refused(make, spec, error):
    with pytest.raises(error):
        make(spec)


def test_unknown_arguments_of_a_schedule_are_refused():
    rate = learning_rate_of({"schedule": "CosineDecay", "warmup_steps": 3})
    with pytest.raises(TypeError, match="warmup_steps"):
        rate(0)


def test_sdca_settings_without_effect():
    plain = linear_sdca.settings({"sdca": {"symmetric_l1_regularization": 2.0}})
    more = {"symmetric_l1_regularization": 2.0, "adaptive": True}
    assert linear_sdca.settings({"sdca": more}) == plain
