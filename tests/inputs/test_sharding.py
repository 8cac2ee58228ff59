# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from skest.inputs import (
    ArrayDataset,
    InputContext,
    Pipeline,
    csv_input_fn,
    parquet_input_fn,
)
from skest.inputs.batches import Source
from skest.inputs.sharding import call_sharded, shard

N = 37


def contexts(n):
    return [InputContext(n, i) for i in range(n)]


def rows_of(data):
    """Return the rows of all batches, in order, as a Source reads them."""
    source = Source(data)
    if source.table is not None:
        return np.concatenate([np.asarray(f["i"]) for f in data]).tolist()
    batches = [f["i"] if isinstance(f, dict) else f for f, _ in source.batches()]
    return np.concatenate([np.asarray(b) for b in batches]).tolist() if batches else []


class Numbers(Dataset):
    """A map-style dataset that notes what is loaded."""

    def __init__(self, n=N):
        self.n, self.loaded = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.loaded.append(int(i))
        return int(i)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(N))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for k in range(5):
        table = pd.DataFrame({"i": np.arange(k, N, 5)})
        table.to_parquet(folder / f"{k}.parquet", row_group_size=4)
        table.to_csv(folder / f"{k}.csv", index=False)
    return folder


def table(**options):
    return ArrayDataset({"i": np.arange(N)}, batch_size=4, **options)


def batches():
    return [np.arange(start, min(start + 4, N)) for start in range(0, N, 4)]


def from_files(folder, read, suffix, shuffle):
    """Return a Pipeline of an input function that was not told about workers."""
    return read(f"{folder}/*.{suffix}", 4, shuffle=shuffle, seed=1)()


