# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest.feature_columns import (
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
    categorical_column_with_vocabulary_list,
)

TEXT = st.text(max_size=4)
HUGE = st.integers(-(2**63), 2**63 - 1)


def ids(column: Any, values: Any) -> list[Any]:
    return column.encode({"c": values})["c_ids"].tolist()


class TestIdentity:
    def test_negative_integers_have_no_id(self) -> None:
        column = categorical_column_with_identity("c", 3)
        assert ids(column, [0, 2, -1, -7]) == [[0], [2], [-1], [-1]]

    def test_default_value_is_not_for_missing_cells(self) -> None:
        column = categorical_column_with_identity("c", 3, default_value=1)
        values = pd.Series([0, 3, -7, -1, None], dtype="Int64")
        assert ids(column, values) == [[0], [1], [1], [-1], [-1]]

    def test_too_large(self) -> None:
        column = categorical_column_with_identity("c", 3)
        with pytest.raises(ValueError, match=r"'c' holds 3, but .* num_buckets=3"):
            ids(column, [0, 3])

    def test_categories_that_no_cell_has_are_not_judged(self) -> None:
        values = pd.Series(pd.Categorical([1, 0], categories=[0, 1, 99]))
        assert ids(categorical_column_with_identity("c", 3), values) == [[1], [0]]

    def test_strings_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"'c' must hold integers .* 'a'"):
            ids(categorical_column_with_identity("c", 3), ["a"])

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"num_buckets": 0}, ValueError, "'num_buckets' .* at least 1; got 0"),
            ({"num_buckets": 2.0}, TypeError, "'num_buckets' .* at least 1; got 2.0"),
            ({"num_buckets": True}, TypeError, "'num_buckets' .*; got True"),
            ({"default_value": 3}, ValueError, "less than 'num_buckets', 3; got 3"),
            (
                {"default_value": -1},
                ValueError,
                "'default_value' .* at least 0; got -1",
            ),
            ({"key": None}, TypeError, "'key' of identity column None"),
        ],
    )
    def test_parameters_refused(
        self, options: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            categorical_column_with_identity(
                **{"key": "c", "num_buckets": 3, **options}
            )


class TestHashBucket:
    def test_missing_cells_have_no_id(self) -> None:
        column = categorical_column_with_hash_bucket("c", 10)
        assert ids(column, ["", None]) == [[-1], [-1]]
        assert ids(column, [-1]) == [[-1]]

    @given(st.lists(TEXT | st.none(), min_size=2), st.data())
    def test_chunks_are_encoded_alike(self, values: list[Any], data: Any) -> None:
        cut = data.draw(st.integers(1, len(values) - 1))
        column = categorical_column_with_hash_bucket("c", 97)
        whole, first, second = (
            np.array(v, dtype=object) for v in (values, values[:cut], values[cut:])
        )
        assert ids(column, first) + ids(column, second) == ids(column, whole)

    @given(HUGE.filter(lambda v: v != -1))
    def test_integers_hash_as_their_decimals(self, value: int) -> None:
        column = categorical_column_with_hash_bucket("c", 1000)
        assert ids(column, [value]) == ids(column, [str(value)])

    @pytest.mark.parametrize(("dtype", "value"), [("string", 1), ("int64", "1")])
    def test_dtype_is_enforced(self, dtype: str, value: Any) -> None:
        column = categorical_column_with_hash_bucket("c", 10, dtype)
        with pytest.raises(
            ValueError, match=f"of type '{dtype}', by 'dtype' of hash buc"
        ):
            ids(column, [value])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"hash_bucket_size": 0}, "'hash_bucket_size' .* at least 1; got 0"),
            ({"hash_bucket_size": 2**33}, "must be at most 4294967296"),
            ({"dtype": "bool"}, "'dtype' .* must be one of None"),
        ],
    )
    def test_parameters_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            categorical_column_with_hash_bucket(
                **{"key": "c", "hash_bucket_size": 10, **options}
            )


@pytest.mark.parametrize(
    "column",
    [
        categorical_column_with_identity("c", 9),
        categorical_column_with_vocabulary_list("c", [3, 4]),
        categorical_column_with_hash_bucket("c", 9),
    ],
    ids=lambda column: type(column).__name__,
)
def test_cells_with_several_values(column: Any) -> None:
    several = np.array([[3, 4, -1], [-1, 3, 3]])
    one = column.encode({"c": several.ravel()})["c_ids"]
    encoded = column.encode({"c": several})["c_ids"]
    assert encoded.dtype == np.int64
    assert encoded.tolist() == one.reshape(2, 3).tolist()
    assert encoded[0, 2] == encoded[1, 0] == -1
