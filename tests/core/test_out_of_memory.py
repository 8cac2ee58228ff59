# SPDX-License-Identifier: Apache-2.0
"""What is said when a device has no memory left."""

import numpy as np
import pytest
import torch

from skest import Estimator, EstimatorSpec, ModeKeys
from skest.core.resources import explained_out_of_memory
from skest.inputs import ArrayDataset


class Exhausting(torch.nn.Linear):
    """Runs out of memory in the third call."""

    n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        if self.n_calls == 3:
            torch.empty(2**46)
        return super().forward(x)


def model_fn(features, labels, mode):
    network = Exhausting(2, 1)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: (z[:, 0] - y).square().mean(),
        predictions=lambda z: {"y": z[:, 0]},
        optimizer=torch.optim.SGD(network.parameters(), 0.1)
        if mode == ModeKeys.TRAIN
        else None,
    )


def test_training_names_the_batch_size_and_the_variables():
    X = np.zeros((40, 2), np.float32)
    estimator = Estimator(model_fn)
    match = (
        r"of cpu is at its end with batches of 8 rows and 3 weights \(largest: 'weight' of "
        r"shape \(1, 2\), 8.0 bytes, 'bias'.*smaller batch size.*can't allocate memory"
    )
    with pytest.raises(MemoryError, match=match):
        estimator.train(lambda: ArrayDataset(X, X[:, 0], batch_size=8))


def test_the_error_of_a_gpu_keeps_its_type():
    match = r"of cuda:1 is at its end with batches of 5 rows and 0 weights; .*1 GiB"
    with (
        pytest.raises(torch.OutOfMemoryError, match=match),
        explained_out_of_memory(5, torch.device("cuda:1"), None),
    ):
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")
