# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile versions are refused, or do no harm."""

import contextlib
import functools
import json
import os
import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from skest import export
from skest.exceptions import ArtifactError
from skest.export.artifact import latest
from tests.export import _models


@pytest.fixture
def version(tmp_path):
    return _models.write(tmp_path / "base" / "1700000000")


def test_the_newest_version(version, tmp_path):
    shutil.copytree(version, tmp_path / "base" / "1700000001")
    (tmp_path / "base" / ".tmp-1700000002").mkdir()
    assert latest(tmp_path / "base").name == "1700000001"
    assert export.load(tmp_path / "base").path.name == "1700000001"
    with pytest.raises(FileNotFoundError, match="no exported version"):
        latest(tmp_path / "nothing")


def file(name, change):
    """Change what there is in place of a file."""
    return lambda version: change(version / name)


def manifest(change):
    """Change what the manifest says."""

    def harm(version):
        path = version / "manifest.json"
        described = json.loads(path.read_text())
        change(described)
        path.write_text(json.dumps(described))

    return harm


def feature(name, **changes):
    return manifest(lambda m: m["features"][name].update(changes))


def listed(**files):
    return manifest(lambda m: m["files"].update(files))


def recorded(change):
    """Change the recorded rows, and their digest."""

    def harm(version):
        path = version / "warmup.json"
        rows = json.loads(path.read_text())
        change(rows)
        path.write_text(json.dumps(rows))
        entry = _models.entry(path.read_bytes())
        listed(**{"warmup.json": entry})(version)

    return harm


def model(change):
    """Change the graph, and its digest."""

    def harm(version):
        graph = _models.load_graph(version)
        change(graph)
        _models.write(version, graph)

    return harm


def link(path):
    shutil.move(path, path.parents[1] / "elsewhere")
    path.symlink_to(path.parents[1] / "elsewhere")


def directory(path):
    path.unlink()
    path.mkdir()


def other_bytes(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def name_twice(path):
    path.write_text('{"files": {}, ' + path.read_text()[1:])


def first_rows(n_rows):
    def cut(rows):
        for side in ("inputs", "outputs"):
            rows[side] = {name: cells[:n_rows] for name, cells in rows[side].items()}

    return cut


def outside(location, offset="0"):
    def change(graph):
        tensor = graph.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset)):
            tensor.external_data.add(key=key, value=value)

    return change


def predict(m):
    return m["signatures"]["predict"]


