# SPDX-License-Identifier: Apache-2.0
"""Datasets and loaders of ``torch.utils.data`` as what an ``input_fn`` returns."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from skest import Estimator, RunConfig
from skest.inputs import Pipeline
from tests._models import Recorder, model_fn, table, table_fn

X, Y = table()
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Samples(Dataset):
    """Map-style, with dictionaries of features."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return {"x": X[i], "word": "ab"[i % 2]}, Y[i]


class Stream(IterableDataset):
    """Samples one by one; workers of a loader share them."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        n, i = (1, 0) if worker is None else (worker.num_workers, worker.id)
        yield from zip(X[i::n], Y[i::n], strict=True)


class Batches(IterableDataset):
    """Whole batches, which need no loader."""

    def __iter__(self):
        for start in range(0, len(X), 4):
            yield X[start : start + 4], Y[start : start + 4]


def dict_model_fn(features, labels, mode, params):
    assert list(features) == ["x", "word"]
    assert len(features["word"]) == len(labels)
    spec = model_fn(features, labels, mode, params)
    spec.network.register_forward_pre_hook(lambda _, args: (args[0]["x"],))
    return spec


def losses(input_fn, model_fn=model_fn):
    recorder = Recorder()
    estimator = Estimator(model_fn, config=RunConfig(random_seed=0))
    estimator.train(input_fn, [recorder])
    assert estimator.evaluate(input_fn)["global_step"] == len(recorder.losses)
    return recorder.losses


EXPECTED = losses(table_fn())


@pytest.mark.parametrize(
    "input_fn",
    [
        lambda: DataLoader(TENSORS, batch_size=4),
        lambda: DataLoader(Stream(), batch_size=4),
        lambda: DataLoader(Batches(), batch_size=None),
        lambda: Batches(),
        lambda: Pipeline(TENSORS).batch(4),
        lambda: Pipeline(Stream()).batch(4).prefetch(),
        lambda: Pipeline(Batches()).unbatch().batch(4),
        lambda: DataLoader(TENSORS, batch_size=4, num_workers=2),
    ],
)
def test_all_kinds_give_the_same_training(input_fn):
    assert losses(input_fn) == EXPECTED


@pytest.mark.parametrize(
    "input_fn",
    [
        lambda: DataLoader(Samples(), batch_size=4),
        lambda: DataLoader(Samples(), batch_size=4, num_workers=1),
        lambda: Pipeline(Samples()).batch(4),
    ],
)
def test_samples_with_dictionaries(input_fn):
    assert losses(input_fn, dict_model_fn) == EXPECTED


def test_workers_share_a_stream():
    loader = DataLoader(Stream(), batch_size=4, num_workers=2)
    rows = np.concatenate([y for _, y in loader])
    assert sorted(rows) == sorted(Y)
    assert len(losses(lambda: loader)) == 6  # ten rows of each worker


@pytest.mark.parametrize("data", [TENSORS, Samples()], ids=["tensors", "samples"])
def test_a_dataset_of_samples_is_no_iterable_of_batches(data):
    estimator = Estimator(model_fn)
    with pytest.raises(
        TypeError,
        match=f"got {type(data).__name__}. For single samples, use .*DataLoader",
    ):
        estimator.train(lambda: data)
