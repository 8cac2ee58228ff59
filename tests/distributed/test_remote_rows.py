# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from skest.distributed.ps import rows as remote_rows
from skest.distributed.ps.lazy_tables import LazyZeros
from skest.distributed.ps.rows import RemoteRows
from skest.distributed.ps.variables import Variables
from skest.feature_columns.lookup import row_table


def rows_of(network, fetch=None):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    variables = Variables.of(network, [optimizer], 2)
    return RemoteRows(network, variables, fetch or (lambda wanted: None))


def test_lazy_zeros_can_be_forgotten():
    lazy = LazyZeros((3, 2), torch.float32)
    lazy.tensor[1] = 5
    lazy.forget()
    assert lazy.tensor.tolist() == [[0, 0]] * 3


def test_ids_that_were_found_in_the_features_are_asked_for_before_the_next_step():
    network = nn.Embedding(9, 2, sparse=True)
    fetched = []
    rows = rows_of(network, fetched.append)
    ids = torch.tensor([4, 1, 4])
    assert rows.wanted(ids).rows == {}
    rows.begin_step(rows.wanted(ids))
    network(ids)
    assert [sorted(wanted[0].tolist()) for wanted in fetched] == [[1, 4]]
    ids = torch.tensor([8, 8])
    wanted = rows.wanted(ids)
    assert [i.tolist() for i in wanted.rows.values()] == [[8]]
    rows.begin_step(wanted)
    network(ids)
    assert len(fetched) == 1


@pytest.mark.parametrize("how", ["torch", "numpy"])
def test_ids_that_change_after_they_were_found(how):
    network = nn.Embedding(9, 2, sparse=True)
    fetched = []

    def fetch(wanted):
        fetched.append(wanted[0].tolist())
        rows.put(0, wanted[0], torch.ones(len(wanted[0]), 2))

    rows = rows_of(network, fetch)
    ids = torch.tensor([4])
    rows.begin_step(rows.wanted(ids))
    network(ids)
    wanted = rows.wanted(ids)
    (ids if how == "torch" else ids.numpy())[0] = 7
    rows.begin_step(wanted)
    network(ids).sum().backward()
    if how == "torch":
        rows.check_gradients()
        assert fetched == [[4], [7]]
    else:
        with pytest.raises(ValueError, match=r"changed by NumPy or '\.data'"):
            rows.check_gradients()


def test_gradients_of_equal_ids_are_summed():
    network = nn.Embedding(9, 2, sparse=True)
    rows = rows_of(network)
    assert rows.gradients() == [None]
    network(torch.tensor([4, 1, 4])).sum().backward()
    ids, values = rows.gradients()[0]
    found = dict(zip(ids.tolist(), values.tolist(), strict=True))
    assert found == {4: [2, 2], 1: [1, 1]}


@pytest.mark.parametrize("looked_up", [[4, 1, 4], [1, 4, 4], [1]])
def test_gradients_are_those_of_what_was_looked_up_not_of_what_was_wanted(looked_up):
    network = nn.Embedding(9, 2, sparse=True)
    rows = rows_of(network)
    ids = torch.tensor([4, 1, 4])
    for _ in range(2):
        rows.begin_step(rows.wanted(ids))
        network.zero_grad()
        network(ids)
    network(torch.tensor(looked_up)).sum().backward()
    pairs = zip(*(t.tolist() for t in rows.gradients()[0]), strict=True)
    assert dict(pairs) == {i: [looked_up.count(i)] * 2 for i in looked_up}


def test_a_dense_gradient_of_a_table_is_refused():
    network = nn.Module()
    network.table = row_table(torch.ones(5, 2))
    rows = rows_of(network)
    network.table.sum().backward()
    with pytest.raises(ValueError, match="'table' is a table .* its gradient is dense"):
        rows.gradients()


def test_an_embedding_that_changes_its_rows_is_refused():
    with pytest.raises(ValueError, match="'max_norm' changes its rows"):
        rows_of(nn.Embedding(9, 2, sparse=True, max_norm=1.0))


def test_ids_beyond_a_table_are_refused_though_another_one_follows():
    network = nn.ModuleDict({n: nn.Embedding(4, 2, sparse=True) for n in "ab"})
    rows = rows_of(network)
    features = {"a": torch.tensor([3]), "b": torch.tensor([2])}
    rows.begin_step(rows.wanted(features))
    for name, ids in features.items():
        network[name](ids)
    assert len(rows.wanted(features).rows) == 2
    with pytest.raises(IndexError, match="less than .* got 4 in 'a.weight', of 4 rows"):
        rows.wanted(features | {"a": torch.tensor([0, 4])})


def test_ids_of_32_bits_are_looked_up():
    network = nn.Embedding(9, 2, sparse=True)
    fetched = []
    rows = rows_of(network, fetched.append)
    ids = torch.tensor([4, 1, 4], dtype=torch.int32)
    rows.begin_step(rows.wanted(ids))
    network(ids)
    assert fetched[0][0].tolist() == [1, 4]
    assert rows.wanted(ids).rows[0].dtype == torch.int64


@pytest.mark.parametrize(("kept_bytes", "is_kept"), [(4 * 9 * 2, True), (70, False)])
def test_small_tables_are_not_forgotten(monkeypatch, kept_bytes, is_kept):
    monkeypatch.setattr(remote_rows, "_KEPT_BYTES", kept_bytes)
    network = nn.Embedding(9, 2, sparse=True)
    rows = rows_of(network)
    for _ in range(3):
        rows.put(0, torch.arange(9), torch.ones(9, 2))
    rows.begin_step(rows.wanted(None))
    assert bool(network.weight.detach().bool().all()) == is_kept
