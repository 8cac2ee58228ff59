# SPDX-License-Identifier: Apache-2.0
"""Exports as programs of torch: the same answers, and nothing runs without trust."""

import functools
import hashlib
import io
import json
import pickle
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import skest
from skest import feature_columns as fc
from skest.adapters.onnx_graph import fitted_onnx
from skest.adapters.program import fitted_program
from skest.exceptions import ArtifactError, ExportError, NotFittedError
from skest.export import (
    FinalExporter,
    LatestExporter,
    PredictOutput,
    load,
    to_estimator,
    triton,
)
from skest.export.declaration import described
from skest.feature_columns import numeric_column
from skest.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiHead,
    RegressionHead,
    SampledSoftmaxHead,
)
from skest.versioned_directory import list_versions
from tests.adapters import _model_fns as model_fns
from tests.adapters._families import rows_for, small
from tests.export import _portable

X = _portable.table()
TARGETS = _portable.targets()
MODELS = _portable.models()
RAW = ["size", "rooms", "city", "street"]


@pytest.fixture(scope="module")
def model():
    return small(skest.DNNClassifier).fit(X[RAW], TARGETS["classes"])


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return model.export(tmp_path_factory.mktemp("base"), format="pt2")


@pytest.fixture
def version(exported, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(exported, tmp_path / exported.name)


def assert_same_answers(estimator, loaded, table):
    found, expected = loaded.predict(table), estimator.predict(table)
    if isinstance(found, dict):
        for name, values in found.items():
            np.testing.assert_array_equal(values, np.asarray(expected[name]))
    else:
        np.testing.assert_array_equal(found, np.asarray(expected))


# The same answers


SLOW = ("simple_rnn", "lstm", "linear, count", "dnn, normalized", "dnn, inferred")
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in MODELS
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_families_and_heads_on_a_mixed_table(name, tmp_path):
    estimator, target = MODELS[name]
    estimator.fit(X, TARGETS[target])
    version = estimator.export(tmp_path, format="pt2")
    loaded = load(tmp_path, trust_code=True)
    files = sorted(path.name for path in version.iterdir())
    assert files == ["columns.json", "manifest.json", "model.pt2", "warmup.json"]
    assert loaded.manifest["runtime"] == {"format": "pt2", "trusted_code": True}
    assert loaded.manifest["parity"]["max_abs_diff"] <= 1e-6
    assert loaded.manifest["parity"]["torch"] == torch.__version__
    assert_same_answers(estimator, loaded, X)
    every = loaded.run(X, "predict")
    for i in (0, 7):
        alone = loaded.run(X[i : i + 1], "predict")
        for key, values in alone.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values[0], every[key][i], atol=1e-6)
            else:
                np.testing.assert_array_equal(values[0], every[key][i])


@pytest.mark.parametrize("raw", [RAW, ["size", "tags", "text"]], ids=str)
def test_no_rows(tmp_path, raw):
    estimator = small(skest.DNNClassifier).fit(X[raw], TARGETS["classes"])
    estimator.export(tmp_path, format="pt2")
    estimator.export(tmp_path / "graph")
    loaded, graph = load(tmp_path, trust_code=True), load(tmp_path / "graph")
    for table in (X[raw][:0], {name: [] for name in raw}):
        found, expected = (m.run(table, "predict") for m in (loaded, graph))
        assert list(found) == list(expected)
        assert found["labels"].shape == (0, 1)
        for name, values in found.items():
            assert values.shape == expected[name].shape
            assert values.dtype.kind == expected[name].dtype.kind


@pytest.mark.parametrize(
    "head",
    [
        BinaryClassHead(label_vocabulary=["no", "yes"]),
        RegressionHead(2),
        LogisticRegressionHead(),
        SampledSoftmaxHead(30, 5),
        MultiHead([BinaryClassHead(name="a"), RegressionHead(name="b")]),
    ],
    ids=lambda head: type(head).__name__,
)
def test_signatures_are_those_of_the_graph(head):
    pytest.importorskip("onnx")
    labels = {
        "BinaryClassHead": np.array(["no", "yes"] * 30),
        "RegressionHead": np.ones((60, 2)),
        "MultiHead": {"a": np.arange(60) % 2, "b": np.ones(60)},
        "LogisticRegressionHead": np.full(60, 0.5),
    }
    estimator = small(skest.DNNEstimator, head=head)
    estimator.fit(X[["size"]], labels.get(type(head).__name__, np.arange(60) % 30))
    found = fitted_program(estimator, "pt2").signatures
    expected = fitted_onnx(estimator).signatures
    assert found.keys() == expected.keys()
    for name, signature in expected.items():
        assert found[name].method == signature.method
        assert found[name].inputs == signature.inputs
        assert found[name].outputs == signature.outputs


