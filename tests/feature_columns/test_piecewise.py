# SPDX-License-Identifier: Apache-2.0
"""Piecewise-linear columns: learned edges, codes, and the tables of networks."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    LinearFeatures,
    bucketized_column,
    numeric_column,
    piecewise_linear_column,
)

NAN = np.nan
rng = np.random.default_rng(0)


def ple(boundaries="distinct:48", **options):
    return piecewise_linear_column(numeric_column("x"), boundaries, **options)


def edges(boundaries, values, *fit, **options):
    column = ple(boundaries, **options).fit({"x": np.asarray(values)}, *fit)
    return column.edges_[0].tolist()


def expected_code(x, edges, encoding):
    """Follow the papers, number by number."""
    code = []
    for value in np.atleast_1d(x).clip(edges[0], edges[-1]):
        if np.isnan(value):
            code.append([0.0] * (len(edges) - (encoding == "ple")))
        elif encoding == "ple":  # arXiv:2203.05556, equation 1
            pairs = itertools.pairwise(edges)
            code.append([np.clip((value - a) / (b - a), 0, 1) for a, b in pairs])
        elif encoding == "hat":  # each edge by the interpolation of its unit vector
            code.append([np.interp(value, edges, unit) for unit in np.eye(len(edges))])
        else:
            last = max(i for i, edge in enumerate(edges) if edge <= value)
            code.append(np.eye(len(edges))[last].tolist())
    return np.array(code)


VALUES = [-9.0, 0.0, 0.5, 1.0, 2.9, 3.0, 7.0, 10.0, 99.0, NAN]
EDGES = [0.0, 1.0, 3.0, 10.0]
ENCODINGS = pytest.mark.parametrize("encoding", ["ple", "hat", "onehot"])


@ENCODINGS
def test_codes_are_those_of_the_papers(encoding):
    column = ple(EDGES, encoding=encoding)
    X = {"x": np.array(VALUES)}
    expected = expected_code(VALUES, EDGES, encoding)
    assert_allclose(column.transform(X), expected, atol=1e-7)
    assert column.get_feature_names_out()[-1] == f"x_{encoding}_{len(expected[0]) - 1}"
    plain = ple(EDGES, encoding=encoding, dimension=None)
    dense = DenseFeatures([plain])
    assert dense.out_features == plain.size == len(expected[0])
    assert_allclose(dense(FeatureColumns([plain]).encode(X)), expected, atol=1e-6)


@ENCODINGS
def test_tables_are_multiplied_with_the_code(encoding):
    """Of elements with edges of their own, in columns that are computed together."""
    X = pd.DataFrame({"a": rng.normal(size=400), "b": rng.integers(0, 9, 400)})
    X.loc[::7, "a"] = NAN
    X["c"] = [[u, v] for u, v in rng.exponential(size=(400, 2))]
    sources = [numeric_column("a"), numeric_column("b"), numeric_column("c", 2)]
    columns = FeatureColumns(
        [
            numeric_column("b"),
            *(piecewise_linear_column(s, "distinct:9", 3, encoding) for s in sources),
        ]
    ).fit(X)
    encoded = columns.encode(X)
    assert {encoded[f"a_{encoding}_{e}"].dtype for e in ("ids", "weights")} == {
        torch.int64,
        torch.float32,
    }
    dense, linear = DenseFeatures(columns), LinearFeatures(columns, units=2)
    assert not dense(encoded)[:, :3].any()  # tables start at zero
    for parameter in [*dense.parameters(), *linear.parameters()]:
        torch.nn.init.normal_(parameter)
    wide, blocks = linear.bias.detach().numpy(), {}
    for name, column in columns.columns_:
        code = column.transform(X)
        weights = linear.column_parameters()[column.name].detach().numpy()
        wide = wide + code @ weights
        blocks[column.name] = code
        if name != "b":
            table = dense.get_parameter(f"{column.name}_weights").detach().numpy()
            ends = np.cumsum(column.code_sizes)[:-1]
            parts = zip(np.hsplit(code, ends), np.vsplit(table, ends), strict=True)
            blocks[column.name] = np.hstack([part @ rows for part, rows in parts])
    deep = np.hstack([blocks[name] for name in sorted(blocks)])
    assert_allclose(dense(encoded).detach(), deep, atol=1e-5)
    assert_allclose(linear(encoded).detach(), wide, atol=1e-4)


def test_a_table_gets_gradients_of_what_was_seen_only():
    columns = FeatureColumns([ple([0, 1, 2, 3], dimension=2)])
    dense = DenseFeatures(columns)
    dense(columns.encode({"x": [1.25, NAN]})).sum().backward()
    expected = [[1.0, 1.0], [0.25, 0.25], [0.0, 0.0]]
    assert dense.get_parameter("x_ple_weights").grad.tolist() == expected


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=8, unique=True),
    st.lists(st.floats(-1e7, 1e7, width=32), min_size=1, max_size=8),
)
def test_codes_belong_together(ends, values):
    ends = sorted(ends)
    X = {"x": np.array(values)}
    onehot = ple(ends, encoding="onehot").transform(X)
    hat = ple(ends, encoding="hat").transform(X)
    column = ple(ends)
    code = column.transform(X)
    assert_allclose(hat.sum(axis=1), 1, atol=1e-6)
    assert_array_equal(onehot.sum(axis=1), 1)
    # The bins below are full, which is what the one-hot code says if it is summed.
    full = onehot[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
    fraction = column.encode(X)["x_ple_weights"]
    inside = onehot[:, :-1] * fraction
    assert_allclose(code, full + inside, atol=1e-6)
    assert_allclose(code, hat[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:], atol=1e-6)


def test_learned_edges():
    for values, boundaries, expected in [
        (np.repeat([0.0, 5, 9], [900, 30, 70]), "distinct:48", [0, 5, 9]),
        (np.repeat([0.0, 5, 9], [900, 30, 70]), "quantiles:48", [0, 5, 9]),
        (np.repeat([0.0, 5, 9], [960, 30, 10]), "quantiles:4", [0, 9]),
        (np.arange(100.0), "quantiles:4", [0, 24, 49, 74, 99]),
        (np.arange(1000.0) ** 2, "distinct:3", [0, 500**2, 999**2]),
        # Bins of fewer than 3 rows are merged, a value with 3 keeps its edge.
        (np.repeat([0.0, 1, 2, 3, 9], [5, 1, 1, 7, 3]), "distinct:9", [0, 3, 9]),
        (np.repeat([0.0, 1, 2, 3], [1, 1, 1, 1]), "distinct:9", [0, 3]),
        (np.repeat([0.0, 1, 2, 3], [2, 5, 5, 2]), "distinct:9", [1, 2, 3]),
        # As are bins that are too narrow.
        (np.repeat([0.0, 1e-5, 50, 100], 50), "distinct:9", [0, 50, 100]),
        # One value, two values, gaps.
        ([4.0] * 50, "distinct:9", [4, 5]),
        ([4.0, 7.0] * 50, "distinct:9", [4, 7]),
        ([4.0, NAN, 7.0] * 50, "quantiles:9", [4, 7]),
    ]:
        assert edges(boundaries, values) == expected


def test_edges_of_a_tree_are_where_the_target_changes():
    x = rng.permutation(1000) / 10
    classes = np.array(["low", "high"])[(x > 20).astype(int)]
    for target in (classes, (x > 20) * 2.5, np.stack([x > 20, x < 20.1], axis=1)):
        found = edges("tree:2", x, target)
        assert_allclose(found, [0, 20.05, 99.9], rtol=1e-6)
    column = bucketized_column(numeric_column("x"), "tree:2").fit({"x": x}, classes)
    assert_allclose(column.boundaries_, [20.05], rtol=1e-6)
    with pytest.raises(ValueError, match="needs one target y to learn from; got none"):
        ple("tree:4").fit({"x": x})
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ple("tree:4").fit({"x": x}, classes[1:])


@pytest.mark.parametrize("boundaries", ["distinct:9", "quantiles:9", "tree:9"])
def test_a_weight_of_two_counts_like_two_rows(boundaries, rng):
    x = np.append(rng.exponential(size=300).round(1), [50, 51])
    y = np.append(np.sin(x[:-2]) > 0.5, [True, False])
    weight = np.append(rng.integers(1, 4, 300), [0, 0])
    repeated = np.repeat(np.arange(302), weight)
    expected = edges(boundaries, x[repeated], y[repeated])
    assert edges(boundaries, x, y, weight) == expected
    assert max(expected) < 50
    assert len(expected) > 3
    # Weights that are shares keep what their distribution has.
    few = edges(boundaries, x, y, weight / weight.sum())
    assert 3 < len(few) <= len(expected)


def test_missing_numbers_are_filled_if_the_source_does():
    source = numeric_column("x", default_value="mean")
    column = piecewise_linear_column(source, [0, 2, 4]).fit({"x": [1.0, 3.0]})
    assert column.transform({"x": [NAN]}).tolist() == [[1, 0]]
    assert column.encode({"x": [NAN]})["x_ple_ids"].tolist() == [[1]]
    assert ple([0, 2, 4]).encode({"x": [NAN]})["x_ple_ids"].tolist() == [[-1]]


def test_parameters_refused():
    for source, options, error, message in [
        (ple([0, 1]), {}, TypeError, "must come from numeric_column"),
        (numeric_column("x"), {"boundaries": [1]}, ValueError, "must be 2 numbers or"),
        (numeric_column("x"), {"boundaries": [1, 1]}, ValueError, "greater than the"),
        (numeric_column("x"), {"boundaries": "trees:3"}, ValueError, "'tree:N'"),
        (
            numeric_column("x"),
            {"boundaries": [1, 1 + 1e-9]},
            ValueError,
            "different numbers, not too far apart, in float32",
        ),
        (numeric_column("x"), {"dimension": 0}, ValueError, "'dimension'"),
        (numeric_column("x"), {"encoding": "spline"}, ValueError, "'encoding'"),
    ]:
        with pytest.raises(error, match=message):
            piecewise_linear_column(source, **options)


def test_numbers_refused():
    for values, message in [
        ([NAN, NAN], "Column 'x' has no numbers to learn boundaries from"),
        ([1.0, np.inf], r"Column 'x' holds inf; infinity \(inf\) is never allowed"),
        ([-3e38, 3e38], "too far apart to learn boundaries from"),
    ]:
        with pytest.raises(ValueError, match=message):
            ple().fit({"x": values})
