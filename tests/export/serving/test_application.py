# SPDX-License-Identifier: Apache-2.0
"""Whatever JSON comes, the answer is a result or says what is wrong: never a failure."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.export.serving.application import Application
from skest.export.serving.limits import Limits
from skest.export.serving.versions import Catalog
from tests.export import _models
from tests.export.serving._clients import COLUMNS, ROWS

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["city", "age", "tags", "predict", "1|2", "\x00", "red"]),
)
KEYS = st.sampled_from(["city", "age", "tags", "name", "b64", "x"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)
CELLS = st.lists(LEAVES | st.lists(LEAVES, max_size=2), min_size=1, max_size=3)
COLUMN_SETS = st.fixed_dictionaries({name: CELLS | VALUES for name in COLUMNS})
ROW_SETS = st.lists(
    st.fixed_dictionaries({name: LEAVES | VALUES for name in COLUMNS}), max_size=3
)
NAMES = st.sampled_from(["serving_default", "predict"]) | VALUES
TF_DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "instances": ROW_SETS | VALUES,
        "inputs": COLUMN_SETS | VALUES,
        "examples": ROW_SETS | VALUES,
        "context": VALUES,
        "signature_name": NAMES,
    },
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from([*COLUMNS]) | VALUES,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | VALUES,
        "datatype": st.sampled_from(["BYTES", "FP64", "FP32", "INT64", "BOOL", "UINT8"])
        | VALUES,
        "data": CELLS | VALUES,
    }
)
TENSOR_DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3) | VALUES},
    optional={
        "outputs": st.lists(st.fixed_dictionaries({"name": NAMES})) | VALUES,
        "parameters": st.fixed_dictionaries({"signature": NAMES}) | VALUES,
        "id": VALUES,
    },
)


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    path = tmp_path_factory.mktemp("base")
    _models.write(path / "1")
    catalog = Catalog({"m": path})
    catalog.refresh()
    return Application(catalog, Limits())


def answer(application, path, document):
    return application.answer("POST", path, json.dumps(document).encode())


@settings(max_examples=150)
@given(TF_DOCUMENTS, st.sampled_from(["predict", "classify", "regress"]))
def test_any_document_below_v1(application, document, verb):
    found = answer(application, f"/v1/models/m:{verb}", document)
    assert found.status in (200, 400, 413), found.body
    json.loads(found.body)


@settings(max_examples=150)
@given(TENSOR_DOCUMENTS)
def test_any_document_below_v2(application, document):
    found = answer(application, "/v2/models/m/infer", document)
    assert found.status in (200, 400, 413), found.body
    json.loads(found.body)


NESTS = {
    "a text": ("/v1/models/m:predict", {"instances": [{**ROWS[0], "city": "HERE"}]}),
    "a number": ("/v1/models/m:predict", {"instances": [{**ROWS[0], "age": "HERE"}]}),
    "a list": ("/v1/models/m:predict", {"inputs": {**COLUMNS, "tags": ["HERE"] * 3}}),
    "an example": ("/v1/models/m:classify", {"examples": [{"age": "HERE"}]}),
    "a context": ("/v1/models/m:classify", {"examples": ROWS, "context": "HERE"}),
    "a signature": ("/v1/models/m:predict", {"inputs": 1, "signature_name": "HERE"}),
    "a name": ("/v2/models/m/infer", {"inputs": [{"name": "HERE"}]}),
    "data": (
        "/v2/models/m/infer",
        {
            "inputs": [
                {"name": "age", "shape": [1], "datatype": "FP64", "data": ["HERE"]}
            ]
        },
    ),
}


@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
@pytest.mark.parametrize(("path", "document"), NESTS.values(), ids=NESTS)
def test_nests_of_any_depth(application, path, document, brackets):
    """However little of the stack is left after the JSON was read."""
    text = json.dumps(document)
    for depth in (3, 70, 500, *range(880, 1000, 9), 10_000):
        nest = brackets[:-1] * depth + "1" + brackets[-1] * depth
        found = application.answer("POST", path, text.replace('"HERE"', nest).encode())
        assert found.status in (200, 400), (depth, found.body)


def test_a_row_alone_gives_what_it_gives_among_others(application):
    def predictions(rows):
        found = answer(application, "/v1/models/m:predict", {"instances": rows})
        return json.loads(found.body)["predictions"]

    rows = [{**row, "tags": row["tags"] or []} for row in ROWS]
    assert predictions(rows) == [predictions([row])[0] for row in rows]
