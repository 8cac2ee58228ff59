# SPDX-License-Identifier: Apache-2.0
"""Hashes in ONNX Runtime are those of scikit-learn, of TensorFlow and of NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from skest._hashes import fingerprint_cat64 as fingerprint_cat64_numpy
from skest.export.onnx.columns import (
    bucket_ids,
    fingerprint_cat64,
    int64_keys,
    unsigned_remainder,
)
from skest.export.onnx.graph import STRING, Graph
from skest.feature_columns import hashing

pytest.importorskip("onnxruntime")
from skest.export.onnx.graph import to_model
from tests.export._running import session

# MurmurHash3_x86_32 with the seed 0, of its reference implementation.
MURMUR = {"a": 1009084850, "b": 2514386435, "hello": 613153351}
# FingerprintCat64 of 1 and 2, of TensorFlow.
CAT = (1, 2, 14454907135238785252)


def run_of(function, *dtypes):
    """A function of arrays, of a function of tensors."""
    graph = Graph("hash")
    inputs = [graph.input(f"x{i}", d, (None,)) for i, d in enumerate(dtypes)]
    graph.output("y", function(*inputs), (None,))
    loaded = session(to_model(graph))

    def run(*arrays):
        given = {f"x{i}": array for i, array in enumerate(arrays)}
        return loaded.run(None, given)[0]

    return run


BUCKETS = {k: run_of(lambda x, k=k: bucket_ids(x, k), STRING) for k in (7, 2**32)}
INTEGER_BUCKETS = run_of(lambda x: bucket_ids(x, 97), np.int64)
KEYS = run_of(int64_keys, STRING)
CHAIN = run_of(fingerprint_cat64, np.int64, np.int64)
REMAINDERS = {
    k: run_of(lambda x, k=k: unsigned_remainder(x, k), np.int64) for k in (3, 2**63)
}

texts = st_numpy.arrays(object, st.integers(1, 20), elements=st.text())
integers = st_numpy.arrays(np.int64, 5)


def test_known_hashes():
    found = BUCKETS[2**32](np.array(list(MURMUR), dtype=object))
    assert found.tolist() == list(MURMUR.values())
    a, b, expected = CAT
    assert CHAIN(np.array([a]), np.array([b])).view(np.uint64).tolist() == [expected]


@settings(deadline=None)
@given(texts)
def test_strings(values):
    for n_buckets, run in BUCKETS.items():
        expected = hashing.bucket_ids(values, n_buckets)
        np.testing.assert_array_equal(run(values), expected)
    keys = KEYS(values).view(np.uint64)
    np.testing.assert_array_equal(keys, hashing.int64_keys(values))


@settings(deadline=None)
@given(integers, integers)
def test_integers(a, b):
    np.testing.assert_array_equal(INTEGER_BUCKETS(a), hashing.bucket_ids(a, 97))
    expected = fingerprint_cat64_numpy(a.view(np.uint64), b.view(np.uint64))
    np.testing.assert_array_equal(CHAIN(a, b).view(np.uint64), expected)
    for divisor, run in REMAINDERS.items():
        remainder = a.view(np.uint64) % np.uint64(divisor)
        np.testing.assert_array_equal(run(a), remainder.astype(np.int64))
