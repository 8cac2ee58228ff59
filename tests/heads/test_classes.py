# SPDX-License-Identifier: Apache-2.0
"""Heads for classes: vocabularies, ranges, multi-label forms."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest import DNNEstimator, MultiHeadEstimator
from skest.heads import BinaryClassHead, MultiClassHead, MultiHead, MultiLabelHead

NAMES = ["cat", "dog", "emu"]


def objects(cells):
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


# Vocabularies


def test_names_become_ids():
    for container in [
        list,
        np.array,
        lambda y: np.array(y, dtype=object),
        lambda y: np.array(y, dtype="S"),
        lambda y: objects([name.encode() for name in y]),
        pd.Series,
        lambda y: pd.Series(y, dtype="category"),
        lambda y: pd.Series(y, dtype=object),
        pl.Series,
        lambda y: pd.DataFrame({"animal": y}),
    ]:
        head = MultiClassHead(3, label_vocabulary=NAMES)
        labels = head.encode_labels(container(["emu", "cat", "emu", "dog"]))
        assert labels.tolist() == [[2], [0], [2], [1]]
        assert labels.dtype == torch.int64


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(), min_size=3, max_size=6, unique=True), st.data())
def test_names_come_back(names, data):
    head = MultiClassHead(len(names), label_vocabulary=names)
    labels = data.draw(st.lists(st.sampled_from(names), min_size=1))
    logits = torch.eye(len(names))[head.encode_labels(objects(labels))[:, 0]]
    classes = head.predictions(logits, ["classes"])["classes"]
    assert classes.tolist() == [[name] for name in labels]


def test_a_label_outside_the_vocabulary():
    for label in ["gnu", None, ""]:
        head = MultiClassHead(3, label_vocabulary=NAMES)
        with pytest.raises(
            ValueError, match=rf"the label {label!r}, which is not in its"
        ):
            head.encode_labels(np.array(["cat", label, "dog"], dtype=object))


def test_a_vocabulary_needs_names():
    for labels in [[0, 1], [0.0], np.array(["cat", 1], dtype=object)]:
        head = MultiClassHead(3, label_vocabulary=NAMES)
        with pytest.raises(TypeError, match="so its labels must be strings"):
            head.encode_labels(labels)


def test_names_need_a_vocabulary():
    for head in [BinaryClassHead(), MultiClassHead(3)]:
        with pytest.raises(ValueError, match=r"'cat'\. Name the .* with 'label_vocab"):
            head.encode_labels(["cat"])


def test_wrong_vocabularies():
    for vocabulary, error, match in [
        ("ab", ValueError, "must be a list of strings; got 'ab'"),
        ({"a", "b"}, ValueError, "must be a list of strings"),
        (["a"], ValueError, "must name its 2 classes; got 1"),
        (["a", "a"], ValueError, "names a class twice"),
        ([0, 1], TypeError, "must hold strings; got 0"),
    ]:
        with pytest.raises(error, match=rf"'label_vocabulary' of .*Head {match}"):
            BinaryClassHead(label_vocabulary=vocabulary)
        with pytest.raises(error, match=rf"'label_vocabulary' of .*Head {match}"):
            MultiLabelHead(2, label_vocabulary=vocabulary)


# Ranges


def test_range_of_binary_labels():
    for label in [-1, 2, 1.01, np.nan]:
        with pytest.raises(ValueError, match=r"BinaryClassHead .* in \[0, 1\].*row 1"):
            BinaryClassHead().encode_labels([0, label])


def test_range_of_class_ids():
    for label in [-1, 3]:
        with pytest.raises(ValueError, match=rf"in \[0, 2\].* got {label} in row 2"):
            MultiClassHead(3).encode_labels([0, 1, label])


def test_one_hot_labels_are_refused():
    for head in [BinaryClassHead(), MultiClassHead(3)]:
        with pytest.raises(ValueError, match="rather than one column per class"):
            head.encode_labels(np.eye(3, dtype=int))


def test_number_of_classes():
    for n_classes, error, match in [
        (2, ValueError, "must be greater than 2; got 2. Use BinaryClassHead"),
        (1, ValueError, "at least 3; got 1"),
        (3.0, TypeError, "integer"),
    ]:
        with pytest.raises(error, match=f"'n_classes' of MultiClassHead .*{match}"):
            MultiClassHead(n_classes)


def test_thresholds():
    for thresholds in [[0.0], [0.5, 1.0], [-1], [np.nan]]:
        for make in (
            BinaryClassHead,
            lambda thresholds: MultiLabelHead(2, None, thresholds),
        ):
            with pytest.raises(ValueError, match=r"'thresholds' of .* between 0 and 1"):
                make(thresholds=thresholds)


# Several labels at once


def test_forms_of_multi_label():
    for labels in [
        np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
        np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=object),
        scipy.sparse.csr_matrix([[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
        pd.DataFrame([[1, 0, 1], [0, 0, 0], [0, 1, 0]], columns=NAMES),
        [[0, 2], [], [1]],
        objects([[0, 2], [], [1]]),
        objects([{0, 2}, set(), {1}]),
        pd.Series([[0, 2], [], [1]]),
        pl.Series([[0, 2], [], [1]]),
    ]:
        encoded = MultiLabelHead(3).encode_labels(labels)
        assert encoded.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
        assert encoded.dtype == torch.uint8


def test_lists_are_ids_in_a_multi_head_and_in_fit():
    head = MultiLabelHead(3, name="a")
    lists = [[0, 1], [1, 2]]
    for known in (lists, [*lists, None]):
        encoded = MultiHead([head]).encode_labels({"a": known})["a"]
        encoded = encoded["labels"] if len(known) == 3 else encoded
        assert encoded[:2].tolist() == [[1, 1, 0], [0, 1, 1]]
    model = DNNEstimator(head, (2,), max_iter=60, learning_rate=0.5, random_state=0)
    X = np.array([[-1.0], [1.0]] * 20, dtype=np.float32)
    assert model.fit(X, lists * 20).predict(X[:2]).tolist() == [[1, 1, 0], [0, 1, 1]]
    assert model.score(X, lists * 20) == 1.0
    several = [
        DNNEstimator(MultiHead([head]), (2,), max_iter=1),
        MultiHeadEstimator((2,), heads={"a": head}, max_iter=1),
    ]
    for model in several:
        assert model.fit(X, {"a": lists * 20}).predict(X[:2])["a"].shape == (2, 3)


def test_wrong_multi_labels():
    for labels, error, match in [
        (np.array([[0, 2, 0]]), ValueError, r"in \[0, 1\], 0 or 1 for .* 2 in row 0"),
        (np.array([[0, 1]]), ValueError, r"shape \(n, 3\); got \(1, 2\)"),
        ([[1, 0, 1], [0, 0, 0]], ValueError, r"got \[1, 0, 1\], .* is 0 or 1 for each"),
        (pd.Series([[0, 0, 1]]), ValueError, "3 classes. Give indicators as an array"),
        ([[0.5, 0.2, 1.0]], ValueError, "class ids; got 0.5. Give indicators .* array"),
        ([[0, 3], []], ValueError, r"in \[0, 2\], ids of classes; got 3"),
        ([["cat"], []], ValueError, "Name the classes with 'label_vocabulary'"),
        (objects([[0], None]), TypeError, "a NoneType among the lists of classes"),
        (objects([[0], "cat"]), TypeError, "a str among the lists of classes"),
    ]:
        with pytest.raises(error, match=f"MultiLabelHead .*{match}"):
            MultiLabelHead(3).encode_labels(labels)


def test_wrong_class_based_metrics():
    for vocabulary, class_, match in [
        (None, 3, r"must hold ids in \[0, 2\]; got 3"),
        (None, -1, r"must hold ids in \[0, 2\]; got -1"),
        (None, "cat", "holds the name 'cat', which needs 'label_vocabulary'"),
        (NAMES, "gnu", "holds 'gnu', which is not in 'label_vocabulary'"),
    ]:
        with pytest.raises(
            ValueError, match=f"'classes_for_class_based_metrics' .*{match}"
        ):
            MultiLabelHead(
                3, label_vocabulary=vocabulary, classes_for_class_based_metrics=[class_]
            )


def test_class_based_metrics_by_id():
    """With names: golden case multilabel/class_based_metrics_names."""
    head = MultiLabelHead(3, classes_for_class_based_metrics=[2, 0], name="zoo")
    names = list(head.metrics())
    assert names[-1] == "auc_precision_recall/class0/zoo"
    assert "auc/class2/zoo" in names and "auc/class1/zoo" not in names
    head = MultiLabelHead(
        3, label_vocabulary=NAMES, classes_for_class_based_metrics=("dog", 2)
    )
    assert {"auc/dog", "auc/emu"} < set(head.metrics())