MAKERS = {
    "table": lambda f: table(),
    "shuffled table": lambda f: table(shuffle=True, seed=1),
    "list": lambda f: batches(),
    "generator": lambda f: (batch for batch in batches()),
    "pipeline of rows": lambda f: Pipeline(range(N)).batch(4),
    "pipeline of a function": lambda f: Pipeline(lambda: iter(range(N))).batch(4),
    "pipeline with all": lambda f: (
        Pipeline(range(N)).map(abs).cache().shuffle(9).batch(4).prefetch(2)
    ),
    "pipeline of a loader": lambda f: Pipeline(DataLoader(Numbers(), 4, shuffle=True)),
    "parquet": lambda f: from_files(f, parquet_input_fn, "parquet", False),
    "shuffled parquet": lambda f: from_files(f, parquet_input_fn, "parquet", True),
    "csv": lambda f: from_files(f, csv_input_fn, "csv", True),
    "loader": lambda f: DataLoader(Numbers(), 4),
    "seeded loader": lambda f: DataLoader(
        Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(1)
    ),
    "loader of a subset": lambda f: DataLoader(
        Numbers(), 4, sampler=SubsetRandomSampler(range(N))
    ),
    "loader with batches of its own": lambda f: DataLoader(
        Numbers(), batch_sampler=[batch.tolist() for batch in batches()]
    ),
    "loader of ready batches": lambda f: DataLoader(batches(), batch_size=None),
    "loader of a stream": lambda f: DataLoader(Stream(), 4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_parts_together_are_all_rows_once(name, files):
    make = MAKERS[name]
    for n in (2, 5):
        parts = [rows_of(shard(make(files), context)) for context in contexts(n)]
        assert sorted(row for part in parts for row in part) == list(range(N))
        assert all(parts)


@given(n_rows=st.integers(1, 50), n=st.integers(1, 6), batch_size=st.integers(1, 9))
def test_parts_of_tables_differ_by_one_row_at_most(n_rows, n, batch_size):
    data = ArrayDataset({"i": np.arange(n_rows)}, batch_size=batch_size, shuffle=True)
    if n_rows < n:
        with pytest.raises(ValueError, match="workers can't share"):
            shard(data, InputContext(n, 0))
        return
    parts = [shard(data, context) for context in contexts(n)]
    assert {i for part in parts for i in rows_of(part)} == set(range(n_rows))
    sizes = [part.n_rows for part in parts]
    assert max(sizes) - min(sizes) <= 1
    # All have as many batches: a row comes twice where one would be missing.
    assert len({len(list(part)) for part in parts}) == 1
    assert all(len(list(part)) == part.steps_per_epoch for part in parts)
    repeated = sum(sizes) - n_rows
    assert repeated == (0 if n_rows // n % batch_size else -n_rows % n)


SHUFFLED = {
    "table": lambda f, seed: table(shuffle=True, seed=seed, num_epochs=2),
    "pipeline": lambda f, seed: Pipeline(range(N)).shuffle(N, seed).repeat(2).batch(4),
    "files": lambda f, seed: parquet_input_fn(
        f"{f}/*.parquet", 4, shuffle=True, seed=seed, num_epochs=2
    )(),
    "loader": lambda f, seed: (
        torch.manual_seed(seed) and DataLoader(Numbers(), 4, shuffle=True)
    ),
    "pipeline of a loader": lambda f, seed: (
        torch.manual_seed(seed)
        and Pipeline(DataLoader(Numbers(), 4, shuffle=True)).repeat(2)
    ),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_parts_have_orders_of_their_own_that_can_be_repeated(name, files):
    def order(seed, index):
        part = shard(SHUFFLED[name](files, seed), InputContext(2, index))
        return rows_of(part)

    with torch.random.fork_rng():
        first = order(1, 0)
        assert first == order(1, 0) != order(2, 0)
        # The place of a row in its part, which files have not.
        if name != "files":
            assert [i // 2 for i in first[:18]] != [i // 2 for i in order(1, 1)[:18]]
        if name != "loader":
            assert first[: len(first) // 2] != first[len(first) // 2 :]


@pytest.mark.parametrize("name", [n for n in SHUFFLED if n != "files"])
def test_a_part_goes_on_in_its_middle(name, files):
    with torch.random.fork_rng():
        whole = Source(shard(SHUFFLED[name](files, 1), InputContext(2, 1)))
        position = whole.position(3)
        rows = rows_of(whole.table) if whole.table else None
        again = Source(shard(SHUFFLED[name](files, 2), InputContext(2, 1)), position)
        if whole.table is None:
            all_batches = [batch.tolist() for batch, _ in whole.batches()]
            assert [batch.tolist() for batch, _ in again.batches()] == all_batches[3:]
        else:
            assert rows_of(again.table) == rows[12:]


# Loaders


def test_a_loader_loads_its_own_rows_only():
    for options in ({}, {"shuffle": True}):
        data = Numbers()
        part = shard(DataLoader(data, 5, **options), InputContext(3, 1))
        assert sorted(rows_of(part)) == sorted(data.loaded) == list(range(1, N, 3))
        # Of 4, the first worker has a batch more than 12 rows make.
        part = shard(DataLoader(data, 4, **options), InputContext(3, 1))
        assert sorted(rows_of(part)) == [1, *range(1, N, 3)]


def test_workers_draw_the_same_order_and_take_other_batches_of_it():
    sampler = WeightedRandomSampler([1.0] * N, N, replacement=False)
    with torch.random.fork_rng():
        rows = []
        for context in contexts(3):  # each in a process of its own
            torch.manual_seed(0)
            rows += rows_of(shard(DataLoader(Numbers(), 4, sampler=sampler), context))
    assert sorted(rows) == list(range(N))


def test_batches_of_other_samplers_are_divided():
    data = Numbers()
    sampler = WeightedRandomSampler([1.0] * N, N)
    batch_sampler = BatchSampler(sampler, 4, drop_last=False)
    loaders = [
        DataLoader(data, 4, sampler=sampler),
        DataLoader(data, batch_sampler=batch_sampler),
        DataLoader(data, 4, sampler=RandomSampler(data, replacement=True)),
        DataLoader(data, 4, sampler=RandomSampler(data, num_samples=N + 1)),
    ]
    for loader in loaders:
        data.loaded.clear()
        parts = [list(shard(loader, context)) for context in contexts(2)]
        assert [len(part) for part in parts] == [5, 5]
        assert len(data.loaded) == sum(len(b) for part in parts for b in part)
        seeded = shard(Pipeline(loader), InputContext(2, 0))
        assert list(map(torch.Tensor.tolist, seeded)) == [b.tolist() for b in seeded]


def test_a_distributed_sampler_has_divided_the_rows_already():
    for by_batches in [False, True]:
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)
        loader = (
            DataLoader(Numbers(), batch_sampler=BatchSampler(sampler, 4, False))
            if by_batches
            else DataLoader(Numbers(), 4, sampler=sampler)
        )
        assert rows_of(shard(loader, InputContext(2, 1))) == list(sampler)


# What is left alone, and what is refused


def test_a_pipeline_with_a_shard_is_left_alone():
    data = Pipeline(range(N)).shard(2, 1).batch(4)
    assert shard(data, InputContext(2, 1)) is data


def test_what_cannot_be_divided():
    for data, error, message in [
        (ArrayDataset(np.ones((2, 1))), ValueError, r"3 workers can't .* 2 row\(s\)"),
        (Pipeline([1, 2]), ValueError, r"3 workers can't share 2 element\(s\)"),
        (DataLoader(Numbers(2)), ValueError, r"3 workers can't share 2 row\(s\)"),
        (np.ones((4, 1)), TypeError, "must return an ArrayDataset or an iterable"),
        ({"x": [1]}, TypeError, "must return an ArrayDataset or an iterable"),
        (None, TypeError, "must return an ArrayDataset or an iterable"),
    ]:
        with pytest.raises(error, match=message):
            shard(data, InputContext(3, 0))


# In a training


def test_an_input_fn_that_names_the_context_divides_by_itself():
    def input_fn(input_context):
        seen.append(input_context)
        return batches()

    seen, context = [], InputContext(2, 1)
    assert len(call_sharded(input_fn, context)) == len(batches())
    assert seen == [context]
    half = list(call_sharded(lambda: batches(), context))
    assert len(half) == len(batches()) // 2
    assert len(call_sharded(lambda: batches(), None)) == len(batches())