MANIFEST, MODEL, WARMUP = "manifest.json", "model.onnx", "warmup.json"
REFUSES = "ONNX Runtime refuses the graph"
BEFORE = {
    "symlink": (file(MODEL, link), "a file of its own"),
    "hard link": (
        file(MODEL, lambda path: os.link(path, path.parents[1] / "other")),
        "a file of its own",
    ),
    "directory": (file(WARMUP, directory), "a file of its own"),
    "unlisted": (file("more.so", lambda p: p.write_bytes(b"ELF")), "is not listed"),
    "leads out": (listed(**{"../x": _models.entry(b"x")}), "is no name that a file"),
    "lists itself": (listed(**{MANIFEST: {}}), "is no name that a file"),
    "no size": (listed(**{MODEL: {"size": True}}), "no 'size' and 'sha256'"),
    "no model": (manifest(lambda m: m["files"].pop(MODEL)), "lists no 'model.onnx'"),
    "schema": (manifest(lambda m: m.update(schema="skest.export/2")), "the schema"),
    "deep": (file(MANIFEST, lambda p: p.write_text("[" * 100_000)), "is no JSON"),
    "name twice": (file(MANIFEST, name_twice), "a name is there twice"),
    "huge manifest": (
        file(MANIFEST, lambda path: os.truncate(path, 16 * 2**20 + 1)),
        "16777217 bytes",
    ),
    "huge warm-up": (
        file(WARMUP, lambda path: os.truncate(path, 16 * 2**20 + 1)),
        "16777217 bytes",
    ),
    "no manifest": (file(MANIFEST, os.unlink), "no exported model"),
    "other model": (file(MODEL, other_bytes), "its digest differs"),
    "other warm-up": (file(WARMUP, other_bytes), "its digest differs"),
    "no file": (file(WARMUP, os.unlink), "is missing"),
    "no warm-up": (
        manifest(lambda m: m["files"].pop(WARMUP)),
        "says that 2 rows were recorded .* no 'warmup.json'",
    ),
    "features": (manifest(lambda m: m.pop("features")), "a mapping 'features'"),
    "signatures": (manifest(lambda m: m.update(signatures=3)), "mapping 'signatures'"),
    "signature": (
        manifest(lambda m: m["signatures"].update(predict=3)),
        "'predict' must be a mapping",
    ),
    "outputs": (manifest(lambda m: predict(m).pop("outputs")), "a mapping 'outputs'"),
    "empty outputs": (
        manifest(lambda m: predict(m).update(outputs={})),
        "The signature 'predict' must have an output",
    ),
    "recorded": (
        manifest(lambda m: m.update(parity={"recorded": -1})),
        "'recorded' of 'parity' must be a number of rows; got -1",
    ),
    "shape": (feature("age", shape=[-1]), "'age' must have a 'dtype' and a 'shape'"),
    "dtype": (feature("age", dtype=[]), "'age' must have a 'dtype' and a 'shape'"),
    "rank": (feature("age", shape=[]), "'age' must have an axis of rows"),
    "size": (feature("tags", shape=[None, 2**28]), "'tags' has more than 16777216"),
    "delimiter": (feature("city", delimiter=""), "can't have '' for its 'delimiter'"),
    "texts": (feature("city", texts_only=1), "can't have 1 for its 'texts_only'"),
    "columns": (feature("age", columns=["a", "b"]), "for its 'columns'"),
    "missing": (feature("age", missing={}), "'age' of float64 can't have {}"),
    "word": (feature("city", missing=3), "'city' of string can't have 3 for its 'mis"),
    "range": (feature("tags", missing=2**63), "'tags' of int64 can't have"),
    "numbers": (feature("city", numbers_only=1), "have 1 for its 'numbers_only'"),
    "written": (feature("city", from_texts=True), "have True for its 'from_texts'"),
    "integers": (feature("city", integers_only=True), "for its 'integers_only'"),
    "unit": (feature("tags", unit="ms"), "can't have 'ms' for its 'unit'"),
    "output": (
        manifest(lambda m: predict(m)["outputs"]["labels"].update(dtype={})),
        "Output 'labels' of signature 'predict' must have a 'dtype'",
    ),
    "method": (
        manifest(lambda m: predict(m).update(method=3)),
        "'method' of signature 'predict'",
    ),
    "parity": (manifest(lambda m: m.update(parity=[])), "have a mapping 'parity'"),
    "atol": (
        manifest(lambda m: m.update(parity={"atol": 0.011})),
        "'atol' of 'parity' must be a number from 0 to 0.01; got 0.011",
    ),
}
BEHIND = {
    "unknown output": (
        manifest(lambda m: predict(m)["outputs"]["labels"].update(tensor="p0")),
        "Output 'labels' of signature 'predict' is no tensor",
    ),
    "unknown input": (
        manifest(lambda m: predict(m)["inputs"].update(age={"tensor": "q"})),
        "Input 'age' of signature 'predict' is no tensor",
    ),
    "no answers": (
        recorded(lambda rows: rows.update(outputs={})),
        r"no answers for \['labels', 'probab",
    ),
    "no answer": (
        recorded(lambda rows: rows["outputs"].pop("labels")),
        r"no answers for \['labels'\]",
    ),
    "fewer rows": (recorded(first_rows(1)), "has 1 rows; there must be 2"),
    "no rows": (recorded(first_rows(0)), "has 0 rows; there must be 2"),
    "no signature": (
        recorded(lambda rows: rows.update(signature="classify")),
        "'warmup.json' does not fit",
    ),
    "unknown domain": (
        model(
            lambda m: m.graph.node.append(
                helper.make_node("Evil", ["age"], ["z"], domain="mine")
            )
        ),
        REFUSES,
    ),
    "data outside": (model(outside("../secret")), "escapes model directory"),
    "absolute data": (model(outside("/etc/passwd")), REFUSES),
    "data behind the end": (model(outside("warmup.json", "99999")), REFUSES),
    "other input": (
        model(lambda m: setattr(m.graph.input[0], "name", "town")),
        REFUSES,
    ),
    "input too many": (
        model(lambda m: m.graph.node[0].input.append("nothing")),
        REFUSES,
    ),
}


