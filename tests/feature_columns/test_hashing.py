# SPDX-License-Identifier: Apache-2.0
import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from skest.feature_columns import categorical as hashing
from skest.feature_columns.crossed import fingerprint_cat64

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
