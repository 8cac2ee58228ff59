# SPDX-License-Identifier: Apache-2.0
import functools
import json
import os
import random
import shutil

import pytest
from onnx import TensorProto, helper

from skest import export
from skest.exceptions import ArtifactError
from skest.export.artifact import latest, read_artifact
from tests.export import _models


@pytest.fixture
def version(tmp_path):
    return _models.write(tmp_path / "base" / "1700000000")


@pytest.fixture
def nothing_runs(monkeypatch):
    """Whatever is refused, is refused before an engine sees it."""
    monkeypatch.setattr("skest.export.runtime._session", None)


def change_manifest(version, change):
    path = version / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def change_warmup(version, change):
    path = version / "warmup.json"
    recorded = json.loads(path.read_text())
    change(recorded)
    path.write_text(json.dumps(recorded))
    entry = _models.entry(path.read_bytes())
    change_manifest(version, lambda m: m["files"].update({path.name: entry}))


def change_model(version, change):
    model = _models.load_graph(version)
    change(model)
    _models.write(version, model)


def test_a_sound_version_is_read(version):
    found = read_artifact(version)
    assert found.path == version
    assert found.model == (version / "model.onnx").read_bytes()
    assert found.warmup == (version / "warmup.json").read_bytes()
    assert read_artifact(version, verify=False).warmup is None


def test_latest(version, tmp_path):
    shutil.copytree(version, tmp_path / "base" / "1700000001")
    (tmp_path / "base" / ".tmp-1700000002").mkdir()
    assert latest(tmp_path / "base").name == "1700000001"
    assert export.load(tmp_path / "base").path.name == "1700000001"
    with pytest.raises(FileNotFoundError, match="no exported version"):
        latest(tmp_path / "nothing")


# Hostile versions.


def link(version):
    target = version.parent / "elsewhere"
    shutil.move(version / "model.onnx", target)
    (version / "model.onnx").symlink_to(target)


def hard_link(version):
    os.link(version / "model.onnx", version.parent / "other")


def directory_for_file(version):
    (version / "warmup.json").unlink()
    (version / "warmup.json").mkdir()


def unlisted(version):
    (version / "more.so").write_bytes(b"\x7fELF")


def listed_outside(version):
    entry = _models.entry(b"secret")
    (version.parent / "secret").write_bytes(b"secret")
    change_manifest(version, lambda m: m["files"].update({"../secret": entry}))


def lists_itself(version):
    change_manifest(version, lambda m: m["files"].update({"manifest.json": {}}))


def no_size(version):
    change_manifest(
        version, lambda m: m["files"].update({"model.onnx": {"size": True}})
    )


def no_model(version):
    change_manifest(version, lambda m: m["files"].pop("model.onnx"))


def other_schema(version):
    change_manifest(version, lambda m: m.update(schema="skest.export/2"))


def deep_manifest(version):
    (version / "manifest.json").write_text("[" * 100_000)


def name_twice(version):
    text = (version / "manifest.json").read_text()
    (version / "manifest.json").write_text('{"files": {}, ' + text[1:])


def huge_manifest(version):
    with (version / "manifest.json").open("r+b") as file:
        file.truncate(16 * 2**20 + 1)


def no_manifest(version):
    (version / "manifest.json").unlink()


def other_bytes(version):
    data = bytearray((version / "model.onnx").read_bytes())
    data[-1] ^= 1
    (version / "model.onnx").write_bytes(data)


def other_warmup(version):
    text = (version / "warmup.json").read_text()
    (version / "warmup.json").write_text(text.replace("yes", "sey", 1))


def missing_file(version):
    (version / "warmup.json").unlink()


def no_warmup(version):
    (version / "warmup.json").unlink()
    change_manifest(version, lambda m: m["files"].pop("warmup.json"))


def no_answers(version):
    change_warmup(version, lambda w: w.update(outputs={}))


def answers_for_some(version):
    change_warmup(version, lambda w: w["outputs"].pop("labels"))


def fewer_rows(version):
    def cut(recorded):
        for side in ("inputs", "outputs"):
            recorded[side] = {n: cells[:1] for n, cells in recorded[side].items()}

    change_warmup(version, cut)


def no_rows(version):
    def cut(recorded):
        for side in ("inputs", "outputs"):
            recorded[side] = {name: [] for name in recorded[side]}

    change_warmup(version, cut)
    change_manifest(version, lambda m: m.pop("parity"))


def no_signature(version):
    change_warmup(version, lambda w: w.update(signature="classify"))


def unknown_domain(model):
    model.graph.node.append(helper.make_node("Evil", ["age"], ["z"], domain="mine"))


def outside(location, offset="0", length="16"):
    def change(model):
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in [
            *(("location", location), ("offset", offset), ("length", length))
        ]:
            tensor.external_data.add(key=key, value=value)

    return change


def other_input(model):
    model.graph.input[0].name = "town"


