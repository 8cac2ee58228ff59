# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from skest.feature_columns import bucketized_column, numeric_column

NAN = np.nan


def ids(column, values):
    return column.encode({"x": np.asarray(values)})["x_bucketized_ids"].tolist()


def test_boundaries_and_values_are_cast_to_the_dtype_of_the_source():
    value = [float(np.float32(0.7))]  # a little less than 0.7
    assert ids(bucketized_column(numeric_column("x"), [0.7]), value) == [[1]]
    exact = numeric_column("x", dtype="float64")
    assert ids(bucketized_column(exact, [0.7]), value) == [[0]]


def test_ids_of_several_elements():
    column = bucketized_column(numeric_column("x", shape=2), [0])
    assert ids(column, [[-1, -1], [1, NAN]]) == [[0, 2], [1, 3]]
    assert column.transform({"x": [[1, NAN]]}).tolist() == [[0, 1, 0, 1]]
    assert column.get_feature_names_out()[-1] == "x_bucketized_1_1"


def test_quantiles_are_learned():
    column = bucketized_column(numeric_column("x"), "quantiles:4")
    with pytest.raises(NotFittedError, match="has not learned its boundaries yet"):
        column.num_buckets  # noqa: B018
    column.fit({"x": np.arange(100.0)})
    assert column.boundaries_.tolist() == [24, 49, 74]
    assert column.boundaries_.dtype == np.float32
    assert column.num_buckets == 4


def test_quantiles_of_numbers_that_repeat():
    for values, expected in [
        ([1, 2, 2, 2], [2]),  # equal quantiles count once
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7], [7]),  # nothing is below 0
        ([0, 0, 0, 3, 3, 5], [3, 5]),
        ([4, 4], [4]),
    ]:
        column = bucketized_column(numeric_column("x"), "quantiles:10")
        assert column.fit({"x": np.array(values)}).boundaries_.tolist() == expected


def test_parameters_refused():
    for source, boundaries, error, message in [
        ("x", [0], TypeError, "must come from numeric_column; got 'x'"),
        (numeric_column("x"), [0, 1e300], ValueError, "its source, float32; .* 1e.300"),
        (
            numeric_column("x", dtype="int32"),
            [-(2.0**40), 0],
            ValueError,
            "in the range of the dtype of its source, int32; got -1099511627776",
        ),
        (numeric_column("x"), "quantiles:1", ValueError, "'quantiles:N' with N"),
        (
            numeric_column("x", default_value=0, indicate_missing=True),
            [0],
            ValueError,
            "must have indicate_missing=False",
        ),
    ]:
        with pytest.raises(error, match=message):
            bucketized_column(source, boundaries)


def test_boundaries_between_integers():
    column = bucketized_column(numeric_column("x", dtype="int64"), [-0.5, 0.5, 2])
    assert ids(column, [-1, 0, 1, 2]) == [[0], [1], [2], [3]]
    large = bucketized_column(numeric_column("x", dtype="int64"), [2**53 + 1])
    assert ids(large, np.array([2**53, 2**53 + 1])) == [[0], [1]]
