# SPDX-License-Identifier: Apache-2.0
import functools
import threading

import pytest
import torch
from torch import nn

from skest.checkpoints.checkpoint import Checkpoint
from skest.distributed.ps.checkpoint import gathered, join
from skest.distributed.ps.optimizers import Shard, rebuilt_optimizer
from skest.distributed.ps.variables import Part, Variables, aliases, split
from skest.optimizers.ftrl import ProximalAdagrad
from skest.optimizers.row_sparse import RowSparse

ADAM = functools.partial(torch.optim.Adam, lr=0.1, foreach=True)


def trained(n_rows=5, make=ADAM):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(n_rows, 3, sparse=True), nn.Linear(3, 3))
    network.append(nn.Linear(3, 3))
    network[2].weight = network[1].weight
    optimizer = RowSparse(make(network.parameters()))
    network(torch.tensor([0, n_rows - 1])).sum().backward()
    optimizer.step()
    return network, optimizer


def whole(frozen):
    """Return a part of tensors."""
    found = {
        key: value if isinstance(value, torch.Tensor) else value[:]
        for key, value in frozen.tensors.items()
    }
    return Part(frozen.optimizers, found)


@pytest.mark.parametrize("make", [ADAM, ProximalAdagrad], ids=["adam", "proximal"])
@pytest.mark.parametrize("num_ps", [1, 2, 3, 7])
def test_what_is_split_and_held_by_servers_is_joined_again(num_ps, make):
    network, optimizer = trained(make=make)
    expected = Checkpoint.capture(network, 3, [optimizer])
    variables = Variables.of(network, [optimizer], num_ps)
    assert Variables.from_json(variables.to_json()) == variables
    parts = split(variables, network, [optimizer], expected)
    kinds, lock = ["dense", "table"], threading.RLock()
    held = [
        whole(Shard(variables, ps, part).frozen(kinds, lock))
        for ps, part in enumerate(parts)
    ]
    for parameter in network.parameters():
        parameter.data.zero_()
    optimizer.state.clear()
    local = Checkpoint.capture(network, 3, [optimizer])
    found = join(gathered(variables, iter(held)), local, aliases(network))
    for ours, theirs in zip(
        (found.variables, found.optimizer),
        (expected.variables, expected.optimizer),
        strict=True,
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert found.scalars == expected.scalars


def test_differences_are_told_by_name():
    network, optimizer = trained()
    other = trained(n_rows=6)
    ours, theirs = (Variables.of(n, [o], 2) for n, o in ((network, optimizer), other))
    (difference,) = ours.differences(theirs)
    assert difference.startswith("0.weight: table float32 (5, 3) at -1 here, table")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"class": "Missing"}, "is not known on a parameter server"),
        ({"module": "os", "class": "path"}, "is not known"),
        ({"module": "torch.optim.lbfgs", "class": "LBFGS"}, "several times in a step"),
    ],
)
def test_optimizers_that_no_server_can_make(changes, match):
    weight = nn.Parameter(torch.zeros(2))
    description = {
        "class": "SGD",
        "module": "torch.optim.sgd",
        "row_sparse": False,
        "slots": {},
        "values": {},
        "param_groups": [{"params": ["w"], "options": {"lr": 1}, "implementation": {}}],
    }
    with pytest.raises(ValueError, match=match):
        rebuilt_optimizer({**description, **changes}, {"w": weight}, {})


@pytest.mark.parametrize(
    ("num_ps", "limit", "message"),
    [
        # 3 x 3 weights are 36 bytes, which two layers share, and each bias 12.
        (1, 59, "0 gradients of 60 bytes, 36 .* '1.weight'; .* 59. Use more parameter"),
        (
            2,
            35,
            "0 gradients of 36 bytes, 36 .*If it is a table, let it be read by row",
        ),
    ],
)
def test_dense_variables_that_no_message_can_hold_are_refused(num_ps, limit, message):
    network, optimizer = trained()
    variables = Variables.of(network, [optimizer], num_ps)
    variables.check_sizes(limit + 1)
    with pytest.raises(ValueError, match=message):
        variables.check_sizes(limit)
