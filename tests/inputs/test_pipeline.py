# SPDX-License-Identifier: Apache-2.0
import gc
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.inputs import Pipeline

INTEGERS = st.lists(st.integers(-9, 9), max_size=12)


def plain(elements):
    """Elements as lists and numbers, which can be compared."""
    return [e.tolist() if hasattr(e, "tolist") else e for e in elements]


def threads():
    return [t for t in threading.enumerate() if t.name == "skest-prefetch"]


@pytest.fixture(autouse=True)
def no_threads_are_left():
    yield
    assert not threads()


# Operations

OPERATIONS = {
    "map": lambda p: p.map(lambda x: x * 2),
    "filter": lambda p: p.filter(lambda x: int(np.sum(x)) % 2),
    "shuffle": lambda p: p.shuffle(3),
    "shuffle_all": lambda p: p.shuffle(100, seed=1),
    "repeat": lambda p: p.repeat(2),
    "shard": lambda p: p.shard(2, 1),
    "prefetch": lambda p: p.prefetch(2),
    "cache": lambda p: p.cache(),
    "batch_and_back": lambda p: p.batch(3).unbatch(),
    "full_batches_and_back": lambda p: p.batch(2, drop_remainder=True).unbatch(),
    "batch_as_sums": lambda p: p.batch(2).map(np.sum),
}


@given(INTEGERS)
def test_operations_on_sequences(values):
    pipeline = Pipeline(values)
    assert list(pipeline) == values
    assert list(pipeline.map(str)) == list(map(str, values))
    assert list(pipeline.filter(bool)) == list(filter(bool, values))
    assert list(pipeline.repeat(3)) == 3 * values
    assert list(pipeline.cache().repeat(2)) == 2 * values
    assert list(pipeline.prefetch(2)) == values


@given(INTEGERS, st.integers(1, 5), st.booleans())
def test_batches(values, size, drop_remainder):
    batches = plain(Pipeline(values).batch(size, drop_remainder))
    expected = [values[i : i + size] for i in range(0, len(values), size)]
    if drop_remainder and expected and len(expected[-1]) < size:
        expected.pop()
    assert batches == expected


@given(INTEGERS, st.integers(1, 15), st.integers(0, 99))
def test_shuffle_is_a_permutation(values, buffer_size, seed):
    pipeline = Pipeline(values).shuffle(buffer_size, seed)
    assert Counter(pipeline) == Counter(values)
    assert list(pipeline) == list(pipeline)
    if buffer_size == 1:
        assert list(pipeline) == values


@settings(max_examples=100)
@given(
    INTEGERS,
    st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=5),
    st.sampled_from(["list", "function", "dataset"]),
)
def test_resuming_at_every_position_equals_the_uninterrupted_run(values, names, kind):
    def make():
        pipeline = Pipeline(SOURCES[kind](values))
        for name in names:
            pipeline = OPERATIONS[name](pipeline)
        return pipeline

    first = make()
    elements = plain(first)
    for n in range(len(elements) + 2):
        again = make().resumed(n, first.seeds)  # as in another process
        assert plain(again) == elements[n:]
        assert plain(first.resumed(n, first.seeds)) == elements[n:]
        assert plain(again.resumed(1, first.seeds)) == elements[n + 1 :]


class MapStyle(torch.utils.data.Dataset):
    def __init__(self, values):
        self.values = values

    def __getitem__(self, i):
        return self.values[range(len(self.values))[i]]

    def __len__(self):
        return len(self.values)


SOURCES = {"list": list, "function": lambda v: lambda: iter(v), "dataset": MapStyle}


def test_an_empty_pass_ends_an_endless_repeat():
    assert list(Pipeline([]).repeat()) == []
    assert list(Pipeline(lambda: iter(())).repeat()) == []


def test_nothing_is_read_that_is_not_wanted():
    for source in [range(10**6), lambda: iter(range(10**6))]:
        seen = []
        pipeline = (
            Pipeline(source).map(lambda i, seen=seen: seen.append(i) or i).batch(2)
        )
        assert next(iter(pipeline.resumed(3, []))).tolist() == [6, 7]
        assert seen == [6, 7]  # what is skipped is not computed


def test_a_cache_computes_once():
    calls = []
    pipeline = Pipeline(range(3)).map(lambda i: calls.append(i) or i).cache()
    next(iter(pipeline))  # an incomplete pass keeps nothing
    calls.clear()
    assert list(pipeline.repeat(3)) == 3 * [0, 1, 2]
    assert list(pipeline) == [0, 1, 2]
    assert calls == [0, 1, 2]


# Batches of rows


