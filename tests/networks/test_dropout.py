# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch

from skest.networks import Dropout


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drop(x, p=0.5, seed=0):
    layer = Dropout(p)
    layer.generator = generator(seed)
    return layer(x)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_share_is_dropped_and_the_mean_is_kept(p, dtype):
    n = 40_000
    dropped = drop(torch.ones(n, dtype=dtype), p)
    zeros = (dropped == 0).double().mean().item()
    standard_error = (p * (1 - p) / n) ** 0.5
    assert zeros == pytest.approx(p, abs=5 * standard_error)
    assert dropped.dtype == dtype
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)))


def test_the_generator_decides():
    x = torch.ones(100)
    before = torch.get_rng_state()
    assert torch.equal(drop(x), drop(x))
    assert not torch.equal(drop(x), drop(x, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_flow_where_values_do():
    x = torch.ones(50, requires_grad=True)
    dropped = drop(x)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, dropped.detach())


def test_nothing_is_dropped_out_of_training():
    x = torch.ones(50)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_copies_take_a_new_generator():
    layer = Dropout(0.3).eval()
    layer.generator = generator()
    copied = copy.deepcopy(layer)
    assert (copied.p, copied.training, copied.generator) == (0.3, False, None)
    assert repr(copied) == "Dropout(p=0.3)"


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_wrong_probabilities_are_refused(p):
    with pytest.raises(ValueError, match=r"'dropout' must be in \[0, 1\)"):
        Dropout(p)
