# SPDX-License-Identifier: Apache-2.0
"""Datasets and loaders of ``torch.utils.data`` as what an ``input_fn`` returns."""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from skest import Estimator, RunConfig
from skest.inputs import Pipeline
from tests._models import (
    At,
    Recorder,
    assert_same_checkpoint,
    model_fn,
    raising,
    table,
    table_fn,
)

X, Y = table()
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


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
        lambda: Pipeline(TENSORS).batch(4),
        lambda: Pipeline(Stream()).batch(4).prefetch(),
        lambda: Pipeline(Batches()).unbatch().batch(4),
        lambda: DataLoader(TENSORS, batch_size=4, num_workers=2),
    ],
)
def test_all_kinds_give_the_same_training(input_fn):
    assert losses(input_fn) == EXPECTED


def own_generator():
    return DataLoader(
        TENSORS, 4, shuffle=True, generator=torch.Generator().manual_seed(1)
    )


def own_order():
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TENSORS, 4, sampler=RandomSampler(TENSORS, generator=generator))


class Drawing(Batches):
    """Batches in an order of its own, another one in each pass."""

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def __iter__(self):
        batches = list(super().__iter__())
        return iter([batches[i] for i in self._rng.permutation(len(batches))])


@pytest.mark.parametrize(
    "input_fn",
    [
        lambda: DataLoader(TENSORS, batch_size=4, shuffle=True),
        lambda: Pipeline(DataLoader(TENSORS, batch_size=4, shuffle=True)).prefetch(2),
        own_generator,
        lambda: Pipeline(own_generator()),
        own_order,
        lambda: Pipeline(own_order()).prefetch(2),
        lambda: DataLoader(Drawing(), batch_size=None),
        lambda: Pipeline(Drawing()),
    ],
)
def test_an_interrupted_training_goes_on_in_the_same_order(input_fn):
    def train(*hooks):
        return estimator.train(input_fn, [recorder, *hooks])

    def new():
        torch.manual_seed(7)
        config = RunConfig(random_seed=0)
        return Recorder(), Estimator(
            model_fn, None, config, {"network": "torch_dropout"}
        )

    recorder, estimator = new()
    whole = train().checkpoint
    losses = recorder.losses
    recorder, estimator = new()
    with pytest.raises(OSError, match="broken"):
        train(At(2, raising(OSError("broken"))))
    assert estimator.checkpoint.global_step == 2
    torch.manual_seed(8)  # as another process might have
    train()
    assert recorder.losses == losses
    assert_same_checkpoint(estimator.checkpoint, whole)


def test_a_dataset_of_samples_is_no_iterable_of_batches():
    message = "got TensorDataset. For single samples, use .*DataLoader"
    with pytest.raises(TypeError, match=message):
        Estimator(model_fn).train(lambda: TENSORS)
