# SPDX-License-Identifier: Apache-2.0
"""`SampledSoftmaxHead`: loss, predictions, metrics, what it refuses."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.testing import assert_close

from skest import Estimator, RunConfig
from skest.heads import MultiClassHead, SampledSoftmaxHead
from skest.heads.sampled_softmax import ClassTable, sampled_logits
from skest.keys import ModeKeys
from skest.optimizers import make_optimizer
from tests._models import assert_same_checkpoint

N_CLASSES, WIDTH = 20, 3
LABELS = [4, 0, 19, 7]
NAMES = [f"class {i}" for i in range(N_CLASSES)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def head_of(num_sampled=6, **options):
    return SampledSoftmaxHead(N_CLASSES, num_sampled, **options)


def table_of(head, seed=1):
    made = head.output_layer(WIDTH, dtype=torch.float64, generator=generator())
    assert isinstance(made, ClassTable)
    made.generator = generator(seed)
    return made


def hidden(*shape):
    size = (*(shape or (len(LABELS),)), WIDTH)
    return torch.randn(size, dtype=torch.float64, generator=generator(2))


def logits_of(n=4):
    return torch.randn(n, N_CLASSES, generator=generator(3))


# Loss


def test_the_loss_is_softmax_cross_entropy_over_label_and_draws():
    head = head_of()
    sample = table_of(head)(hidden())
    labels = head.encode_labels(LABELS)
    candidates = sampled_logits(labels, sample)
    expected = (candidates.logsumexp(1) - candidates[:, 0]).mean()
    assert_close(head.compute_loss(labels, sample), expected)
    assert_close(head.loss(LABELS, sample), expected)
    assert_close(head.loss(LABELS, sample, regularization_losses=[2.0]), expected + 2.0)
    total = head_of(loss_reduction="sum").loss(LABELS, sample)
    assert_close(total, 4 * expected)


@pytest.mark.parametrize("distribution", ["log_uniform", range(1, 21)])
def test_with_more_draws_it_becomes_the_full_loss(distribution):
    def loss_and_gradients(head, made):
        x = hidden().requires_grad_()
        loss = head.loss(LABELS, made(x))
        parts = torch.autograd.grad(loss, [x, made.weight, made.bias])
        return torch.cat([part.to_dense().flatten() for part in (loss, *parts)])

    def deviation(num_sampled):
        head = head_of(num_sampled, class_distribution=distribution)
        made = table_of(head)
        full = loss_and_gradients(head, made.eval()).detach()
        made.train()
        draws = [loss_and_gradients(head, made) for _ in range(20)]
        return (torch.stack(draws) - full).norm(dim=1).mean().item()

    few, more, many = map(deviation, (50, 800, 12_800))
    assert few > 3 * more > 9 * many  # a quarter each is expected


def test_all_logits_give_what_multi_class_head_gives():
    head, other = head_of(), MultiClassHead(N_CLASSES)
    z = logits_of()
    assert torch.equal(head.loss(LABELS, z), other.loss(LABELS, z))
    results = []
    for each in (head, other):
        metrics = each.metrics()
        each.update_metrics(metrics, LABELS, z)
        results.append({name: metric.compute() for name, metric in metrics.items()})
    assert results[0].pop("accuracy/top_5") >= results[1]["accuracy"]
    assert results[0] == results[1]
    keys = ["logits", "probabilities", "class_ids", "classes"]
    mine, theirs = head.predictions(z, keys), other.predictions(z, keys)
    for key in keys:
        assert_allclose(mine[key], theirs[key]) if key != "classes" else None
    assert mine["classes"].tolist() == theirs["classes"].tolist()


# Predictions and metrics


def test_predictions_of_the_best_classes():
    head, z = head_of(top_k=3, label_vocabulary=NAMES), logits_of()
    assert list(head.predictions(z)) == [
        "logits",
        "probabilities",
        "class_ids",
        "classes",
        "top_k_class_ids",
        "top_k_probabilities",
        "top_k_classes",
    ]
    best = head.predictions(
        z, ["top_k_class_ids", "top_k_probabilities", "top_k_classes"]
    )
    order = np.argsort(-z.numpy(), axis=1)[:, :3]
    assert best["top_k_class_ids"].tolist() == order.tolist()
    probabilities = torch.softmax(z, 1).numpy()
    expected = np.take_along_axis(probabilities, order, axis=1)
    assert_allclose(best["top_k_probabilities"], expected, rtol=1e-6)
    assert best["top_k_classes"].tolist() == np.array(NAMES)[order].tolist()
    digits = head_of(top_k=1).predictions(z, ["top_k_classes"])["top_k_classes"]
    assert digits.tolist() == [[str(i)] for i in order[:, 0]]


def test_top_k_accuracy():
    head = head_of(top_k=2, weight_column="w", name="item")
    z = torch.zeros(4, N_CLASSES)
    for row, label in enumerate(LABELS):  # places 1, 2, 3 and 1
        z[row, label] = 5
        z[row, [1, 2][: (0, 1, 2, 0)[row]]] = 9
    metrics = head.metrics()
    head.update_metrics(metrics, LABELS, z, {"w": np.array([1.0, 2.0, 4.0, 1.0])})
    results = {name: metric.compute() for name, metric in metrics.items()}
    assert list(results) == [
        "average_loss/item",
        "accuracy/item",
        "accuracy/top_2/item",
    ]
    assert results["accuracy/item"] == 2 / 8
    assert results["accuracy/top_2/item"] == 4 / 8


# The specification


class Net(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last

    def forward(self, x):
        return self.last(x)


def spec(head, mode, last):
    labels = None if mode == ModeKeys.PREDICT else LABELS
    network = Net(last)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return head.create_estimator_spec(
        np.zeros((4, WIDTH)), mode, network, labels=labels, optimizer=optimizer
    )


def test_a_network_to_train_needs_the_table():
    head = head_of(name="item")
    with pytest.raises(
        ValueError,
        match=r"SampledSoftmaxHead 'item' trains a network that ends in a ClassTable of "
        r"20 classes; got a Net with none\. .*head\.output_layer\(in_features\)",
    ):
        spec(head, ModeKeys.TRAIN, nn.Linear(WIDTH, N_CLASSES))
    with pytest.raises(ValueError, match=r"got a Net with one of 21\."):
        spec(head, ModeKeys.TRAIN, ClassTable(WIDTH, 21, 6))
    assert spec(head, ModeKeys.EVAL, nn.Linear(WIDTH, N_CLASSES)).mode == "eval"


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    """Also what is drawn."""

    def model_fn(features, labels, mode):
        head = head_of()
        network = nn.Sequential(nn.Linear(WIDTH, 4), head.output_layer(4))
        optimizer = make_optimizer("adagrad", network.parameters(), 0.3)
        return head.create_estimator_spec(features, mode, network, labels, optimizer)

    def train(n_steps, model_dir=None):
        estimator = Estimator(model_fn, model_dir, RunConfig(random_seed=0))
        batch = (hidden().numpy(), np.array(LABELS))
        return estimator.train(lambda: [batch] * n_steps).checkpoint

    train(3, tmp_path)
    assert_same_checkpoint(train(5, tmp_path), train(8))


# What it refuses


def test_wrong_arguments():
    for arguments, error, match in [
        ({"n_classes": 2}, ValueError, "'n_classes' of .*Use BinaryClassHead"),
        ({"num_sampled": 0}, ValueError, "'num_sampled' of .* at least 1; got 0"),
        ({"top_k": 21}, ValueError, "'top_k' of .* from 1 to 20; got 21"),
        ({"class_distribution": "x"}, ValueError, "'class_distribution' of .* got 'x'"),
        ({"class_distribution": [1, 2]}, ValueError, r"of the 20 classes; .* \(2,\)"),
        (
            {"label_vocabulary": ["b", *NAMES[2:], "b"]},
            ValueError,
            "'label_vocabulary' of .* names a class twice: 'b'",
        ),
        ({"loss_reduction": "none"}, ValueError, "'loss_reduction' of"),
        ({"name": 3}, TypeError, "'name' of"),
    ]:
        right = {"n_classes": N_CLASSES, "num_sampled": 6}
        with pytest.raises(error, match=match) as caught:
            SampledSoftmaxHead(**{**right, **arguments})
        assert "SampledSoftmaxHead" in str(caught.value)


def test_a_sample_is_no_prediction():
    head = head_of()
    sample = table_of(head)(hidden())
    for call in (
        lambda: head.predictions(sample),
        lambda: head.update_metrics(head.metrics(), LABELS, sample),
    ):
        with pytest.raises(TypeError, match=r"training mode\. Call network\.eval\(\)"):
            call()


def test_labels_of_another_shape():
    head = head_of()
    sample = table_of(head)(hidden())
    with pytest.raises(
        ValueError,
        match=r"labels of shape \(4, 1\) for a hidden layer of shape \(4, 3\); "
        r"got \(3, 1\)",
    ):
        head.loss([1, 2, 3], sample)
    with pytest.raises(ValueError, match="needs labels to train or evaluate; got None"):
        head.compute_loss(None, sample)
    with pytest.raises(ValueError, match=r"in \[0, 19\]"):
        head.loss([1, 2, 3, 20], sample)
