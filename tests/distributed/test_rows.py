# SPDX-License-Identifier: Apache-2.0
"""Tables in servers: what is fetched of them, when, and what is refused."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.distributed.ps.rows import RemoteRows, distinct_rows
from skest.distributed.ps.variables import Variables
from skest.feature_columns import DenseFeatures, FeatureColumns, embedding_column
from skest.feature_columns import categorical_column_with_identity as identity
from skest.feature_columns.lookup import bring_rows, row_table
from skest.heads.sampled_softmax import ClassTable, sampled_logits
from skest.inputs import ArrayDataset
from skest.optimizers.row_sparse import RowSparse
from tests.distributed.test_exactness import assert_same, squared_error

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


class Changed(nn.Module):
    """Looks up ids of 32 bits, and such as it has written itself."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(N_IDS, 3, sparse=True)
        self.out = nn.Linear(3, 1)

    def forward(self, features):
        narrow = self.table(features["b"].int())
        ids = features["a"].add_(7).remainder_(N_IDS)
        return self.out((self.table(ids) + narrow).reshape(-1, 3))


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
        bring_rows(table, features["b"])
        found = F.embedding(features["b"], table, sparse=True).reshape(-1, 3)
        keys = {key for _, key, _ in self.columns.row_lookups()}
        encoded = dict.fromkeys(keys, features["a"])
        return self.out(self.columns(encoded) + 2 * found)


class Classes(nn.Module):
    """Reads the rows of an output layer as inputs, too."""

    def __init__(self):
        super().__init__()
        self.classes = ClassTable(3, N_IDS, 5)

    def forward(self, features):
        bring_rows(self.classes.weight, features["b"])
        hidden = F.embedding(features["b"], self.classes.weight, sparse=True)
        return self.classes(hidden.reshape(-1, 3)) | {"labels": features["a"]}


NETWORKS = {
    "two embeddings": TwoModules,
    "two bags": functools.partial(TwoModules, nn.EmbeddingBag),
    "feature column and function": ColumnsAndFunction,
    "classes and function": Classes,
    "ids that change": Changed,
}


def sampled_loss(labels, sample, features):
    logits = sampled_logits(sample["labels"].reshape(-1, 1), sample)
    return -logits.log_softmax(-1)[:, 0].mean()


def trained(make):
    def model_fn(features, labels, mode):
        network = make()
        return EstimatorSpec(
            mode,
            network=network,
            loss=sampled_loss if make is Classes else squared_error,
            optimizer=RowSparse(torch.optim.Adagrad(network.parameters(), 0.1)),
        )

    estimator = Estimator(model_fn, config=RunConfig(random_seed=3))
    return estimator.train(input_fn, steps=12).checkpoint


def input_fn():
    """Return ids of which the second feature has some that the first never has."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 30, (N_ROWS, 1)), rng.integers(20, N_IDS, (N_ROWS, 1))
    y = np.sin(a[:, 0]).astype("f4")
    return ArrayDataset({"a": a, "b": b}, y, batch_size=8, num_epochs=2)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_readers_see_the_rows_of_the_servers(served, name):
    train = functools.partial(trained, NETWORKS[name])
    assert_same(served(2, train), train())


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


@pytest.mark.parametrize("read", [[3], [5, 6]])
def test_rows_that_were_looked_up_unseen_are_refused(read):
    network = nn.Embedding(9, 3, sparse=True)
    servers = Ones(network)
    ids = torch.tensor([5])
    for _ in range(2):  # so that the look-up is known
        servers.fetch(servers.rows.begin_step(ids))
        network(ids)
    F.embedding(torch.tensor(read), network.weight, sparse=True).sum().backward()
    with pytest.raises(ValueError, match=r"\['weight'\] .* were looked up where that"):
        servers.rows.gradients()


def test_what_no_server_can_make_right_is_refused():
    network = nn.Module()
    network.table = row_table(torch.ones(5, 2))
    rows = Ones(network).rows
    network.table.sum().backward()
    with pytest.raises(ValueError, match="'table' is a table .* its gradient is dense"):
        rows.gradients()
    with pytest.raises(ValueError, match="'max_norm' changes its rows"):
        Ones(nn.Embedding(9, 2, sparse=True, max_norm=1.0))


def test_ids_beyond_a_table_are_refused_though_another_one_follows():
    network = nn.ModuleDict({n: nn.Embedding(4, 2, sparse=True) for n in "ab"})
    rows = Ones(network).rows
    features = {"a": torch.tensor([3]), "b": torch.tensor([2])}
    rows.begin_step(features)
    for name, ids in features.items():
        network[name](ids)
    assert len(rows.begin_step(features)) == 2
    with pytest.raises(IndexError, match="less than .* got 4 in 'a.weight', of 4 rows"):
        rows.begin_step(features | {"a": torch.tensor([0, 4])})


# Rows of several tables, each once

SIZES = [5, 3, 4]
STARTS = [0, 5, 8, 12]
# Of two tables rows are alike, and one behind the other.
SHAPES = [(2,), (2,), ()]


@given(st.data())
def test_tables_together_are_what_each_is_alone(data):
    numbers = data.draw(st.lists(st.sampled_from(range(3)), unique=True, min_size=1))
    ids, values = {}, {}
    for n in sorted(numbers):
        drawn = data.draw(st.lists(st.integers(0, SIZES[n] - 1), max_size=6))
        ids[n] = torch.tensor(drawn, dtype=torch.int64)
        values[n] = torch.randn(len(drawn), *SHAPES[n])
    found = distinct_rows(ids, STARTS)
    sums = found.summed(values)
    for n, own in ids.items():
        kept, total, value = found.ids[n], sums[n], values[n]
        assert sorted(kept.tolist()) == sorted(set(own.tolist()))
        expected = torch.zeros(5, *value.shape[1:]).index_add_(0, own, value)
        assert torch.equal(total, expected[kept])
