# SPDX-License-Identifier: Apache-2.0
import functools
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skest.checkpoints.checkpoint import Checkpoint
from skest.distributed.ps.checkpoint import join, snapshot, state_of, upload
from skest.distributed.ps.connection import Peer, PSClient
from skest.distributed.ps.messages import Message, Op, Reader, WireError
from skest.distributed.ps.optimizers import Shard, rebuilt_optimizer
from skest.distributed.ps.variables import Variables, aliases, place
from skest.optimizers.ftrl import ProximalAdagrad
from skest.optimizers.row_sparse import RowSparse
from tests.distributed._servers import LocalServers
from tests.distributed.test_exactness import assert_same

ADAM = functools.partial(torch.optim.Adam, lr=0.1, foreach=True)


def trained(make=ADAM):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 3))
    network.append(nn.Linear(3, 3))
    network[2].weight = network[1].weight
    optimizer = RowSparse(make(network.parameters()))
    network(torch.tensor([0, 4])).sum().backward()
    optimizer.step()
    return network, optimizer


@pytest.mark.parametrize("make", [ADAM, ProximalAdagrad], ids=["adam", "proximal"])
@pytest.mark.parametrize("num_ps", [1, 7])
def test_what_servers_are_given_comes_back(num_ps, make):
    """Also if some have no row of a table."""
    network, optimizer = trained(make=make)
    expected = Checkpoint.capture(network, 3, [optimizer])
    variables = Variables.of(network, [optimizer], num_ps)
    assert Variables.from_json(variables.to_json()) == variables
    state = state_of(variables, network, [optimizer])
    with LocalServers(num_ps) as servers:
        client = PSClient(servers.addresses, Peer("chief", 0))
        client.connect()
        upload(client, variables, state, 3)
        found = snapshot(client, variables, ["dense", "table"]).fetched()
        client.close()
    optimizer.state.clear()
    own = Checkpoint.capture(network, 3, [optimizer])
    joined = join(found, own, aliases(network))
    assert found.step == 3
    assert_same(joined, expected)


SIZES = st.dictionaries(st.text(max_size=3), st.integers(0, 100), max_size=12)


@given(SIZES, st.integers(1, 5), st.randoms(use_true_random=False))
def test_placement_is_even_and_does_not_depend_on_the_order(sizes, num_ps, random):
    items = list(sizes.items())
    random.shuffle(items)
    found = place(sizes, num_ps)
    assert place(dict(items), num_ps) == found
    load = [0] * num_ps
    for name, ps in found.items():
        load[ps] += sizes[name]
    assert max(load) - min(load) <= max(sizes.values(), default=0)


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
        (2, 35, "0 gradients of 36 bytes, 36 .*If it is a table, .* it be read by row"),
    ],
)
def test_dense_variables_that_no_message_can_hold_are_refused(num_ps, limit, message):
    network, optimizer = trained()
    variables = Variables.of(network, [optimizer], num_ps)
    variables.check_sizes(limit + 1)
    with pytest.raises(ValueError, match=message):
        variables.check_sizes(limit)


def shard_of_two_tables():
    network = nn.ModuleDict({n: nn.Embedding(4, 2, sparse=True) for n in "ab"})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    variables = Variables.of(network, [optimizer], 1)
    part = state_of(variables, network, [optimizer])
    return network, Shard(variables, 0, part, threading.RLock())


def reader(*tensors):
    flat = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    return Reader(Message(Op.PUSH, payload=(flat,)))


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ([-7, 0], r"names \[-7, 0\] rows of tables, of which parameter server 0 has"),
        ([5, 0, *[0] * 5], r"has \[4, 4\]; each may be named once"),
        ([1, 1, 3, 4], r"does not have: its tables have \[4, 4\]\."),
        ([1, 0, -1], r"server 0 does not have: its"),
    ],
)
def test_rows_that_a_server_does_not_have_are_refused(numbers, match):
    network, shard = shard_of_two_tables()
    before = [p.detach().clone() for p in network.parameters()]
    with pytest.raises(WireError, match=match):
        shard.pull(reader(torch.tensor(numbers)), False)
    if min(numbers[:2]) >= 0:  # less is no gradient
        with pytest.raises(WireError, match=match):
            shard.gradients(reader(torch.tensor(numbers), torch.ones(64)))
    assert all(map(torch.equal, network.parameters(), before))
