# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch

from skest import Estimator, EstimatorSpec


def test_optimizers_of_other_networks_are_refused_before_the_first_step():
    other = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), 0.1)

    def model_fn(features, labels, mode):
        network = torch.nn.Linear(2, 1)
        own = torch.optim.Adagrad(network.parameters())
        return EstimatorSpec(
            mode,
            network=network,
            loss=lambda labels, logits, features: logits.mean(),
            optimizer=[own, other],
        )

    estimator = Estimator(model_fn)
    message = r"SGD holds a parameter of shape \(1, 3\) that is not in the 'network'"
    with pytest.raises(ValueError, match=message):
        estimator.train(lambda: [(np.ones((4, 2), np.float32), np.ones(4))])
    assert estimator.checkpoint is None