def test_rows_to_a_batch():
    for rows, expected in [
        ([{"x": 1, "s": "a"}, {"x": 2, "s": "b"}], {"x": [1, 2], "s": ["a", "b"]}),
        ([{"x": {"y": 1}}, {"x": {"y": 2}}], {"x": {"y": [1, 2]}}),
        ([np.ones(2), np.zeros(2)], [[1, 1], [0, 0]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([1, "a"], [1, "a"]),
        ([None, "a"], [None, "a"]),
        ([torch.ones(1), torch.zeros(1)], [[1], [0]]),
    ]:
        (batch,) = Pipeline(rows).batch(5)
        assert as_lists(batch) == expected


def test_rows_that_do_not_fit_together():
    for rows, message in [
        ([{"x": 1}, {"y": 1}], r"the same keys; got \['x'\] and \['y'\]"),
        ([(1, 2), (1, 2, 3)], r"tuples of the .* length; got \(1, 2\) and \(1, 2, 3\)"),
        ([(1, 2), 3], "tuples of the same length"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(Pipeline(rows).batch(2))


def test_rows_of_tables():
    for batch in [
        pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
        {"a": pd.Series([1, 2], index=[7, 8]), "b": np.array(["x", "y"])},
        {"a": torch.tensor([1, 2]), "b": ["x", "y"]},
    ]:
        if isinstance(batch, dict) and isinstance(batch["b"], list):
            with pytest.raises(TypeError, match=r"'batch\['b'\]' must be an array"):
                list(Pipeline([batch]).unbatch())
        else:
            rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
            assert list(Pipeline([batch]).unbatch()) == rows


# Sources


def test_an_iterator_can_be_read_once():
    pipeline = Pipeline(iter([1, 2])).map(str)
    assert not pipeline.is_restartable
    assert list(pipeline) == ["1", "2"]
    with pytest.raises(ValueError, match="is an iterator, which was used up before"):
        list(pipeline)
    with pytest.raises(ValueError, match=r"can't be repeated.*cache\(\) before repeat"):
        pipeline.repeat()


def test_tuples_of_batches_are_elements():
    assert len(list(Pipeline(torch.ones(6, 2).split(3)))) == 2
    assert list(Pipeline((({"x": 1}, 2), ({"x": 3}, 4)))) == [
        ({"x": 1}, 2),
        ({"x": 3}, 4),
    ]


def test_other_sources_are_refused():
    for source in [
        3,
        None,
        "text",
        {"x": [1]},
        (np.ones((3, 2)), np.ones(3)),
        ({"x": [1]}, np.ones(1)),
        pd.DataFrame({"x": [1]}),
    ]:
        with pytest.raises(
            TypeError, match=f"got {type(source).__name__}. For a table .*ArrayDataset"
        ):
            Pipeline(source)


def test_what_was_opened_is_closed():
    closed = []

    def source():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    iterator = iter(Pipeline(source).map(str).shuffle(2, seed=0).prefetch(2).batch(2))
    next(iterator)
    assert not closed
    iterator.close()
    assert closed == [True]


# Prefetch


@pytest.mark.parametrize("n_ahead", [1, 3])
def test_prefetch_reads_no_further_than_asked(n_ahead):
    taken, at_limit = [], threading.Event()

    def source():
        for i in range(100):
            taken.append(i)
            if i == n_ahead:
                at_limit.set()
            yield i

    iterator = iter(Pipeline(source).prefetch(n_ahead))
    assert next(iterator) == 0
    assert at_limit.wait(60)
    assert not threading.Event().wait(0.02)
    assert taken == list(range(n_ahead + 1))
    iterator.close()


def test_errors_come_where_their_element_would_have_been():
    def broken(i):
        if i == 3:
            raise OSError("disk")
        return i

    seen = []
    with pytest.raises(OSError, match="disk"):
        for element in Pipeline(range(9)).map(broken).prefetch(2).prefetch(2):
            seen.append(element)
    assert seen == [0, 1, 2]
    assert not threads()


def test_a_forgotten_iterator_ends_its_thread():
    iterator = iter(Pipeline(range(9)).prefetch(2).repeat())
    next(iterator)
    assert threads()
    del iterator
    gc.collect()


# Arguments


def test_arguments():
    for make, error, message in [
        (lambda p: p.batch(0), ValueError, "'batch_size' of Pipeline.batch must be"),
        (lambda p: p.shuffle(1.5), TypeError, "'buffer_size' of Pipeline.shuffle"),
        (lambda p: p.repeat(0), ValueError, "'count' of Pipeline.repeat must be"),
        (lambda p: p.prefetch(0), ValueError, "'n_ahead' of Pipeline.prefetch must"),
        (lambda p: p.shard(0, 0), ValueError, "'num_shards' of Pipeline.shard must"),
        (lambda p: p.shard(2, -1), ValueError, "'index' of Pipeline.shard must be"),
        (lambda p: p.shard(2, 2), ValueError, "from 0 to 1; got 2"),
        (lambda p: p.map(3), TypeError, "Pipeline.map needs a function.*got int"),
        (lambda p: p.filter(None), TypeError, "Pipeline.filter needs a function"),
    ]:
        with pytest.raises(error, match=message):
            make(Pipeline([1]))


def as_lists(batch):
    if isinstance(batch, dict):
        return {name: as_lists(value) for name, value in batch.items()}
    return batch.tolist()
