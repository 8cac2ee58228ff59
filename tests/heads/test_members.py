# SPDX-License-Identifier: Apache-2.0
"""Several networks behind a head: the mean of their losses, and of their predictions."""

import numpy as np
import pytest
import torch

from skest.canned.dnn import mean_logits, member_loss
from skest.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)
from skest.keys import PredictionKeys

N_MEMBERS, N_ROWS = 3, 8
RNG = np.random.default_rng(0)
FEATURES = {"w": RNG.uniform(0.1, 3, (N_ROWS, 1)), "scale": np.arange(N_ROWS)[:, None]}
NUMBERS = RNG.uniform(0.1, 0.9, N_ROWS)
CLASSES = np.arange(N_ROWS) % 2


def scaled(labels, logits, features):
    return (labels - logits).square() * features["scale"]


def several(**options):
    heads = [
        BinaryClassHead(name="a", **options),
        RegressionHead(2, name="b", loss_fn=scaled, **options),
        MultiClassHead(3, name="c", **options),
        PoissonRegressionHead(name="d", **options),
    ]
    return MultiHead(heads, head_weights=[1, 2, 0.5, 3])


GAPS = {
    "a": [0, None, 1, 1, None, 0, 1, 0],
    "b": np.stack([NUMBERS, 2 * NUMBERS], 1),
    "c": [2, 1, 0, None, 1, 2, 0, 1],
    "d": NUMBERS,
}
HEADS = {
    "binary": (BinaryClassHead, CLASSES, PredictionKeys.PROBABILITIES),
    "classes": (
        lambda **options: MultiClassHead(4, **options),
        np.arange(N_ROWS) % 4,
        PredictionKeys.PROBABILITIES,
    ),
    "labels": (
        lambda **options: MultiLabelHead(2, **options),
        np.stack([CLASSES, 1 - CLASSES], 1),
        PredictionKeys.PROBABILITIES,
    ),
    "numbers": (
        lambda **options: RegressionHead(2, **options),
        np.stack([NUMBERS, 2 * NUMBERS], 1),
        PredictionKeys.PREDICTIONS,
    ),
    "counts": (PoissonRegressionHead, NUMBERS, PredictionKeys.PREDICTIONS),
    "shares": (LogisticRegressionHead, NUMBERS, PredictionKeys.PREDICTIONS),
    "several": (several, GAPS, ""),
}


def logits_of(head):
    generator = torch.Generator().manual_seed(0)
    shape = (N_MEMBERS, N_ROWS, head.logits_dimension)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("make", "labels", "_"), HEADS.values(), ids=list(HEADS))
def test_the_loss_is_the_mean_of_those_of_the_members(make, labels, _):
    for reduction in ["sum_over_batch_size", "sum"]:
        for weight_column in [None, "w"]:
            head = make(weight_column=weight_column, loss_reduction=reduction)
            encoded, logits = head.encode_labels(labels), logits_of(head)
            features = head.encode_features(FEATURES, {"x": torch.zeros(N_ROWS, 5)})
            found = member_loss(head, encoded, logits, features)
            single = [head.compute_loss(encoded, part, features) for part in logits]
            assert found.item() == pytest.approx(torch.stack(single).mean().item())


@pytest.mark.parametrize(("make", "_", "key"), HEADS.values(), ids=list(HEADS))
def test_logits_of_all_stand_for_the_mean_prediction(make, _, key):
    head = make()
    logits = 5 * logits_of(head)
    key_of = {
        "a": PredictionKeys.PROBABILITIES,
        "b": PredictionKeys.PREDICTIONS,
        "c": PredictionKeys.PROBABILITIES,
        "d": PredictionKeys.PREDICTIONS,
    }
    keys = [key] if key else list(key_of.items())
    found = head.predictions(mean_logits(head, logits), keys)
    single = [head.predictions(part, keys) for part in logits]
    for name in keys:
        expected = torch.stack([predictions[name] for predictions in single]).mean(0)
        torch.testing.assert_close(found[name], expected)
