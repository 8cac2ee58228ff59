# SPDX-License-Identifier: Apache-2.0
"""Several targets of one network."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose

from skest.heads import (
    BinaryClassHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)

LOGITS = torch.tensor([[0.5, 1.0, 0.0, 2.0], [-1.0, 0.0, 3.0, 1.0], [2.0, 0.0, 0, 0]])
LABELS = {"click": [1, 0, 1], "animal": [2, 1, 0]}


def two_heads(**arguments):
    return MultiHead(
        [BinaryClassHead(name="click"), MultiClassHead(3, name="animal")], **arguments
    )


def computed(metrics):
    return {name: metric.compute() for name, metric in metrics.items()}


def test_unknown_predictions():
    for key, match in [
        ("click", r"no prediction 'click'. Its keys are pairs .*\('click', 'logits'\)"),
        (("mouse", "logits"), r"no prediction \('mouse', 'logits'\)"),
        (("click", "price"), "BinaryClassHead 'click' has no prediction 'price'"),
    ]:
        with pytest.raises(ValueError, match=match):
            two_heads().predictions(LOGITS, [key])


# Missing labels


HEADS = [
    (BinaryClassHead(label_vocabulary=["n", "y"], name="a"), ["y", "n", "y"]),
    (MultiClassHead(3, label_vocabulary=list("xyz"), name="a"), ["z", "x", "y"]),
    (RegressionHead(name="a"), [0.5, 1.0, -3.0]),
    (RegressionHead(2, name="a"), [[0.5, 1.0], [2.0, 3.0], [0.0, -1.0]]),
    (PoissonRegressionHead(name="a"), [5, 0, 2]),
    (MultiLabelHead(3, name="a"), np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])),
]


@pytest.mark.parametrize(("head", "labels"), HEADS, ids=lambda v: type(v).__name__)
def test_a_missing_label_is_one_of_weight_zero(head, labels):
    for known in [[0, 1, 2], [0, 2], [1], []]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(3, head.logits_dimension, generator=generator)
        gaps = pd.DataFrame(labels).astype(object)
        gaps.iloc[[i for i in range(3) if i not in known]] = None
        given = {"a": gaps.to_numpy() if gaps.shape[1] > 1 else gaps[0]}
        present = {"a": np.asarray(labels)[known]}
        multi = MultiHead([head])
        metrics, expected = multi.metrics(), multi.metrics()
        multi.update_metrics(metrics, given, logits)
        if not known:
            assert multi.loss(given, logits).item() == 0
            assert metrics["average_loss/a"].compute() == 0
            continue
        share = len(known) / 3
        loss = multi.loss(present, logits[known]) * share
        assert_allclose(multi.loss(given, logits), loss, rtol=1e-5)
        multi.update_metrics(expected, present, logits[known])
        for name, value in computed(expected).items():
            factor = share if name == "loss/a" else 1
            assert_allclose(metrics[name].compute(), value * factor, rtol=1e-5)


def test_class_ids_with_gaps():
    for labels in [
        [2.0, None, 1.0],
        np.array([2.0, np.nan, 1.0]),
        np.array([2, None, 1], dtype=object),
        pd.Series([2, None, 1]),
        pd.array([2, pd.NA, 1], dtype="Int64"),
        pl.Series([2, None, 1]),
        pd.DataFrame({"y": [2, None, 1]}),
    ]:
        encoded = MultiHead([MultiClassHead(3, name="a")]).encode_labels({"a": labels})
        assert encoded["a"]["labels"].tolist() == [[2], [0], [1]]
        assert encoded["a"]["known"].tolist() == [[True], [False], [True]]
        assert encoded["a"]["labels"].dtype == torch.int64


# Errors


def test_wrong_arguments():
    for arguments, error, match in [
        ({"heads": []}, ValueError, r"'heads' of MultiHead must be a list .* \[\]"),
        ({"heads": RegressionHead()}, ValueError, "must be a list of heads"),
        ({"heads": ["a"]}, TypeError, "must hold heads for one target; got 'a'"),
        ({"heads": [two_heads()]}, TypeError, "heads for one target; got MultiHead"),
        ({"heads": [RegressionHead()]}, ValueError, r"RegressionHead\(\) has none"),
        (
            {"heads": [RegressionHead(name="a"), BinaryClassHead(name="a")]},
            ValueError,
            "different names; got 'a' twice",
        ),
        (
            {
                "heads": [
                    RegressionHead(name="a"),
                    RegressionHead(name="b", loss_reduction="sum"),
                ]
            },
            ValueError,
            "'sum_over_batch_size' of 'a' and 'sum' of 'b'",
        ),
        (
            {"heads": [RegressionHead(name="a")], "head_weights": [1, 2]},
            ValueError,
            "'head_weights' .* each of the 1 heads; got 2",
        ),
        (
            {"heads": [RegressionHead(name="a")], "head_weights": ["1"]},
            TypeError,
            "'head_weights' of MultiHead, for 'a', must be a finite number .* got '1'",
        ),
    ]:
        with pytest.raises(error, match=match):
            MultiHead(**arguments)


def test_wrong_labels():
    for labels, match in [
        (None, "labels"),
        ([1, 0, 1], "labels as a dictionary with the keys 'click', 'animal'; got list"),
        ({"click": [1, 0, 1]}, r"labels of its head\(s\) 'animal'; got .* of 'click'"),
        ({**LABELS, "click": None}, "BinaryClassHead 'click' needs labels"),
        ({**LABELS, "click": [1, 0]}, "BinaryClassHead 'click' needs labels of shape"),
    ]:
        head = two_heads()
        with pytest.raises(ValueError, match=match):
            head.loss(labels, LOGITS)
        with pytest.raises(ValueError, match=match):
            head.update_metrics(head.metrics(), labels, LOGITS)


def test_wrong_logits():
    for logits, match in [
        (torch.zeros(3, 3), r"MultiHead .* logits of shape \(..., 4\), .* \(3, 3\)"),
        ({"click": torch.zeros(3, 1)}, r"logits of its head\(s\) 'animal'"),
        (
            {"click": torch.zeros(3, 2), "animal": torch.zeros(3, 3)},
            r"BinaryClassHead 'click' needs logits of shape \(..., 1\)",
        ),
        (np.zeros((3, 4)), "logits as a dictionary .* got ndarray"),
    ]:
        with pytest.raises(ValueError, match=match):
            two_heads().loss(LABELS, logits)


def test_a_missing_label_has_no_gradient_whatever_the_loss_makes_of_it():
    def loss_fn(labels, logits):
        return logits.exp() - labels.log() * logits  # no number for a label of 0

    head = MultiHead([RegressionHead(name="t", loss_fn=loss_fn)])
    logits = torch.zeros(3, 1, requires_grad=True)
    loss = head.loss({"t": np.array([1.0, 2.0, np.nan])}, {"t": logits})
    loss.backward()
    assert loss.item() == pytest.approx(2 / 3)
    assert_allclose(
        logits.grad.ravel(), [1 / 3, (1 - np.log(2)) / 3, 0], rtol=1e-6, atol=1e-12
    )
