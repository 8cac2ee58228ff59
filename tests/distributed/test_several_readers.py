# SPDX-License-Identifier: Apache-2.0
"""Tables in servers that more than one part of a model reads."""

import contextlib
import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.distributed.ps.rows import RemoteRows
from skest.distributed.ps.variables import Variables
from skest.distributed.testing import LocalServers
from skest.feature_columns import DenseFeatures, FeatureColumns, embedding_column
from skest.feature_columns import categorical_column_with_identity as identity
from skest.feature_columns.lookup import row_table
from skest.feature_columns.modules import RowLookup
from skest.heads.sampled_softmax import ClassTable, sampled_logits
from skest.inputs import ArrayDataset
from skest.optimizers.row_sparse import RowSparse
from tests.distributed._training import replica
from tests.distributed.test_async_replica import assert_same, squared_error

N_IDS, N_ROWS = 60, 64


class TwoModules(nn.Module):
    """The first reads other rows than the second."""

    def __init__(self, kind=nn.Embedding):
        super().__init__()
        self.first = kind(N_IDS, 3, sparse=True)
        self.second = kind(N_IDS, 3, sparse=True)
        self.second.weight = self.first.weight
        self.out = nn.Linear(3, 1)

    def forward(self, features):
        first, second = self.first(features["a"]), self.second(input=features["b"])
        return self.out((first + 2 * second).reshape(-1, 3))


class ModuleAndFunction(nn.Module):
    def __init__(self, look_up):
        super().__init__()
        self.table = nn.Embedding(N_IDS, 3, sparse=True)
        self.out = nn.Linear(3, 1)
        self.look_up = look_up

    def forward(self, features):
        found = self.look_up(features["b"], self.table.weight).reshape(-1, 3)
        return self.out(self.table(features["a"]).reshape(-1, 3) + 2 * found)


class Changed(nn.Module):
    """Writes into the ids before it looks them up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(N_IDS, 3, sparse=True)
        self.out = nn.Linear(3, 1)

    def forward(self, features):
        ids = features["a"].add_(7).remainder_(N_IDS)
        return self.out(self.table(ids).reshape(-1, 3))


class Narrow(nn.Module):
    """Has ids of 32 bits."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(N_IDS, 3, sparse=True)
        self.out = nn.Linear(3, 1)

    def forward(self, features):
        return self.out(self.table(features["a"].int()).reshape(-1, 3))


class ColumnsAndFunction(nn.Module):
    """Reads the table of a feature column once more."""

    def __init__(self):
        super().__init__()
        column = embedding_column(identity("a", N_IDS), 3)
        columns = FeatureColumns([("a", column)]).fit({"a": np.arange(N_IDS)})
        self.columns = DenseFeatures(columns)
        self.out = nn.Linear(3, 1)

    def forward(self, features):
        (table,) = self.columns.column_parameters().values()
        found = F.embedding(features["b"], table, sparse=True).reshape(-1, 3)
        keys = {lookup.key for lookup in self.columns.row_lookups()}
        encoded = dict.fromkeys(keys, features["a"])
        return self.out(self.columns(encoded) + 2 * found)


class ClassesAndFunction(nn.Module):
    """Reads the rows of an output layer as inputs, too."""

    def __init__(self):
        super().__init__()
        self.classes = ClassTable(3, N_IDS, 5)

    def forward(self, features):
        hidden = F.embedding(features["b"], self.classes.weight, sparse=True)
        return self.classes(hidden.reshape(-1, 3)) | {"labels": features["a"]}


def bag(ids, weight):
    return F.embedding_bag(ids, weight, sparse=True, mode="sum")


def function(ids, weight):
    return F.embedding(input=ids, weight=weight, sparse=True)


def plain(ids, weight):
    return torch.embedding(weight, ids, sparse=True)


NETWORKS = {
    "two embeddings": TwoModules,
    "two bags": functools.partial(TwoModules, nn.EmbeddingBag),
    "embedding and function": functools.partial(ModuleAndFunction, function),
    "embedding and bag": functools.partial(ModuleAndFunction, bag),
    "embedding and operator": functools.partial(ModuleAndFunction, plain),
    "feature column and function": ColumnsAndFunction,
    "classes and function": ClassesAndFunction,
    "ids that change": Changed,
    "ids of 32 bits": Narrow,
}


def sampled_loss(labels, sample, features):
    logits = sampled_logits(sample["labels"].reshape(-1, 1), sample)
    return -logits.log_softmax(-1)[:, 0].mean()


def model(make, features, labels, mode):
    network = make()
    return EstimatorSpec(
        mode,
        network=network,
        loss=sampled_loss if make is ClassesAndFunction else squared_error,
        optimizer=RowSparse(torch.optim.Adagrad(network.parameters(), 0.1)),
    )