HOSTILE = {
    "symlink": (link, "a file of its own"),
    "hard link": (hard_link, "a file of its own"),
    "directory in place of a file": (directory_for_file, "a file of its own"),
    "file that is not listed": (unlisted, "is not listed"),
    "name that leads out": (listed_outside, "is no name that a file"),
    "manifest lists itself": (lists_itself, "is no name that a file"),
    "no size": (no_size, "no 'size' and 'sha256'"),
    "no model": (no_model, "lists no 'model.onnx'"),
    "other schema": (other_schema, "must have the schema"),
    "deep manifest": (deep_manifest, "is no JSON"),
    "name twice": (name_twice, "a name is there twice"),
    "huge manifest": (huge_manifest, "16777217 bytes"),
    "no manifest": (no_manifest, "no exported model"),
    "other bytes": (other_bytes, "its digest differs"),
    "other warm-up": (other_warmup, "its digest differs"),
    "missing file": (missing_file, "is missing"),
    "no warm-up": (no_warmup, "says that 2 rows were recorded .* no 'warmup.json'"),
}
RECORDS = {
    "warm-up without answers": (no_answers, r"no answers for \['labels', 'probab"),
    "warm-up without an answer": (answers_for_some, r"no answers for \['labels'\]"),
    "warm-up of fewer rows": (fewer_rows, "has 1 rows; there must be 2"),
    "warm-up of no rows": (no_rows, "has 0 rows; there must be 1"),
    "warm-up of no signature": (no_signature, "'warmup.json' does not fit"),
}
GRAPHS = {
    "unknown domain": (unknown_domain, "ONNX Runtime refuses the graph"),
    "external data outside": (outside("../secret"), "escapes model directory"),
    "external data absolute": (
        outside("/etc/passwd"),
        "ONNX Runtime refuses the graph",
    ),
    "external data behind the end": (
        outside("warmup.json", "99999"),
        "ONNX Runtime refuses the graph",
    ),
    "other input": (other_input, "ONNX Runtime refuses the graph"),
    "input too many": (
        lambda model: model.graph.node[0].input.append("nothing"),
        "ONNX Runtime refuses",
    ),
}
SIGNATURES = {
    "no features": (lambda m: m.pop("features"), "a mapping 'features'"),
    "no signatures": (lambda m: m.update(signatures=3), "a mapping 'signatures'"),
    "no mapping": (
        lambda m: m["signatures"].update(predict=3),
        "'predict' must be a mapping",
    ),
    "no outputs": (
        lambda m: m["signatures"]["predict"].pop("outputs"),
        "a mapping 'outputs'",
    ),
    "empty outputs": (
        lambda m: m["signatures"]["predict"].update(outputs={}),
        "The signature 'predict' must have an output",
    ),
    "recorded": (
        lambda m: m.update(parity={"recorded": -1}),
        "'recorded' of 'parity' must be a number of rows; got -1",
    ),
    "shape": (
        lambda m: m["features"]["age"].update(shape=[-1]),
        "The feature 'age' must have a 'dtype' and a 'shape'",
    ),
    "dtype": (
        lambda m: m["features"]["age"].update(dtype="object"),
        "The feature 'age' must have a 'dtype' and a 'shape'",
    ),
}


UNFIT = {
    "unknown output": (
        lambda m: m["signatures"]["predict"]["outputs"]["labels"].update(tensor="p0"),
        "Output 'labels' of signature 'predict' is no tensor",
    ),
    "unknown input": (
        lambda m: m["signatures"]["predict"]["inputs"].update(age={"tensor": "q"}),
        "Input 'age' of signature 'predict' is no tensor",
    ),
}


HARMS = {
    **{name: (*case, False) for name, case in HOSTILE.items()},
    **{
        name: (functools.partial(change_manifest, change=change), message, False)
        for name, (change, message) in SIGNATURES.items()
    },
    **{
        name: (functools.partial(change_manifest, change=change), message, True)
        for name, (change, message) in UNFIT.items()
    },
    **{name: (*case, True) for name, case in RECORDS.items()},
    **{
        name: (functools.partial(change_model, change=change), message, True)
        for name, (change, message) in GRAPHS.items()
    },
}


@pytest.mark.parametrize(("harm", "message", "runs"), HARMS.values(), ids=list(HARMS))
def test_hostile_versions_are_refused(version, monkeypatch, harm, message, runs):
    harm(version)
    if not runs:  # it is refused before an engine sees it
        monkeypatch.setattr("skest.export.runtime._session", None)
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
    other_warmup(version)
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


@pytest.mark.usefixtures("nothing_runs")
def test_200_random_damages_are_refused_as_artifact_error(version, tmp_path):
    """With the digest of the manifest known nothing slips through."""
    digest = _models.entry((version / "manifest.json").read_bytes())["sha256"]
    draw = random.Random(0)
    for _ in range(200):
        copy = tmp_path / "copy"
        shutil.copytree(version, copy)
        damage(draw, copy)
        with pytest.raises(ArtifactError):
            export.load(copy, trusted_manifest_sha256=digest)
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
