# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from skest.export.onnx.graph import STRING, Graph, concat, where

pytest.importorskip("onnxruntime")
from skest.export.onnx.graph import to_model
from tests.export._running import run

X = np.array([[1.0, -2.0, 3.0], [0.0, 0.5, -0.5]], dtype=np.float32)


def computed(function, x=X, ndim=2, dtype=None):
    """What ONNX Runtime makes of a function of one input."""
    graph = Graph("computed")
    value = graph.input("x", STRING if x.dtype == object else x.dtype, [None] * x.ndim)
    result = function(value)
    assert result.ndim == ndim
    graph.output("y", result, [None] * ndim)
    found = run(to_model(graph), {"x": x})["y"]
    assert found.dtype == (x.dtype if dtype is None else dtype)
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x - np.float32([1, 2, 3]),
        lambda x: x * x,
        lambda x: x / 3,
        lambda x: -x,
        lambda x: x @ np.ones((3, 2), np.float32),
    ],
)
def test_arithmetic_is_that_of_numpy(function):
    np.testing.assert_array_equal(computed(function), function(X))


@pytest.mark.parametrize(
    "function", [lambda x: x < 0, lambda x: x > 0, lambda x: x >= 0, lambda x: ~(x < 0)]
)
def test_comparisons_are_those_of_numpy(function):
    np.testing.assert_array_equal(computed(function, dtype=bool), function(X))


@pytest.mark.parametrize("n_rows", [0, 1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_reductions(axis, n_rows):
    x = X[:n_rows]
    found = computed(lambda v: v.sum(axis=axis), x, ndim=1)
    np.testing.assert_allclose(found, x.sum(axis=axis))
    if n_rows:
        found = computed(lambda v: v.max(axis=axis, keepdims=True), x)
        np.testing.assert_array_equal(found, x.max(axis=axis, keepdims=True))
    found = computed(lambda v: v.max(axis=axis, initial=0.25), x, ndim=1)
    np.testing.assert_array_equal(found, x.max(axis=axis, initial=0.25))


def test_the_greatest_of_nothing():
    nothing = np.empty((3, 0), np.float32)
    found = computed(lambda v: v.max(axis=1, initial=-2), nothing, ndim=1)
    assert found.tolist() == [-2, -2, -2]


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_shapes(n_rows):
    x = X[:n_rows]
    cube = x.reshape(n_rows, 3, 1)
    assert computed(lambda v: v.unsqueeze(-1), x, 3).shape == cube.shape
    assert computed(lambda v: v.squeeze(-1), cube).shape == x.shape
    assert computed(lambda v: v.flatten(), cube).shape == x.shape
    assert computed(lambda v: v.reshape(0, 0, 1, 1), x, 4).shape == (n_rows, 3, 1, 1)
    assert computed(lambda v: v.take([0, 2], axis=-1), x).shape == (n_rows, 2)
    repeated = computed(lambda v: v.constant([[7.0]]).expanded(v.length(0), 2), x)
    assert repeated.shape == (n_rows, 2)
    beside = computed(lambda v: concat([v, v.take([1], axis=1)], axis=-1), x)
    np.testing.assert_array_equal(beside, np.hstack([x, x[:, 1:2]]))
    if n_rows:
        found = computed(lambda v: v.without_last(), x)
        np.testing.assert_array_equal(found, x[:-1])


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_what_is_added_at_places(n_rows):
    x = X[:n_rows]
    found = computed(lambda v: v.add_at((v < 0).cast(np.int64), v), x)
    expected = x.copy()
    for row, given in zip(expected, x, strict=True):
        np.add.at(row, (given < 0).astype(int), given)
    np.testing.assert_allclose(found, expected)
    positive = computed(lambda v: v.at((v > 0).nonzero()), x, ndim=1)
    np.testing.assert_array_equal(positive, x[x > 0])

    def sums_of_rows(v):
        places = (v > 0).nonzero()
        rows = v.constant(np.eye(3)).take(places.take(1, axis=1))
        none = v.constant(0).expanded(v.length(0), 3)
        return none.add_rows(places.take([0], axis=1), rows)

    np.testing.assert_array_equal(computed(sums_of_rows, x), x > 0)


def test_choice():
    found = computed(lambda v: where(v.is_nan() | (v < 0), 0, v))
    np.testing.assert_array_equal(found, np.maximum(X, 0))
    found = computed(lambda v: where((v < 0) & ~v.is_nan(), v, 9))
    np.testing.assert_array_equal(found, np.where(X < 0, X, 9))


def test_equal_things_are_there_once():
    graph = Graph("g")
    x = graph.input("x", np.float32, (None, 2))
    assert (x + 1).name == (x + 1.0).name
    assert (x + 1).name != (x + 2).name
    assert graph.constant(np.array(["a"], object)) is graph.constant(
        np.array(["a"], object)
    )
    # Equal numbers of another type or shape are something else.
    ones = [np.float32(1), np.float64(1), np.ones(1, np.float32), np.int32(1)]
    assert len({graph.constant(one).name for one in ones}) == 4
    table = np.zeros((2, 2), np.float32)
    assert graph.weight("t", table) is graph.weight("t", table)
    assert graph.constant(table).name != "t"


def test_names_are_unique_and_say_where():
    graph = Graph("g")
    x = graph.input("a/Add", np.float32, (None, 1))
    with graph.scope("a"):
        with graph.scope("b"):
            inside = x + 1
        beside = x + 2
    assert (inside.name, beside.name) == ("a/b/Add", "a/Add_1")
    assert graph.output("a/Add", beside, (None, 1)) == "a/Add_2"
    names = [node.name for node in graph.nodes]
    assert names == ["a/Add_1", "a/Add_2"]  # what no output needs is left out


def test_a_tensor_has_no_truth_value():
    x = Graph("g").input("x", np.float32, (None,))
    with pytest.raises(TypeError, match="has no truth value"):
        bool(x)


def test_only_domains_that_are_used_are_named():
    graph = Graph("g")
    x = graph.input("x", np.float32, (None,))
    graph.output("y", x, (None,))
    model = to_model(graph, {"key": "value"})
    assert [opset.domain for opset in model.opset_import] == [""]
    assert [(p.key, p.value) for p in model.metadata_props] == [("key", "value")]


def test_onnx_is_needed_only_for_the_model(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    graph = Graph("g")
    graph.output("y", graph.input("x", np.float32, (None,)), (None,))
    with pytest.raises(ImportError, match="pip install onnx onnxruntime"):
        to_model(graph)