def input_fn():
    """Return ids of which the second feature has some that the first never has."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 30, (N_ROWS, 1)), rng.integers(20, N_IDS, (N_ROWS, 1))
    y = np.sin(a[:, 0]).astype("f4")
    return ArrayDataset({"a": a, "b": b}, y, batch_size=8, num_epochs=2)


def trained(make):
    model_fn = functools.partial(model, make)
    estimator = Estimator(model_fn, config=RunConfig(random_seed=3))
    return estimator.train(input_fn, steps=12).checkpoint


@pytest.mark.parametrize("num_ps", [2])
@pytest.mark.parametrize("name", NETWORKS)
def test_all_readers_see_the_rows_of_the_servers(monkeypatch, name, num_ps):
    with LocalServers(num_ps) as servers, monkeypatch.context() as patch:
        make = functools.partial(replica, servers.addresses)
        patch.setattr("skest.estimators.estimator.Replica", make)
        found = trained(NETWORKS[name])
    assert_same(found, trained(NETWORKS[name]))


class Ones:
    """Servers that have ones everywhere; notes what is fetched."""

    def __init__(self, network):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        variables = Variables.of(network, [optimizer], 1)
        self.fetched = []
        self.rows = RemoteRows(network, variables, self.fetch)

    def fetch(self, wanted):
        for number, ids in wanted.items():
            self.fetched.append(sorted(ids.tolist()))
            shape, dtype = self.rows.row_shape(number)
            self.rows.put(number, ids, torch.ones(len(ids), *shape, dtype=dtype))


def test_rows_that_come_ahead_are_fetched_once_for_all_readers():
    network = TwoModules()
    servers = Ones(network)
    batches = [{k: torch.tensor([[i], [j]]) for k in "ab"} for i, j in [(1, 2), (3, 4)]]
    for features in batches:
        wanted = servers.rows.wanted(features)
        servers.rows.begin_step(wanted)
        servers.fetch(wanted.rows)
        with servers.rows.watched():
            network(features)
    assert servers.fetched == [[1, 2], [3, 4]]


class Interrupted(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.table = row_table(torch.zeros(9, 1))
        self.error = error

    def row_lookups(self):
        return [RowLookup(self.table, "a", False)]

    def forward(self, features):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("wrong")])
def test_look_ups_are_watched_again_after_an_error(error):
    network = Interrupted(error)
    servers = Ones(network)
    for ids in ([[3]], [[5]]):
        servers.rows.begin_step(servers.rows.wanted(None))
        with pytest.raises((KeyboardInterrupt, ValueError)), servers.rows.watched():
            network({"a": torch.tensor(ids)})
    with servers.rows.watched():
        assert F.embedding(torch.tensor([7]), network.table, sparse=True).item() == 1
    assert servers.fetched == [[3], [5], [7]]


def test_an_embedding_that_changes_its_rows_is_refused_though_another_has_them():
    network = TwoModules()
    network.first.max_norm = 1.0
    with pytest.raises(ValueError, match="'max_norm' changes its rows"):
        Ones(network)


@pytest.mark.parametrize(
    ("read", "match"),
    [
        (lambda w, ids: w.detach()[ids], "'__getitem__' reads a table"),
        (
            lambda w, ids: F.linear(w.new_ones(1, 3), w.detach()),
            "'linear' reads a table",
        ),
        (lambda w, ids: w.detach().norm(dim=1), "'norm' reads a table"),
        (lambda w, ids: F.embedding(ids, w, None, 1.0), "'max_norm' changes"),
        (
            lambda w, ids: F.embedding_bag(ids[None], w, max_norm=1.0),
            "'max_norm' changes",
        ),
    ],
)
def test_what_no_server_can_make_right_is_refused(read, match):
    network = TwoModules()
    servers = Ones(network)
    servers.rows.begin_step(servers.rows.wanted(None))
    with servers.rows.watched(), pytest.raises(ValueError, match=match):
        read(network.first.weight, torch.tensor([2, 5]))


def test_what_reads_no_values_is_not_refused():
    network = TwoModules()
    servers = Ones(network)
    weight = network.first.weight
    servers.rows.begin_step(servers.rows.wanted(None))
    with servers.rows.watched():
        assert weight.detach().data.shape == weight.T.T.shape == (N_IDS, 3)
        assert torch.zeros_like(weight).sum() == weight.new_zeros(2).sum()
        rows = F.embedding(torch.tensor([4]), weight.detach())
    assert rows.tolist() == [[1, 1, 1]]


def test_rows_that_were_looked_up_unseen_are_refused():
    network = TwoModules()
    servers = Ones(network)
    weight = network.first.weight
    servers.rows.begin_step(servers.rows.wanted(None))
    unseen = torch.ops.aten.embedding.default
    match = r"tables \['first.weight'\] in parameter servers were looked up where"
    with servers.rows.watched():
        unseen(weight, torch.tensor([3]), -1, False, True).sum().backward()
    with pytest.raises(ValueError, match=match):
        servers.rows.check_gradients()


def test_rows_that_were_looked_up_unseen_are_refused_beside_those_that_were_wanted():
    network = nn.Embedding(9, 3, sparse=True)
    servers = Ones(network)
    ids = torch.tensor([3, 5])
    with servers.rows.watched():  # so that the look-up is known
        servers.rows.begin_step(servers.rows.wanted(ids))
        network(ids)
    match = r"tables \['weight'\] in parameter servers were looked up where"
    refused = pytest.raises(ValueError, match=match)
    for read, outcome in (([3, 5], contextlib.nullcontext()), ([5, 6], refused)):
        wanted = servers.rows.wanted(ids)
        servers.rows.begin_step(wanted)
        servers.fetch(wanted.rows)
        network.zero_grad()
        with servers.rows.watched():
            found = torch.ops.aten.embedding.default(
                *(network.weight, torch.tensor(read), -1, False, True)
            )
            found.sum().backward()
        with outcome:
            servers.rows.check_gradients()


class OneModule(TwoModules):
    """Computes the same with one reader."""

    def __init__(self):
        super().__init__()
        self.second = self.first


@pytest.mark.parametrize("num_ps", [1, 2])
def test_several_readers_see_as_late_as_one_does_what_comes_ahead(monkeypatch, num_ps):
    found = []
    for make in (TwoModules, OneModule):
        with LocalServers(num_ps) as servers, monkeypatch.context() as patch:
            late = functools.partial(replica, servers.addresses, pipeline=1)
            patch.setattr("skest.estimators.estimator.Replica", late)
            found.append(trained(make))
    assert_same(*found)
    late, now = found[0].variables, trained(TwoModules).variables
    assert not torch.equal(late["first.weight"], now["first.weight"])
