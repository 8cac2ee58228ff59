# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch

from skest import feature_columns as fc
from skest.networks import CELL_TYPES, RNN

SEQUENCE = fc.FeatureColumns([fc.sequence_numeric_column("s", shape=2)])
CONTEXT = fc.FeatureColumns([fc.numeric_column("c")])
STEPS = [[[1, 2], [3, 4], [5, 6]], [[1, 0]], [], [[0, 1], [1, 0]]]
COLUMNS = {"s": STEPS, "c": np.array([1.0, 2.0, 3.0, 4.0])}


def features(**changed):
    X = COLUMNS | changed
    return {
        "sequence": SEQUENCE.encode(X, torch.float64),
        "context": CONTEXT.encode(X, torch.float64),
    }


def network(units=(3,), cell_type="gru", context=CONTEXT, **kwargs):
    dtype = torch.float64
    return RNN(
        fc.SequenceFeatures(SEQUENCE, dtype),
        None if context is None else fc.DenseFeatures(context, dtype),
        units,
        2,
        cell_type=cell_type,
        dtype=dtype,
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


cells = pytest.mark.parametrize("cell_type", CELL_TYPES)


@cells
@pytest.mark.parametrize("units", [(3,), (4, 3)])
def test_equals_a_loop_over_the_steps(cell_type, units):
    rnn = network(units, cell_type)
    logits = rnn(features())
    for i, steps in enumerate(STEPS):
        x = torch.tensor(
            [[*step, COLUMNS["c"][i]] for step in steps], dtype=torch.float64
        )
        if len(steps) == 0:
            expected = rnn.logits.bias
        else:
            for name in rnn._layers:
                x, _ = rnn.get_submodule(name)(x)
            expected = rnn.logits(x[-1])
        torch.testing.assert_close(logits[i], expected)


def test_the_context_holds_for_every_step():
    rnn = network()
    other = rnn(features(c=np.array([1.0, 2.0, 9.0, 9.0])))
    same = (other == rnn(features())).all(dim=1)
    assert same.tolist() == [True, True, True, False]


@cells
def test_initial_values(cell_type):
    rnn = network((50,), cell_type)
    layer = rnn.get_submodule(f"{cell_type}_0")
    gates = layer.weight_hh_l0.shape[0]
    limit = (6 / (3 + gates)) ** 0.5
    assert 0.9 * limit < layer.weight_ih_l0.abs().max() <= limit
    torch.testing.assert_close(
        layer.weight_hh_l0.T @ layer.weight_hh_l0, torch.eye(50, dtype=torch.float64)
    )
    bias = (layer.bias_ih_l0 + layer.bias_hh_l0).tolist()
    forget = [1.0] * 50 if cell_type == "lstm" else [0.0] * 50
    assert bias == [0.0] * 50 + forget * (gates > 50) + [0.0] * (gates - 100)
    again = network((50,), cell_type).state_dict()
    for name, value in rnn.state_dict().items():
        assert torch.equal(value, again[name])


def test_bad_parameters():
    for params, message in [
        ({"units": ()}, "'units' of RNN must have at least one layer"),
        ({"cell_type": "rnn"}, "'cell_type' of RNN must be .* of 'simple_rnn', 'lstm'"),
    ]:
        with pytest.raises(ValueError, match=message):
            network(**params)
