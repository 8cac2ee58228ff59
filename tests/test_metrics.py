# SPDX-License-Identifier: Apache-2.0
"""Metrics against scikit-learn, under splits, merges and odd inputs."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from sklearn import metrics as sk

from skest.metrics import AUC, Accuracy, BinaryBaseline, Mean, Precision, Recall


class SmallAUC(AUC):
    """With few buckets, which is quick; the scores below never share one."""

    _BUCKETS = 1024


LABELLED = [
    Accuracy,
    lambda: Accuracy(0.3),
    lambda: Precision(0.3),
    lambda: Recall(0.3),
    AUC,
    lambda: AUC("PR"),
    lambda: SmallAUC(max_points=3),
    lambda: SmallAUC("PR", max_points=3),
]


@st.composite
def data(draw, min_size=1, max_size=40):
    """Scores with ties, labels and weights ≥ 0 of some examples."""
    n = draw(st.integers(min_size, max_size))
    scores = draw(
        arrays(np.float64, n, elements=st.integers(0, 12).map(lambda i: i / 12))
    )
    labels = draw(arrays(np.int64, n, elements=st.integers(0, 1)))
    weights = draw(arrays(np.float64, n, elements=st.integers(0, 4).map(float)))
    return scores, labels, weights


def of(metric, *batches):
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


# Values


@given(data())
def test_against_scikit_learn(sample):
    scores, labels, weights = sample
    if weights.sum() == 0:
        return
    predicted = scores > 0.3
    accuracy = sk.accuracy_score(labels, predicted, sample_weight=weights)
    assert of(Accuracy(0.3), sample) == pytest.approx(accuracy)
    for metric, function in (
        (Precision, sk.precision_score),
        (Recall, sk.recall_score),
    ):
        expected = function(labels, predicted, sample_weight=weights, zero_division=0)
        assert of(metric(0.3), sample) == pytest.approx(expected)
    mean = np.average(scores, weights=weights)
    assert of(Mean(), (scores, weights)) == pytest.approx(mean)
    share = np.average(labels, weights=weights)
    expected = max(share, 1 - share)
    assert of(BinaryBaseline(), (labels, weights)) == pytest.approx(expected)


@given(data())
def test_auc_against_scikit_learn(sample):
    scores, labels, weights = sample
    both = weights[labels == 1].sum() * weights[labels == 0].sum() > 0
    expected = sk.roc_auc_score(labels, scores, sample_weight=weights) if both else 0.0
    assert of(AUC(), sample) == pytest.approx(expected)


@given(data())
def test_precision_recall_area_is_the_integral(sample):
    """Interpolated: many small steps from point to point, each with its precision."""
    scores, labels, weights = sample
    positives = weights[labels == 1].sum()
    if positives == 0:
        assert of(AUC("PR"), sample) == 0
        return
    area, tp, fp = 0.0, 0.0, 0.0
    for threshold in np.unique(scores)[::-1]:
        here = scores == threshold
        new_tp, new_fp = (weights[here & (labels == c)].sum() for c in (1, 0))
        steps = (np.arange(2000) + 0.5) / 2000
        tps, fps = tp + new_tp * steps, fp + new_fp * steps
        precision = np.divide(tps, tps + fps, where=tps > 0, out=np.zeros(2000))
        area += precision.mean() * new_tp / positives
        tp, fp = tp + new_tp, fp + new_fp
    assert of(AUC("PR"), sample) == pytest.approx(area, abs=1e-5)


def test_auc_at_the_edges():
    for curve, labels, expected in [
        ("ROC", [1, 1], 0.0),
        ("ROC", [0, 0], 0.0),
        ("PR", [1, 1], 1.0),
        ("PR", [0, 0], 0.0),
        ("ROC", [0, 1], 1.0),
        ("PR", [0, 1], 1.0),
    ]:
        for max_points in [0, 10]:
            assert of(AUC(curve, max_points), ([0.2, 0.7], labels)) == expected


def test_without_weight_everything_is_0():
    for make in [Mean, BinaryBaseline, *LABELLED]:
        metric = make()
        assert metric.compute() == 0
        zero = [0.0, 0.0]
        values = ([0.2, 0.7],) if isinstance(metric, Mean) else ([0.2, 0.7], [0, 1])
        assert of(metric, (*values, zero)) == 0


def test_a_score_at_the_threshold_is_negative():
    scores = torch.tensor([0.3])  # as float32 above 0.3, but equal in its own type
    assert of(Accuracy(0.3), (scores, [0])) == 1.0
    assert of(Recall(0.3), (scores, [1])) == 0.0


def test_sums_are_float64():
    """In float32, 2**24 + 1 is 2**24."""
    mean = Mean()
    for value in [2.0**24, 1.0, 1.0]:
        mean.update(torch.tensor([value]))
    assert mean.compute() * 3 == 2**24 + 2


# State


@settings(max_examples=150)
@given(make=st.sampled_from(LABELLED), sample=data(2), cut=st.integers(0, 40))
def test_splits_and_merges_do_not_matter(make, sample, cut):
    parts = [tuple(column[:cut] for column in sample)]
    parts += [tuple(column[cut:] for column in sample)]
    expected = of(make(), sample)
    assert_allclose(of(make(), *parts), expected, atol=1e-12)
    first, second = make(), make()
    first.update(*parts[0])
    second.update(*parts[1])
    assert first.merge(second) is first
    assert_allclose(first.compute(), expected, atol=1e-12)
    assert_allclose(second.compute(), of(make(), parts[1]), atol=1e-12)


@settings(max_examples=100)
@given(st.sampled_from(["ROC", "PR"]), st.sampled_from([2, 5, 1024]), data())
def test_error_bound_of_buckets_holds(curve, buckets, sample):
    exact, rough = AUC(curve), AUC(curve, max_points=0)
    rough._BUCKETS = buckets
    difference = abs(of(exact, sample) - of(rough, sample))
    assert exact.error_bound() == 0
    assert difference <= rough.error_bound() + 1e-12
    if buckets == 1024:
        assert difference < 1e-12


def test_copies_pickles_and_resets():
    for make in [Mean, BinaryBaseline, *LABELLED]:
        metric = make()
        batch = ([0.1, 0.6, 0.3, 0.8, 0.2],)
        batch = batch if isinstance(metric, Mean) else (*batch, [0, 1, 1, 0, 0])
        metric.update(*batch)
        value = metric.compute()
        for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
            assert twin.compute() == value
            assert repr(twin) == repr(metric)
            assert of(twin, batch) == pytest.approx(value)
        metric.reset()
        assert metric.compute() == 0
        assert of(metric, batch) == value


def test_updates_do_not_wait_for_the_device():
    """On the meta device, a look at any value is an error."""
    for make in [Mean, *LABELLED]:
        metric = make()
        values = torch.rand(4, 1, device="meta")
        arguments = (values,) if isinstance(metric, Mean) else (values, values)
        metric.update(*arguments, torch.rand(4, device="meta"))


# Errors


def test_unknown_curve():
    with pytest.raises(ValueError, match="'curve' must be 'ROC' or 'PR'; got 'roc'"):
        AUC("roc")


def test_shapes_must_agree():
    for make in LABELLED:
        with pytest.raises(ValueError, match=r"same shape; got \(2, 1\) and \(2,\)"):
            make().update([[0.1], [0.2]], [0, 1])


def test_weights_must_fit():
    for weights in [[1.0, 2.0], [[1.0, 2.0]], 1.0]:
        with pytest.raises(ValueError, match=r"'weights' must fit values .* \(3, 1\)"):
            Mean().update([[1.0], [2.0], [3.0]], weights)


def test_only_metrics_of_a_kind_merge():
    with pytest.raises(TypeError, match="Precision merges with its own kind"):
        Precision().merge(Recall())
    with pytest.raises(ValueError, match="settings differ"):
        Precision(0.1).merge(Precision(0.2))


def test_buckets_need_scores_in_the_unit_interval():
    for score in [-0.1, 1.5, math.inf]:
        auc = AUC(max_points=2)
        auc.update([0.1, score, 0.3], [0, 1, 1])
        with pytest.raises(ValueError, match=r"max_points=2 predictions needs .* \[0"):
            auc.compute()
        other = AUC(max_points=2)
        other.update([0.5], [1])
        with pytest.raises(ValueError, match="Pass probabilities"):
            other.merge(auc).compute()
