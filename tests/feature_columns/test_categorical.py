# SPDX-License-Identifier: Apache-2.0

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from skest import feature_columns as fc
from skest.feature_columns import categorical as hashing
from skest.feature_columns.crossed import fingerprint_cat64


def ids(column, values):
    return column.encode({"c": values})["c_ids"].tolist()


def test_parameters_refused_of_identity():
    for options, error, message in [
        ({"num_buckets": 0}, ValueError, "'num_buckets' .* at least 1; got 0"),
        ({"num_buckets": 2.0}, TypeError, "'num_buckets' .* at least 1; got 2.0"),
        ({"default_value": -1}, ValueError, "'default_value' .* from 0 to 2; got -1"),
        ({"key": None}, TypeError, "'key' of identity column None"),
    ]:
        with pytest.raises(error, match=message):
            fc.categorical_column_with_identity(
                **{"key": "c", "num_buckets": 3, **options}
            )


def test_dtype_is_enforced():
    for dtype, value in [("string", 1), ("int64", "1")]:
        column = fc.categorical_column_with_hash_bucket("c", 10, dtype)
        with pytest.raises(
            ValueError, match=f"of type '{dtype}', by 'dtype' of hash buc"
        ):
            ids(column, [value])


def test_parameters_refused_of_hash_bucket():
    for options, message in [
        ({"hash_bucket_size": 0}, "'hash_bucket_size' .* from 1 to 4294967296; got 0"),
        ({"hash_bucket_size": 2**33}, "from 1 to 4294967296; got"),
        ({"dtype": "bool"}, "'dtype' .* must be one of None"),
    ]:
        with pytest.raises(ValueError, match=message):
            fc.categorical_column_with_hash_bucket(
                **{"key": "c", "hash_bucket_size": 10, **options}
            )


def test_identity():
    column = fc.categorical_column_with_identity("c", 3)
    found = column.inverse(np.array([[0, 2], [-1, 1]]))
    assert found.dtype == object
    assert found.tolist() == [[0, 2], [None, 1]]


def test_hashes_have_none():
    crossed = fc.crossed_column(["a", "b"], 9)
    for column in (fc.categorical_column_with_hash_bucket("c", 9), crossed):
        with pytest.raises(ValueError, match="hashes its values, .* may share an id"):
            column.inverse([3])


def test_refused_of_inverse():
    for ids, error, message in [
        ([0, 3], ValueError, "Ids of column 'c' must be from -1 to 2; got 3"),
        ([-2], ValueError, "must be from -1 to 2; got -2"),
        ([0.0], TypeError, "'ids' must be integers; got dtype float64"),
        (["a"], TypeError, "'ids' must be integers; got dtype <U1"),
    ]:
        with pytest.raises(error, match=message):
            fc.categorical_column_with_identity("c", 3).inverse(ids)


def test_refused_of_delimiter():
    for options, error, message in [
        ({"delimiter": ""}, ValueError, "'delimiter' .* must not be an empty string"),
        ({"delimiter": 7}, TypeError, "'delimiter' .* a string or None; got 7"),
        ({"delimiter": "|", "dtype": "int64"}, ValueError, "'delimiter' .* 'int64'"),
    ]:
        with pytest.raises(error, match=message):
            fc.categorical_column_with_hash_bucket("c", 9, **options)
        with pytest.raises(error, match=message):
            fc.categorical_column_with_vocabulary_list("c", **options)


WORD = st.integers(0, 2**64 - 1)


def strings(*values):
    return np.array(values, dtype=object)


def fingerprint_in_python(a, b):
    k, mask = 0xC6A4A7935BD1E995, 2**64 - 1

    def shift_mix(value):
        return value ^ (value >> 47)

    result = a ^ k
    result ^= shift_mix(b * k & mask) * k & mask
    result = result * k & mask
    result = shift_mix(result) * k & mask
    return shift_mix(result)


@given(WORD, WORD)
def test_fingerprint_cat64(a, b):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fingerprint_cat64(np.array([a], "u8"), np.array([b], "u8"))
    assert int(result[0]) == fingerprint_in_python(a, b)


@given(st.lists(st.text(), max_size=5), st.integers(1, 2**32))
def test_buckets_of_strings(values, n_buckets):
    expected = [murmurhash3_32(v, seed=0, positive=True) % n_buckets for v in values]
    assert hashing.bucket_ids(strings(*values), n_buckets).tolist() == expected


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_and_their_decimals_share_a_bucket(value):
    of_int = hashing.bucket_ids(np.array([value], dtype=np.int64), 1000)
    assert of_int == hashing.bucket_ids(strings(str(value)), 1000)
