# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks against the recurrences of Keras, written in NumPy.

Keras has one bias in a SimpleRNN and in an LSTM, and two in a GRU (``reset_after``).
Gradients are taken by complex steps, which are exact: d f / d x = Im f(x + ih) / h.
"""

import numpy as np
import pytest
import torch

from skest import Estimator, RunConfig
from skest import feature_columns as fc
from skest.canned.rnn import rnn_model_fn
from skest.checkpoints.checkpoint import Checkpoint
from skest.export import load
from skest.heads import RegressionHead

UNITS, RATE, CLIP_NORM, N_STEPS = 2, 0.1, 0.2, 8
STEPS = [[[1, 2], [-3, 4], [5, 6]], [[1, 0]], [], [[0, 1], [1, 0]]]
CONTEXT = np.array([1.0, -2.0, 0.5, 3.0])
LABELS = np.array([1.0, -1.0, 2.0, 0.5])
COLUMNS = {
    "sequence_columns": [fc.sequence_numeric_column("s", shape=2)],
    "context_columns": [fc.numeric_column("c")],
}
X = {"s": STEPS, "c": CONTEXT}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def simple_rnn(x, state, kernel, recurrent, bias):
    (h,) = state
    return (np.tanh(x @ kernel + h @ recurrent + bias),)


def lstm(x, state, kernel, recurrent, bias):
    h, c = state
    i, f, new, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
    return sigmoid(o) * np.tanh(c), c


def gru(x, state, kernel, recurrent, bias):
    (h,) = state
    z, r, new = np.split(x @ kernel + bias[0], 3)
    recurrent_z, recurrent_r, recurrent_new = np.split(h @ recurrent + bias[1], 3)
    z, r = sigmoid(z + recurrent_z), sigmoid(r + recurrent_r)
    return (z * h + (1 - z) * np.tanh(new + r * recurrent_new),)


# The recurrence, the shape of its bias, and Keras' gates in the order of torch.
CELLS = {
    "simple_rnn": (simple_rnn, (UNITS,), [0]),
    "lstm": (lstm, (4 * UNITS,), [0, 1, 2, 3]),
    "gru": (gru, (2, 3 * UNITS), [1, 0, 2]),
}
cells = pytest.mark.parametrize("cell_type", CELLS)


def first_weights(cell_type):
    rng = np.random.default_rng(0)
    _, bias, gates = CELLS[cell_type]
    shapes = {
        "kernel": (3, len(gates) * UNITS),
        "recurrent": (UNITS, len(gates) * UNITS),
        "bias": bias,
        "output": (UNITS,),
        "output_bias": (1,),
    }
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}


def predictions(cell_type, kernel, recurrent, bias, output, output_bias):
    cell = CELLS[cell_type][0]
    logits = []
    for steps, context in zip(STEPS, CONTEXT, strict=True):
        state = (np.zeros(UNITS),) * (2 if cell_type == "lstm" else 1)
        for step in steps:
            state = cell(np.array([*step, context]), state, kernel, recurrent, bias)
        logits.append(state[0] @ output + output_bias)
    return np.concatenate(logits)


def loss(cell_type, weights):
    return np.mean((predictions(cell_type, **weights) - LABELS) ** 2)


def gradients(cell_type, weights):
    found = {}
    for name, value in weights.items():
        found[name] = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            moved = value.astype(complex)
            moved[place] += 1e-30j
            with_step = loss(cell_type, {**weights, name: moved})
            found[name][place] = with_step.imag / 1e-30
    return found


def trained_by_numpy(cell_type, weights, n_steps):
    """The losses of all steps of Adagrad, and the weights in the end."""
    weights = dict(weights)
    sums = {name: np.full_like(value, 0.1) for name, value in weights.items()}
    losses = []
    for _ in range(n_steps):
        losses.append(loss(cell_type, weights))
        slopes = gradients(cell_type, weights)
        norm = np.sqrt(sum((slope**2).sum() for slope in slopes.values()))
        for name, slope in slopes.items():
            clipped = slope * min(1, CLIP_NORM / norm)
            sums[name] = sums[name] + clipped**2
            step = RATE * clipped / (np.sqrt(sums[name]) + 1e-7)
            weights[name] = weights[name] - step
    return losses, weights


def variables(cell_type, weights):
    """The weights under the names, and in the layout, of the network."""
    _, _, order = CELLS[cell_type]

    def gates(value):
        parts = np.split(value, len(order), axis=-1)
        return np.concatenate([parts[gate] for gate in order], axis=-1).T

    bias = weights["bias"]
    first, second = bias if bias.ndim == 2 else (bias, np.zeros_like(bias))
    named = {
        f"{cell_type}_0.weight_ih_l0": gates(weights["kernel"]),
        f"{cell_type}_0.weight_hh_l0": gates(weights["recurrent"]),
        f"{cell_type}_0.bias_ih_l0": gates(first),
        f"{cell_type}_0.bias_hh_l0": gates(second),
        "logits.weight": weights["output"][None],
        "logits.bias": weights["output_bias"],
    }
    return {k: torch.tensor(v).contiguous() for k, v in named.items()}


def estimator(cell_type, **options):
    def model_fn(features, labels, mode):
        return rnn_model_fn(
            features,
            labels,
            mode,
            head=RegressionHead(),
            **COLUMNS,
            units=UNITS,
            cell_type=cell_type,
            learning_rate=RATE,
            clip_norm=CLIP_NORM,
            dtype=torch.float64,
        )

    return Estimator(model_fn, config=RunConfig(random_seed=0), **options)


def batch():
    return [(X, LABELS)]


def from_numpy(cell_type):
    made = estimator(cell_type)
    made.checkpoint = Checkpoint(0, variables(cell_type, first_weights(cell_type)))
    return made


# torch divides by the norm of the gradients and 1e-6 more.
def assert_weights(model, cell_type, weights):
    for name, expected in variables(cell_type, weights).items():
        got = model.get_variable_value(name)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@cells
def test_trajectory(cell_type):
    weights = first_weights(cell_type)
    losses, weights = trained_by_numpy(cell_type, weights, N_STEPS)
    model, found = from_numpy(cell_type), []
    for _ in range(N_STEPS):  # each call goes on from the checkpoint of the last one
        found.append(model.evaluate(batch)["loss"])
        model.train(batch)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert_weights(model, cell_type, weights)


@cells
def test_exports_and_warm_starts(cell_type, tmp_path):
    model = from_numpy(cell_type).train(lambda: batch() * 3)
    weights = first_weights(cell_type)
    _, weights = trained_by_numpy(cell_type, weights, 3)
    served = load(model.export(tmp_path)).predict(X)
    expected = predictions(cell_type, **weights)
    np.testing.assert_allclose(np.ravel(served), expected, rtol=1e-4, atol=1e-5)
    warm = estimator(cell_type, warm_start_from=model).train(batch)
    _, weights = trained_by_numpy(cell_type, weights, 1)
    assert_weights(warm, cell_type, weights)
