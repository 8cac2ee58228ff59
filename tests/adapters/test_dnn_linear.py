# SPDX-License-Identifier: Apache-2.0
"""The model function of wide & deep models."""

from functools import partial

import numpy as np
import pytest

from skest import Estimator, RunConfig
from skest import feature_columns as fc
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.heads import RegressionHead
from skest.inputs import ArrayDataset

RATE = 0.1


def steps_by_hand(x, y, start, momentum, n_steps):
    """A hidden unit with batch normalisation beside a linear model, written out."""
    w, b, gamma, beta, v, c, linear, bias = start
    mean, variance = 0.0, 1.0
    for _ in range(n_steps):
        hidden = np.maximum(w * x + b, 0)
        m, s = hidden.mean(), np.sqrt(hidden.var() + 1e-3)
        normal = (hidden - m) / s
        mean = momentum * mean + (1 - momentum) * m
        variance = momentum * variance + (1 - momentum) * hidden.var()
        g = 2 * (v * (gamma * normal + beta) + c + linear * x + bias - y) / len(x)
        g_normal = g * v * gamma
        g_hidden = g_normal - g_normal.mean() - normal * (g_normal * normal).mean()
        g_w = g_hidden / s * (hidden > 0)
        gradients = [
            (g_w * x).sum(),
            g_w.sum(),
            (g * v * normal).sum(),
            (g * v).sum(),
            (g * (gamma * normal + beta)).sum(),
            g.sum(),
            (g * x).sum(),
            g.sum(),
        ]
        w, b, gamma, beta, v, c, linear, bias = np.subtract(
            (w, b, gamma, beta, v, c, linear, bias), RATE * np.array(gradients)
        )
    return mean, variance, (w, b, gamma, beta, v, c, linear, bias)


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_momentum_of_batch_normalisation(momentum):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=12), rng.normal(size=12)
    column = [fc.numeric_column("x", dtype="float64")]
    chosen = {} if momentum is None else {"batch_norm_momentum": momentum}
    estimator = Estimator(
        partial(
            dnn_linear_combined_model_fn,
            head=RegressionHead(),
            linear_columns=fc.FeatureColumns(column),
            dnn_columns=fc.FeatureColumns(column),
            dnn_hidden_units=[1],
            batch_norm=True,
            dnn_optimizer="sgd",
            dnn_learning_rate=RATE,
            linear_optimizer="sgd",
            linear_learning_rate=RATE,
            **chosen,
        ),
        config=RunConfig(random_seed=4),
    )
    names = [
        "dnn.hidden_0.weight",
        "dnn.hidden_0.bias",
        "dnn.batch_norm_0.weight",
        "dnn.batch_norm_0.bias",
        "dnn.logits.weight",
        "dnn.logits.bias",
        "linear.x_weights",
        "linear.bias",
    ]

    def values(names):
        return [float(estimator.get_variable_value(name).item()) for name in names]

    def batch(num_epochs=1):
        return ArrayDataset({"x": x}, y, num_epochs=num_epochs)

    estimator.train(batch, steps=1)
    start = values(names)
    before = values(["dnn.batch_norm_0.running_mean", "dnn.batch_norm_0.running_var"])
    estimator.train(lambda: batch(3))
    decay = 0.9 if momentum is None else momentum
    mean, variance, end = steps_by_hand(x, y, start, decay, 3)
    # The moving averages began at zero and one, here after one step.
    mean += decay**3 * before[0]
    variance += decay**3 * (before[1] - 1)
    np.testing.assert_allclose(values(names), end, rtol=1e-4, atol=1e-6)
    got = values(["dnn.batch_norm_0.running_mean", "dnn.batch_norm_0.running_var"])
    np.testing.assert_allclose(got, [mean, variance], rtol=1e-4, atol=1e-6)


def test_auto_is_the_rate_of_the_original():
    def rates(n_columns, **options):
        columns = fc.FeatureColumns(
            [fc.numeric_column(str(i)) for i in range(n_columns)]
        )
        spec = dnn_linear_combined_model_fn(
            {str(i): np.ones(2) for i in range(n_columns)},
            np.ones(2),
            "train",
            head=RegressionHead(),
            linear_columns=columns,
            dnn_columns=None,
            dnn_hidden_units=[2],
            **options,
        )
        return [o.param_groups[0]["lr"] for o in spec.optimizers]

    assert rates(4) == [0.05]
    assert rates(4, linear_learning_rate="auto") == [0.005]