WEIGHTED = fc.weighted_categorical_column(
    fc.categorical_column_with_vocabulary_list("tags", ["a", "b"]), "weights"
)


@pytest.mark.parametrize(
    "columns",
    [
        [fc.embedding_column(WEIGHTED, 3, max_norm=0.5)],
        fc.shared_embeddings(
            [
                fc.categorical_column_with_hash_bucket("city", 9),
                fc.categorical_column_with_hash_bucket("street", 9),
            ],
            2,
        ),
        [fc.indicator_column(fc.crossed_column(["tags", "city"], 20))],
        [fc.bucketized_column(fc.numeric_column("rooms"), "quantiles:3")],
    ],
    ids=["weighted", "shared", "crossed", "bucketized"],
)
def test_feature_columns(columns, tmp_path):
    table = X.assign(weights=[[1.0, 0.5, 2.0, 1.0][: len(tags)] for tags in X["tags"]])
    estimator = small(skest.DNNClassifier, feature_columns=columns)
    estimator.fit(table, TARGETS["binary"])
    # Weights must be as many as tags, which rows that are made up do not know.
    version = estimator.export(tmp_path, format="pt2", example=table[:8])
    loaded = load(version, trust_code=True)
    for rows in (table, table[:1], table[1:2]):
        np.testing.assert_allclose(
            loaded.predict_proba(rows), estimator.predict_proba(rows), atol=1e-6
        )


def test_a_sparse_matrix(tmp_path):
    rows = sp.random_array((60, 30), density=0.1, format="csr", rng=0)
    estimator = small(skest.LinearClassifier).fit(rows, TARGETS["binary"])
    loaded = load(estimator.export(tmp_path, format="pt2"), trust_code=True)
    for dense in (rows.toarray(), np.zeros((1, 30)), np.eye(30)[:1]):
        found, expected = (m.predict_proba(dense) for m in (loaded, estimator))
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array(dtype, tmp_path):
    estimator = small(skest.DNNRegressor)
    rows, y, _ = rows_for(estimator)
    rows = rows.astype(dtype)
    estimator.fit(rows, y).export(tmp_path, format="pt2")
    loaded = load(tmp_path, trust_code=True)
    assert_same_answers(estimator, loaded, rows)
    assert loaded.predict(rows).dtype == dtype


def test_a_frame_of_numbers_and_other_forms_of_tables(tmp_path):
    frame = X[["size", "rooms"]].fillna(0.0)
    column = [numeric_column("size"), numeric_column("rooms")]
    for estimator in (
        small(skest.DNNClassifier),
        small(skest.DNNClassifier, feature_columns=column),
    ):
        estimator.fit(frame, TARGETS["binary"]).export(tmp_path, format="pt2")
        loaded = load(tmp_path, trust_code=True)
        expected = estimator.predict_proba(frame)
        for table in (
            frame,
            pl.from_pandas(frame),
            frame.to_dict("list"),
            frame.to_dict("records"),
        ):
            np.testing.assert_array_equal(loaded.predict_proba(table), expected)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.floats(-1e6, 1e6, width=32),
            st.integers(0, 8),
            st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            st.text(st.characters(exclude_categories=["Cs"])),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_rows(model, exported, rows):
    table = pd.DataFrame(rows, columns=RAW).astype({"size": float})
    found = _loaded(exported).predict_proba(table)
    np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-6)


@functools.cache
def _loaded(version):
    return load(version, trust_code=True)


def test_several_threads_and_signatures(model, exported):
    loaded = load(exported, trust_code=True, num_threads=2)
    expected = model.predict_proba(X[RAW])
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(loaded.predict_proba, [X[RAW]] * 20):
            np.testing.assert_array_equal(found, expected)
    cells = {name: X[name] for name in RAW}
    assert loaded("classification", **cells)["scores"].shape == expected.shape


