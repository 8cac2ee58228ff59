# SPDX-License-Identifier: Apache-2.0
"""Predictions follow from one another."""

from functools import partial

import pytest
import torch

from skest.adapters.user_model import (
    DerivedPredictions,
    class_predictions,
    label_predictions,
    number_predictions,
)

Z = torch.tensor([-2.0, 0.0, 1e-9, 3.0])
P = Z.sigmoid()
TWO = {
    "one column": {"logits": Z[:, None]},
    "no column": {"logits": Z},
    "two columns": {"logits": torch.stack([Z * 0 + 5, Z + 5], dim=1)},
    "logistic": {"logistic": P[:, None]},
    "probability": {"probabilities": P},
    "probabilities": {"probabilities": torch.stack([1 - P, P], dim=1)},
    "both": {"logits": Z, "probabilities": P},
}


@pytest.mark.parametrize("own", TWO.values(), ids=TWO)
def test_two_classes(own):
    found = class_predictions(own, n_classes=2)
    assert {key: tuple(value.shape) for key, value in found.items()} == {
        "logits": (4, 1),
        "probabilities": (4, 2),
        "class_ids": (4, 1),
    }
    torch.testing.assert_close(found["logits"][:, 0], Z, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found["probabilities"][:, 1], P)
    torch.testing.assert_close(found["probabilities"].sum(1), torch.ones(4))
    assert torch.equal(found["class_ids"], (found["logits"] > 0).long())


def test_a_logit_too_small_for_the_probability_is_still_no_tie():
    assert class_predictions({"logits": Z}, 2)["class_ids"].flatten().tolist() == [
        0,
        0,
        1,
        1,
    ]


@pytest.mark.parametrize("key", ["logits", "probabilities"])
def test_three_classes(key):
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]])
    own = {key: logits if key == "logits" else logits.softmax(1)}
    found = class_predictions(own, n_classes=3)
    torch.testing.assert_close(found["probabilities"], logits.softmax(1))
    torch.testing.assert_close(found["logits"].softmax(1), logits.softmax(1))
    assert found["class_ids"].tolist() == [[1], [0]]


def test_class_ids_that_are_given_stay():
    ids = torch.tensor([1, 1, 0, 0])
    found = class_predictions({"logits": Z, "class_ids": ids}, 2)
    assert found["class_ids"].flatten().tolist() == [1, 1, 0, 0]
    assert class_predictions({"class_ids": ids}, 2).keys() == {"class_ids"}
    assert class_predictions({"price": ids}, 2) == {}


@pytest.mark.parametrize("key", ["logits", "probabilities"])
def test_labels(key):
    logits = torch.tensor([[0.0, 2.0, -1.0]])
    own = {key: logits if key == "logits" else logits.sigmoid()}
    found = label_predictions(own, n_classes=3)
    torch.testing.assert_close(found["probabilities"], logits.sigmoid())
    torch.testing.assert_close(found["logits"], logits)
    assert label_predictions({}, 3) == {}


def test_numbers():
    assert number_predictions({"predictions": Z}, 1)["predictions"].shape == (4, 1)
    two = torch.zeros(4, 2)
    assert number_predictions({"predictions": two}, 2)["predictions"] is two
    assert number_predictions({"price": Z}, 1) == {}


@pytest.mark.parametrize(
    ("derive", "own", "message"),
    [
        (
            partial(class_predictions, n_classes=3),
            {"logits": torch.zeros(4, 2)},
            r"'logits' of model_fn must have shape \(n_samples, 3\).*got \(4, 2\)",
        ),
        (
            partial(class_predictions, n_classes=2),
            {"probabilities": torch.zeros(4, 3)},
            r"shape \(n_samples, 1\) or \(n_samples, 2\).*got \(4, 3\)",
        ),
        (
            partial(class_predictions, n_classes=2),
            {"class_ids": torch.zeros(4, 2)},
            r"'class_ids' of model_fn must have shape \(n_samples, 1\)",
        ),
        (
            partial(label_predictions, n_classes=3),
            {"probabilities": torch.zeros(4)},
            r"shape \(n_samples, 3\), as y says; got \(4,\)",
        ),
        (
            partial(number_predictions, n_outputs=1),
            {"predictions": torch.zeros(4, 1, 1)},
            r"'predictions' of model_fn must have shape \(n_samples, 1\)",
        ),
    ],
)
def test_wrong_shapes(derive, own, message):
    with pytest.raises(ValueError, match=message):
        derive(own)


def test_what_does_not_follow_is_named():
    predictions = DerivedPredictions(
        lambda z: {"price": z}, partial(class_predictions, n_classes=2)
    )
    assert predictions(Z).keys() == {"price"}
    with pytest.raises(
        ValueError, match="'class_ids' cannot be told from .* which are 'price'. For"
    ):
        predictions(Z, ["class_ids"])
    nothing = DerivedPredictions(lambda z: {}, partial(number_predictions, n_outputs=1))
    with pytest.raises(ValueError, match="which are none"):
        nothing(Z, ["predictions"])


def test_predictions_of_the_wrong_kind():
    derive = partial(number_predictions, n_outputs=1)
    with pytest.raises(TypeError, match="must return a dictionary; got Tensor"):
        DerivedPredictions(lambda z: z, derive)(Z)
    with pytest.raises(ValueError, match="no 'predictions' in mode 'train'"):
        DerivedPredictions(None, derive)(Z)
