# SPDX-License-Identifier: Apache-2.0
from functools import partial

import pytest
import torch
from torch import nn

from skest.canned.dnn import member_loss
from skest.core.random import RunRandom, draws_from_global_generator
from skest.heads import BinaryClassHead
from skest.networks import DNN
from tests._models import squared_loss


class Gan(nn.Module):
    """A module of the user's, with a name that skest uses too."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(2, 2)

    def forward(self, x):
        return self.generator(x)


def lent(random):
    with random.as_global():
        return torch.rand(3)


def test_streams_differ():
    first, second = RunRandom(0), RunRandom(1)
    own = torch.rand(3, generator=first.generator)
    assert not torch.equal(own, lent(RunRandom(0)))
    assert not torch.equal(lent(first), lent(second))
    assert not torch.equal(lent(RunRandom(None)), lent(RunRandom(None)))


@pytest.mark.parametrize("fails", [False, True])
def test_the_caller_gets_the_global_generator_back(fails):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    random = RunRandom(0)
    try:
        with random.as_global():
            torch.rand(10)
            if fails:
                raise OSError("broken")
    except OSError:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_can_be_saved_and_restored():
    random = RunRandom(0)
    lent(random), torch.rand(2, generator=random.generator)
    state = {name: value.clone() for name, value in random.state_dict().items()}
    expected = lent(random), torch.rand(3, generator=random.generator)
    other = RunRandom(99)
    other.load_state_dict(state)
    assert torch.equal(lent(other), expected[0])
    assert torch.equal(torch.rand(3, generator=other.generator), expected[1])


def test_the_state_is_current_while_it_is_lent():
    random, other = RunRandom(0), RunRandom(1)
    with random.as_global():
        torch.rand(7)
        state = random.state_dict()
        expected = torch.rand(3)
    other.load_state_dict(state)
    assert torch.equal(lent(other), expected)


def test_what_may_draw_from_the_global_generator():
    for network, others, draws in [
        (nn.Linear(2, 1), (), False),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU()), (), False),
        (DNN(nn.Linear(2, 2), (3,), 1, dropout=0.5, batch_norm=True), (), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), (), True),
        (nn.AlphaDropout(), (), True),
        (nn.RReLU(), (), True),
        (nn.GRU(2, 2), (), True),
        (nn.TransformerEncoderLayer(4, 2), (), True),
        (Gan(), (), True),
        (nn.Linear(2, 1), (squared_loss,), True),
        (nn.Linear(2, 1), (nn.functional.mse_loss,), True),
        (nn.Linear(2, 1), (nn.MSELoss(),), False),
        (nn.Linear(2, 1), (partial(member_loss, BinaryClassHead()),), False),
        (nn.Linear(2, 1), (partial(member_loss, Gan()),), True),
        (nn.Linear(2, 1), (partial(squared_loss),), True),
        (
            nn.Linear(2, 1),
            (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1),),
            False,
        ),
    ]:
        assert draws_from_global_generator(network, *others) == draws
