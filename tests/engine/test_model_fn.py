# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch

from skest import Estimator, EstimatorSpec
from skest.engine.model import model_fn_arguments


def test_wrong_model_functions_are_refused():
    for model_fn, params, error, message in [
        (3, None, TypeError, "'model_fn' must be a function; got int"),
        (lambda mode: None, None, ValueError, "must take the argument 'features'"),
        (lambda features: None, None, ValueError, "must take the argument 'mode'"),
        (
            lambda features, mode, foo, bar: None,
            None,
            ValueError,
            "has the argument.s. 'foo', 'bar', but only features, .*functools.partial",
        ),
        (
            lambda features, mode: None,
            {"a": 1},
            ValueError,
            "'params' are given, but model_fn does not take",
        ),
        (
            lambda features, mode, params: None,
            [1],
            TypeError,
            "'params' must be a dict; got list",
        ),
    ]:
        with pytest.raises(error, match=message):
            model_fn_arguments(model_fn, params)


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
