# SPDX-License-Identifier: Apache-2.0
"""Manifests and descriptions with any value in any place: refused, or as good as sound."""

import copy
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skest
from skest import export
from skest.exceptions import ArtifactError
from tests.export import _models

WRONG = [
    None,
    True,
    3,
    -1,
    0.5,
    1e999,
    math.nan,
    2**70,
    "",
    "x",
    [],
    ["x"],
    {},
    {"x": 3},
]
ANYTHING = st.recursive(
    st.sampled_from(WRONG) | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(node, path=()):
    """Return the paths of all values in a JSON document."""
    items = node.items() if isinstance(node, dict) else ()
    items = enumerate(node) if isinstance(node, list) else items
    yield from ([path] if path else [])
    for key, inner in list(items):
        yield from places(inner, (*path, key))


def with_value(document, path, value):
    changed = copy.deepcopy(document)
    owner = changed
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return changed


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    X = pd.DataFrame(np.eye(3), columns=["a", "b", "c"])
    model = skest.DNNRegressor((2,), max_iter=1).fit(X, [1.0, 2.0, 3.0])
    return model.export(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    return _models.write(tmp_path_factory.mktemp("by_hand") / "1")


def load_and_ask(version):
    """Load a version and run its test rows; only these errors may be raised."""
    rows = json.loads((version / "warmup.json").read_text())["inputs"]
    try:
        model = export.load(version)
    except ArtifactError:
        return
    for name in model.signatures:
        try:
            model.run(rows, name)
        except (ValueError, TypeError):  # what a caller gave is not what it takes
            pass


@pytest.mark.parametrize("kind", ["plain", "by_hand"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_value_in_any_place_of_a_manifest(request, kind, data):
    version = request.getfixturevalue(kind)
    path = version / "manifest.json"
    sound = path.read_bytes()
    manifest = json.loads(sound)
    place = data.draw(st.sampled_from(sorted(places(manifest), key=str)))
    changed = with_value(manifest, place, data.draw(ANYTHING))
    path.write_text(json.dumps(changed))
    try:
        load_and_ask(version)
    finally:
        path.write_bytes(sound)


CASES = {
    "dtype": (("features", "age", "dtype"), [], "'age' must have a 'dtype'"),
    "output": (
        ("signatures", "predict", "outputs", "labels", "dtype"),
        {},
        "Output 'labels' of signature 'predict' must have a 'dtype'",
    ),
    "method": (
        ("signatures", "predict", "method"),
        3,
        "'method' of signature 'predict'",
    ),
    "raw": (("raw",), {"x": {}}, "hashing='client' of an earlier skest"),
    "program": (("runtime",), {"format": "pt2"}, "export with format='pt2'"),
    "parity": (("parity",), [], "must have a mapping 'parity'"),
    "atol": (("parity",), {"atol": "x"}, "'atol' of 'parity' must be a number"),
    "loose": (("parity",), {"atol": 0.011}, "a number from 0 to 0.01; got 0.011"),
    "infinite": (("parity",), {"atol": 1e999}, "'atol' of 'parity' must be a number"),
    "delimiter": (("features", "city", "delimiter"), "", "can't have '' for its"),
    "texts": (("features", "city", "texts_only"), 1, "1 for its 'texts_only'"),
    "columns": (("features", "age", "columns"), ["a", "b"], "for its 'columns'"),
    "missing": (("features", "age", "missing"), {}, "'age' of float64 can't have {}"),
    "word": (("features", "city", "missing"), 3, "'city' of string can't have 3"),
    "range": (("features", "tags", "missing"), 2**63, "'tags' of int64 can't have"),
    "unit": (("features", "tags", "unit"), "ms", "can't have 'ms' for its 'unit'"),
    "rank": (("features", "age", "shape"), [], "'age' must have an axis of rows"),
    "size": (
        ("features", "tags", "shape"),
        [None, None, 2**28],
        "'tags' has more than 16777216 values in a row",
    ),
    "runtime": (("runtime",), [], "must have a mapping 'runtime'"),
    "format": (("runtime",), {"format": {}}, "of an earlier skest, or of none"),
}


@pytest.mark.parametrize(("place", "value", "message"), CASES.values(), ids=list(CASES))
def test_wrong_manifests(tmp_path, place, value, message):
    changed = with_value(_models.manifest(), place, value)
    version = _models.write(tmp_path / "1", described=changed)
    with pytest.raises(ArtifactError, match=message):
        export.load(version)


def test_recorded_outputs_of_another_shape(tmp_path):
    recorded = _models.warmup()
    recorded["outputs"]["probabilities"] = [[1.0], [2.0], [3.0]]
    version = _models.write(tmp_path / "1", recorded=recorded)
    with pytest.raises(ArtifactError, match="gives other 'probabilities' here"):
        export.load(version)
