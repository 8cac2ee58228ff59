# SPDX-License-Identifier: Apache-2.0
import json
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from skest.exceptions import ExportError
from skest.export import plain_json
from skest.export.plain_json import KIND, descriptions_in, from_json, to_json, to_text

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


def text_of(value):
    return json.dumps(to_json(value, "it"), allow_nan=False, ensure_ascii=False)


@given(NESTS)
def test_text_is_that_of_json(value):
    assert to_text(value, "it") == (text_of(value), [])


class Word(str):
    pass


class Number(int):
    pass


# Whatever parameters may hold, in containers of one kind of items and of several.
ANY_TEXT = st.text(st.characters(codec=None)) | st.sampled_from(
    ['"', "\\", "\ud800", KIND]
)
ANY_LEAF = (
    LEAVES
    | ANY_TEXT
    | st.builds(Word, ANY_TEXT)
    | st.builds(Number, st.integers())
    | st.builds(np.float32, st.floats(width=32))
)
FLAGS = st.booleans() | st.integers(0, 1)
KEYS = st.builds(Word, ANY_TEXT) | st.none() | st.floats() | st.tuples() | FLAGS
ANY_NEST = st.recursive(
    ANY_LEAF,
    lambda inner: (
        st.lists(ANY_TEXT | FLAGS)
        | st.lists(ANY_TEXT)
        | st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(ANY_TEXT, FLAGS)
        | st.dictionaries(ANY_TEXT | KEYS, FLAGS)
        | st.dictionaries(ANY_TEXT | KEYS, inner)
    ),
    max_leaves=20,
)


def text_or_error(write, value):
    try:
        return write(value)
    except (ExportError, TypeError, ValueError) as error:
        return type(error), str(error)


@settings(deadline=None)
@given(ANY_NEST)
def test_any_text_is_that_of_json_or_the_same_error(value):
    with mock.patch.object(plain_json, "_LONG", 2):  # as if all lists were long
        found = text_or_error(lambda v: to_text(v, "it")[0], value)
    assert found == text_or_error(text_of, value)


WORDS = [
    f"{i} {c}" for i in range(20) for c in ("", '"', "\\", "\n", "\x00", "ü", "\ud800")
]
# What stood for a text once.
PLACE = {KIND: "text", "at": 0}


@pytest.mark.parametrize(
    "value",
    [
        WORDS,
        [WORDS, list(WORDS), WORDS[::-1], (WORDS,)],
        {"places": {word: i for i, word in enumerate(WORDS)}, "words": WORDS},
        {word: i for i, word in enumerate(WORDS)} | {KIND: 0},
        dict.fromkeys(WORDS, True),
        dict.fromkeys(WORDS, 1) | {"last": True},
        dict.fromkeys(range(200), 1),
        [[0, 1] * 100, [False, True] * 100, [0.0, 1.0] * 100],
        [*WORDS, None],
        [WORDS, PLACE, [json.dumps(PLACE)] * 200],
    ],
)
def test_text_of_long_lists(value):
    assert to_text(value, "it")[0] == text_of(value)


def test_descriptions_in_a_text():
    inner = {KIND: "path", "path": "/tmp"}
    value = {KIND: "dict", "items": [(inner, {inner["path"]: [inner]}), WORDS]}
    found = to_text(value, "it")[1]
    assert found == [value, inner, inner] == list(descriptions_in(value))


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
    with pytest.raises(ExportError, match=match):
        to_text(value, "it")