def test_neither_onnx_nor_its_runtime_is_needed(tmp_path, monkeypatch):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    estimator = small(skest.LinearClassifier).fit(X[RAW], TARGETS["binary"])
    estimator.export(tmp_path, format="pt2", example=X[RAW][:3])
    loaded = load(tmp_path, trust_code=True)
    assert_same_answers(estimator, loaded, X[RAW])
    warmup = json.loads((loaded.path / "warmup.json").read_text())
    assert len(warmup["inputs"]["city"]) == 3


# Models of the user's


@pytest.mark.parametrize(
    ("kind", "model_fn"),
    [
        (skest.ModelFnClassifier, model_fns.with_head),
        (skest.ModelFnRegressor, model_fns.numbers),
    ],
)
@pytest.mark.parametrize("columns", [None, [numeric_column("x", shape=3)]])
def test_model_functions(kind, model_fn, columns, tmp_path):
    estimator = small(kind, model_fn=model_fn)
    rows, y, _ = rows_for(estimator)
    estimator.fit(rows, y).export(tmp_path, format="pt2")
    assert_same_answers(estimator, load(tmp_path, trust_code=True), rows)


class Spectrum(nn.Module):
    """Uses an operation that no exported graph has."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, features):
        return self.out(torch.fft.rfft(features["wave"]).abs()) + features["shift"]


def spectrum_fn(features, labels, mode):
    network = Spectrum()
    return skest.EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: (z**2).mean(),
        predictions=lambda z: {"p": z.softmax(1), "best": z.argmax(1)},
        optimizer=torch.optim.SGD(network.parameters(), 0.1),
        export_outputs={"chances": PredictOutput({"chance": "p"})},
    )


WAVES = {"wave": np.ones((2, 4), np.float32), "shift": np.array([[1], [2]])}


def core(model_fn=spectrum_fn, **options):
    estimator = skest.Estimator(model_fn, **options)
    return estimator.train(lambda: [(WAVES, np.zeros(2))])


def test_the_core_estimator(tmp_path):
    estimator = core()
    loaded = load(estimator.export(tmp_path, format="pt2"), trust_code=True)
    (expected,) = estimator.predict(lambda: [WAVES], yield_single_examples=False)
    assert list(loaded.signatures) == ["serving_default", "chances", "predict"]
    np.testing.assert_allclose(loaded(**WAVES)["chance"], expected["p"], atol=1e-6)
    found = loaded("predict", **WAVES)
    assert found["best"].dtype == expected["best"].dtype
    with pytest.raises(ValueError, match=r"'wave' has the shape \(any, 4\); got"):
        loaded(**{**WAVES, "wave": [[1.0, 2.0]] * 2})


def test_exporters(tmp_path):
    for exporter in (
        LatestExporter("latest", exports_to_keep=1, format="pt2"),
        FinalExporter("final", format="pt2"),
    ):
        estimator = core(model_dir=tmp_path / exporter.name)
        step = estimator.latest_checkpoint()
        base = tmp_path / "export" / exporter.name
        exporter.export(estimator, base, step, {"loss": 1.0}, True)
        assert load(base, trust_code=True).manifest["model"]["global_step"] == 1
        assert len(list_versions(base)) == 1
    with pytest.raises(ValueError, match="must be one of 'onnx', 'checkpoint', 'pt2'"):
        FinalExporter("final", format="pickle")


# What cannot be exported


def branching_fn(features, labels, mode):
    spec = spectrum_fn(features, labels, mode)
    network = spec.network
    forward = network.forward
    network.forward = lambda x: forward(x) if x["wave"].sum() > 0 else forward(x) * 2
    return spec


def test_what_torch_cannot_trace(tmp_path):
    with pytest.raises(ExportError, match=r"cannot trace the module Spectrum: .*bran"):
        core(branching_fn).export(tmp_path, format="pt2")
    assert list(tmp_path.iterdir()) == []


def test_functions_of_the_users_are_no_data(tmp_path):
    column = numeric_column("rooms", normalizer=np.log1p)
    estimator = small(skest.DNNClassifier, feature_columns=[column])
    estimator.fit(X[["rooms"]], TARGETS["binary"])
    with pytest.raises(ExportError, match=r"normalizer.* is a .*, which JSON can't"):
        estimator.export(tmp_path, format="pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_differs_does_not_appear(model, tmp_path, monkeypatch):
    monkeypatch.setattr(model._target, "answer", lambda found: ["maybe"] * 16)
    with pytest.raises(ExportError, match="gives other 'labels' than the model"):
        model.export(tmp_path, format="pt2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"format": "pickle"},
            "'format' must be one of 'onnx', 'pt2', 'aoti'; got 'pi",
        ),
        ({"weights": "beside"}, "'weights' is for format='onnx' only; got 'beside'"),
        ({"input_rank": 1}, "'input_rank' is for format='onnx' only; got 1"),
        ({"hashing": "client"}, "'hashing' is for format='onnx' only; got 'client'"),
    ],
)
def test_wrong_arguments(model, arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path, **{"format": "pt2"} | arguments)
    assert list(tmp_path.iterdir()) == []


def test_not_fitted(tmp_path):
    with pytest.raises(NotFittedError):
        skest.DNNClassifier().export(tmp_path, format="pt2")


# Trust, and damage


@pytest.mark.parametrize(
    "read",
    [
        load,
        to_estimator,
        lambda version: triton.write_config(version.parent),
        lambda version: load(version, verify=False),
    ],
)
def test_nothing_is_loaded_without_trust(version, read, monkeypatch):
    monkeypatch.setattr(torch.export, "load", pytest.fail)
    with pytest.raises(ArtifactError, match="takes trust_code=True.*'onnx' only"):
        read(version)


class Payload:
    """Runs code when it is unpickled, as `torch.export.load` unpickles parts of a file."""

    def __reduce__(self):
        return pytest.fail, ("code of the file ran",)


def with_payload(data):
    """Return a program that runs code when torch loads it."""
    changed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(changed, "w") as target,
    ):
        for entry in source.infolist():
            content = source.read(entry)
            if "sample_inputs" in entry.filename:
                content = pickle.dumps(Payload())
            target.writestr(entry, content)
    return changed.getvalue()


@pytest.mark.parametrize("verify", [True, False])
def test_digests_are_compared_before_torch_reads_a_file(version, verify):
    path = version / "model.pt2"
    data = with_payload(path.read_bytes())
    path.write_bytes(data)
    set_entry(version, "model.pt2", size=len(data))
    with pytest.raises(ArtifactError, match="its digest differs"):
        load(version, verify=verify, trust_code=True)


def test_a_digest_that_is_known(version):
    digest = hashlib.sha256((version / "manifest.json").read_bytes()).hexdigest()
    load(version, trust_code=True, trusted_manifest_sha256=digest)
    (version / "manifest.json").write_bytes(
        (version / "manifest.json").read_bytes() + b"\n"
    )
    with pytest.raises(ArtifactError, match="not a trusted one"):
        load(version, trust_code=True, trusted_manifest_sha256=digest)


def set_entry(version, name, **changes):
    path = version / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] |= changes
    path.write_text(json.dumps(manifest))


def rewrite(version, name, content):
    """Write a file whose digest fits."""
    (version / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    set_entry(version, name, size=len(content), sha256=digest)


def change_manifest(version, change):
    path = version / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def as_columns(version, program, schema="skest.program/1"):
    content = json.dumps({"schema": schema, "program": program}).encode()
    rewrite(version, "columns.json", content)


HOSTILE = {
    "no program": (
        lambda v: (v / "model.pt2").unlink(),
        "model.pt2' is missing",
    ),
    "cut": (
        lambda v: rewrite(v, "model.pt2", (v / "model.pt2").read_bytes()[:900]),
        "torch .* cannot load",
    ),
    "no archive": (lambda v: rewrite(v, "model.pt2", b"{}"), "torch .* cannot load"),
    "no columns": (
        lambda v: rewrite(v, "columns.json", b"{}"),
        "'columns.json' of .* describes no program: 'schema'",
    ),
    "newer columns": (lambda v: as_columns(v, {}, "skest.program/2"), "schema is 'ske"),
    "other class": (
        lambda v: as_columns(v, {"__skest__": "os:system", "state": {}}),
        "names 'os:system', which is no part of an estimator",
    ),
    "no encoder": (
        lambda v: as_columns(
            v,
            {"encoder": None, "outputs": [], "classes": {}},
        ),
        "describes no program",
    ),
    "wrong classes": (
        lambda v: as_columns(
            v, described({"encoder": 1, "outputs": [], "classes": {"x": 1}}, "x")
        ),
        "describes no program",
    ),
    "unknown format": (
        lambda v: change_manifest(v, lambda m: m["runtime"].update(format="pickle")),
        "one of the formats onnx, pt2, aoti; got 'pickle'",
    ),
    "no runtime": (
        lambda v: change_manifest(v, lambda m: m.update(runtime=[])),
        "must have a mapping .runtime.",
    ),
    "called a graph": (
        lambda v: change_manifest(v, lambda m: m["runtime"].update(format="onnx")),
        "lists no 'model.onnx'",
    ),
    "unknown output": (
        lambda v: change_manifest(
            v,
            lambda m: m["signatures"]["predict"]["outputs"]["logits"].update(
                tensor="z"
            ),
        ),
        "does not fit the signatures",
    ),
    "unknown input": (
        lambda v: change_manifest(
            v, lambda m: m["signatures"]["predict"]["inputs"]["city"].update(tensor="z")
        ),
        "'city' of signature 'predict' is no tensor",
    ),
    "link": (
        lambda v: (
            (v / "model.pt2").rename(v.parent / "a")
            and (v / "model.pt2").symlink_to(v.parent / "a")
        ),
        "must be a file of its own",
    ),
    "another machine": (
        lambda v: change_manifest(
            v, lambda m: m["runtime"].update(format="aoti", machine="Linux pdp11")
        ),
        "compiled for 'Linux pdp11', and this machine is .*format='pt2'",
    ),
}


@pytest.mark.parametrize(("damage", "message"), HOSTILE.values(), ids=[*HOSTILE])
def test_damage(version, damage, message):
    damage(version)
    with pytest.raises(ArtifactError, match=message):
        load(version, trust_code=True)


def test_random_damage(version):
    rng = np.random.default_rng(0)
    files = {path: path.read_bytes() for path in version.iterdir()}
    for path, content in files.items():
        if path.name == "manifest.json":
            continue
        for at in rng.integers(0, len(content), 10).tolist():
            damaged = bytearray(content)
            damaged[at] ^= 1 << rng.integers(0, 8)
            path.write_bytes(damaged)
            with pytest.raises(ArtifactError, match="its digest differs"):
                load(version, trust_code=True)
        path.write_bytes(content)
    load(version, trust_code=True)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"size": [1.0]}, r"features \['rooms', 'city', 'street'\] are missing"),
        (
            {"size": [np.inf], "rooms": [1], "city": ["a"], "street": ["b"]},
            "'size'.*inf",
        ),
        ({"size": [1.0] * 2, "rooms": [1], "city": ["a"], "street": ["b"]}, "rows"),
    ],
)
def test_wrong_rows(exported, table, message):
    with pytest.raises(ValueError, match=message):
        _loaded(exported).predict(table)


# Compiled programs


def test_without_a_compiler(model, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        ImportError, match="compiles C.., and there is no compiler. Inst"
    ):
        model.export(tmp_path, format="aoti")
    with pytest.raises(ImportError, match="or export with format='pt2'"):
        FinalExporter("final", format="aoti")
    with pytest.raises(ImportError, match="there is no compiler"):
        core().export(tmp_path, format="aoti")
    assert list(tmp_path.iterdir()) == []


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="format='aoti' needs a C++ compiler"
)


@needs_compiler
def test_recurrent_layers_are_not_compiled(tmp_path):
    estimator, target = MODELS["gru"]
    estimator.fit(X, TARGETS[target])
    with pytest.raises(
        ExportError, match="recurrent layers.*Export it with format='pt2'"
    ):
        estimator.export(tmp_path, format="aoti")


@needs_compiler
@pytest.mark.slow
def test_a_compiled_program(tmp_path):
    estimator, target = MODELS["wide & deep"]
    estimator.fit(X, TARGETS[target]).export(tmp_path, format="aoti")
    with pytest.raises(
        ArtifactError, match="format='aoti', and loading it can run any"
    ):
        load(tmp_path)
    loaded = load(tmp_path, trust_code=True)
    assert set(loaded.manifest["runtime"]) == {"format", "trusted_code", "machine"}
    expected = estimator.predict_proba(X)
    np.testing.assert_allclose(loaded.predict_proba(X), expected, atol=1e-5)
    assert_same_answers(estimator, loaded, X)
    for i in range(4):
        found = loaded.predict_proba(X[i : i + 1])[0]
        np.testing.assert_allclose(found, expected[i], atol=1e-5)
    rewrite(loaded.path, "model.pt2", b"no archive")
    with pytest.raises(ArtifactError, match="torch .* cannot load"):
        load(tmp_path, trust_code=True)