@pytest.mark.parametrize(("harm", "message"), BEFORE.values(), ids=list(BEFORE))
def test_refused_before_an_engine_sees_it(version, monkeypatch, harm, message):
    harm(version)
    monkeypatch.setattr("skest.export.runtime._session", None)
    with pytest.raises(ArtifactError, match=message):
        export.load(version)


@pytest.mark.parametrize(("harm", "message"), BEHIND.values(), ids=list(BEHIND))
def test_refused_by_what_runs_it(version, harm, message):
    harm(version)
    with pytest.raises(ArtifactError, match=message):
        export.load(version)


def test_trusted_digest(version):
    data = (version / "manifest.json").read_bytes()
    digest = _models.entry(data)["sha256"]
    export.load(version, trusted_manifest_sha256=digest.upper())
    (version / "manifest.json").write_bytes(data + b" ")
    with pytest.raises(ArtifactError, match="not a trusted one"):
        export.load(version, trusted_manifest_sha256=digest)
    other = _models.entry(data + b" ")["sha256"]
    export.load(version, trusted_manifest_sha256=[digest, other])


def test_without_verification_digests_are_not_compared(version):
    other_bytes(version / "warmup.json")
    export.load(version, verify=False)


def damage(draw, version):
    """Cut, lengthen, flip bits of, or delete one of the files."""
    path = version / draw.choice(["manifest.json", "model.onnx", "warmup.json"])
    data = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "flip", "cut", "grow", "zero", "delete"])
    if kind == "flip":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[draw.randrange(len(data)) :]
    elif kind == "grow":
        data += draw.randbytes(draw.randrange(1, 9))
    elif kind == "zero":
        at = draw.randrange(len(data))
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    path.write_bytes(data)
    if kind == "delete":
        path.unlink()


def test_200_random_damages_are_refused(version, tmp_path, monkeypatch):
    """With the digest of the manifest known nothing slips through."""
    monkeypatch.setattr("skest.export.runtime._session", None)
    digest = _models.entry((version / "manifest.json").read_bytes())["sha256"]
    load = functools.partial(export.load, trusted_manifest_sha256=digest)
    draw = random.Random(0)
    for _ in range(200):
        copy = tmp_path / "copy"
        shutil.copytree(version, copy)
        damage(draw, copy)
        with pytest.raises(ArtifactError):
            load(copy)
        shutil.rmtree(copy)


def test_graphs_mutated_under_their_own_digest_do_no_harm(version):
    """Whoever writes the digests can write another model, but none that runs code."""
    draw = random.Random(1)
    original = (version / "model.onnx").read_bytes()
    refused = 0
    for _ in range(60):
        data = bytearray(original)
        for _ in range(draw.choice([1, 3])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        _models.write(version, bytes(data))
        try:
            export.load(version)
        except ArtifactError:
            refused += 1
    assert refused > 30


ANYTHING = st.recursive(
    st.sampled_from([None, True, -1, 0.5, 1e999, 2**70, "x", ["x"], {"x": 3}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(node):
    """Return owners and keys of all values in a JSON document."""
    keys = list(node) if isinstance(node, dict) else []
    keys = range(len(node)) if isinstance(node, list) else keys
    for key in keys:
        yield node, key
        yield from places(node[key])


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    return _models.write(tmp_path_factory.mktemp("by_hand") / "1")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_value_in_any_place_of_a_manifest(by_hand, data):
    """It is refused, or as good as a sound one: other errors are those of callers."""
    path = by_hand / "manifest.json"
    sound = path.read_bytes()
    described = json.loads(sound)
    owner, key = data.draw(st.sampled_from(list(places(described))))
    owner[key] = data.draw(ANYTHING)
    path.write_text(json.dumps(described))
    try:
        model = export.load(by_hand)
        for name in model.signatures:
            with contextlib.suppress(ValueError, TypeError):
                model.run(_models.warmup()["inputs"], name)
    except ArtifactError:
        pass
    finally:
        path.write_bytes(sound)
