# SPDX-License-Identifier: Apache-2.0
"""Steps whose variables are asked for while the step before is computed."""

import functools

import pytest
import torch

from tests.distributed._servers import LocalServers
from tests.distributed._training import Trainer
from tests.distributed.test_checkpoints import tied_model
from tests.distributed.test_exactness import ids_fn, input_fn, trained
from tests.distributed.test_failures import plain_model

IDS = [torch.tensor(ids) for ids in ([0, 3, 3], [6, 1], [3, 2], [5, 5], [0, 6])]


@pytest.mark.parametrize(
    ("model_fn", "fn"), [(plain_model, input_fn), (tied_model, ids_fn)]
)
def test_every_update_but_the_first_is_one_older(served, model_fn, fn):
    """Of dense variables, and of rows."""
    served(2, functools.partial(trained, model_fn, steps=9, fn=fn), pipeline=1)
    (task,) = served.tasks
    assert task["staleness"] == [(0, 1), (1, 8)]


class Lagged:
    """Plain gradient descent with gradients of the table before the last update."""

    def __init__(self):
        self.table, self.seen = torch.ones(7), torch.ones(7)

    def step(self, ids):
        gradient = torch.zeros(7).index_add(0, ids, self.seen[ids])
        self.seen = self.table
        self.table = self.table - 0.25 * gradient


@pytest.mark.parametrize("num_ps", [1, 3])
def test_values_are_those_before_the_last_update(num_ps):
    """The gradient of a row is its value as it was seen: binary fractions, exact."""
    network = torch.nn.Embedding(7, 1, sparse=True)
    torch.nn.init.ones_(network.weight)

    def make(params):
        return torch.optim.SGD(params, lr=0.25)

    with LocalServers(num_ps) as servers:
        trainer = Trainer(servers.addresses, network=network, make=make)
        trainer.initialize().begin()
        exchange = trainer.exchange
        expected = Lagged()
        for ids, following in zip(IDS, [*IDS[1:], None], strict=True):
            exchange.pull(ids)
            if following is not None:
                exchange.pull_ahead(following)
            trainer.optimizer.zero_grad()
            (network(ids) ** 2 / 2).sum().backward()
            exchange.push()
            expected.step(ids)
        found = trainer.values()["weight"]
        assert found.ravel().tolist() == expected.table.tolist()
        trainer.close()
