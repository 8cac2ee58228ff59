# SPDX-License-Identifier: Apache-2.0
"""The search in an exported graph finds what NumPy finds."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from skest.export.onnx.columns import n_reached
from skest.export.onnx.graph import Graph, to_model
from tests.export._running import run


def searched(ends, values):
    """What a graph finds, and the graph."""
    graph = Graph("search")
    shape = (None,) * values.ndim
    found = n_reached(graph.input("x", values.dtype, shape), ends)
    graph.output("found", found, shape)
    return run(to_model(graph), {"x": values})["found"], graph


def ends_of(n_ends, dtype):
    rng = np.random.default_rng(n_ends)
    if np.dtype(dtype).kind == "i":
        limits = np.iinfo(dtype)
        return np.sort(rng.integers(limits.min, limits.max, n_ends, dtype, True))
    return np.sort(rng.normal(size=n_ends)).astype(dtype)


def around(ends):
    """The ends, their neighbours and what is far from them."""
    if ends.dtype.kind == "i":
        limits = np.iinfo(ends.dtype)
        beside = [ends, ends - (ends > limits.min), ends + (ends < limits.max)]
        far = np.array([limits.min, -1, 0, 1, limits.max], ends.dtype)
    else:
        beside = [np.nextafter(ends, s * ends.dtype.type(np.inf)) for s in (-1, 1)]
        beside += [ends]
        tiny = np.finfo(ends.dtype).smallest_subnormal
        far = [-np.inf, np.inf, np.nan, 0.0, -0.0, tiny, -tiny]
        far = np.array(far, ends.dtype)
    return np.concatenate([*beside, far])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("n_ends", [0, 1, 31, 32, 1023, 1024, 5000])
def test_as_numpy(n_ends, dtype):
    ends = np.repeat(ends_of(n_ends, dtype), 1 + n_ends % 2)
    values = around(ends)
    found, _ = searched(ends, values)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.searchsorted(ends, values, "right"))


@pytest.mark.parametrize("shape", [(0, 1), (0, 3), (2, 0, 1), (2, 7, 3)])
def test_any_shape(shape):
    ends = ends_of(40, "float32")
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found, _ = searched(ends, values)
    np.testing.assert_array_equal(found, np.searchsorted(ends, values, "right"))


@pytest.mark.parametrize(
    ("n_ends", "n_compared"),
    [(0, 0), (9, 9), (31, 31), (32, 5), (1023, 31), (5000, 17)],
)
def test_a_number_is_compared_with_few_at_once(n_ends, n_compared):
    _, graph = searched(ends_of(n_ends, "float32"), np.zeros((2, 1), np.float32))
    largest = max(
        (a.shape[-1] for a in graph.initializers.values() if a.ndim), default=0
    )
    assert largest <= max(n_compared, 1)
    assert sum(node.op == "Less" for node in graph.nodes) <= 3
