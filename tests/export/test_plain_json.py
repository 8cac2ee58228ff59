# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from skest.exceptions import ExportError
from skest.export.plain_json import from_json, to_json

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats()
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text("abc"), inner)
    ),
    max_leaves=10,
)


def through_json(value):
    return from_json(json.loads(json.dumps(to_json(value, "it"), allow_nan=False)))


@given(NESTS)
def test_nests_come_back(value):
    assert repr(through_json(value)) == repr(value)


@given(st_numpy.arrays(st.sampled_from(["<f8", "<i4", "?", "<U3"]), (2, 3)))
def test_arrays_come_back(array):
    found = through_json(array)
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
    (one,) = through_json((array[0, 0],))
    assert type(one) is type(array[0, 0])


def test_objects_come_back():
    array = np.array([["a", None], [1, (2, 3)]], object)
    found = through_json(array)
    assert found.dtype == object and found.tolist() == array.tolist()
    assert through_json({"a", "b"}) == {"a", "b"}


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"a": [1, abs]}, r"it.a\[1\] is a builtin_function_or_method, which JSON"),
        ((1, {"b": 1j}), r"it\[1\].b is a complex"),
    ],
)
def test_what_is_no_data_is_named(value, match):
    with pytest.raises(ExportError, match=match):
        to_json(value, "it")
