# SPDX-License-Identifier: Apache-2.0
"""Which models for prediction may serve more than one call."""

import pytest
import torch

from skest import Estimator, ModeKeys
from skest.engine.model import pure_model_fn
from skest.engine.prediction import new_prediction_model
from tests._models import model_fn, table_fn


@pure_model_fn
def pure(features, labels, mode):
    return model_fn(features, labels, mode, {})


@pytest.mark.parametrize(
    ("function", "version", "expected"),
    [(pure, 7, 7), (pure, None, None), (model_fn, 7, None)],
    ids=["pure", "of one call", "not pure"],
)
def test_a_model_keeps_its_version_only_if_other_calls_may_have_it(
    function, version, expected
):
    estimator = Estimator(function).train(table_fn())
    builder = estimator._builder
    source = builder.open_source(table_fn(labels=False), ModeKeys.PREDICT)
    checkpoint = estimator.checkpoint
    device = torch.device("cpu")
    model = new_prediction_model(builder, checkpoint, version, source, device)
    assert model.version == expected
    assert model.global_step == checkpoint.global_step
    # Only a model that serves several calls shares the memory of the checkpoint.
    values = model.spec.network.state_dict()
    for name, variable in checkpoint.variables.items():
        assert torch.equal(values[name], variable)
        shares = values[name].data_ptr() == variable.data_ptr()
        assert shares == (expected is not None)
