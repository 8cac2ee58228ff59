# SPDX-License-Identifier: Apache-2.0
import contextlib
import functools
import json
import operator
import random

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save
from sklearn.callback import ProgressBar

import skest
from skest import feature_columns as fc
from skest.checkpoints import Checkpoint
from skest.cluster import ClusterSpec, TaskConfig
from skest.exceptions import ArtifactError, ExportError
from skest.export.declaration import declare, declare_core, to_estimator
from skest.export.plain_json import to_json
from skest.plain_state import to_plain
from tests.export import _models

ROWS = 80
X = pd.DataFrame(
    {
        "age": [25.0, 38.0, None, 44.0] * (ROWS // 4),
        "city": ["Rome", "Łódź", None, ""] * (ROWS // 4),
        "hours": np.arange(ROWS),
    }
)
FILES = {
    "columns": "columns.json",
    "weights": "weights.safetensors",
    "warmup": "warmup.json",
}
LABELS = np.array(["no", "yes"] * (ROWS // 2), dtype=object)
NUMBERS = np.linspace(0, 5, ROWS)
CITY = fc.categorical_column_with_vocabulary_list("city", num_oov_buckets=2)
COLUMNS = [
    fc.numeric_column("hours", normalizer="quantile"),
    fc.bucketized_column(
        fc.numeric_column("age", default_value="mean"), boundaries="quantiles:3"
    ),
    fc.piecewise_linear_column(fc.numeric_column("age"), "tree:4"),
    fc.periodic_column(fc.numeric_column("age", default_value=9.0), 3),
    fc.embedding_column(CITY, dimension=3),
    fc.indicator_column(fc.crossed_column(["city", "hours"], 50)),
]

MODELS = {
    "dnn": (skest.DNNClassifier((8,), feature_columns=COLUMNS), LABELS),
    "inferred": (skest.DNNClassifier((8,), class_weight="balanced"), LABELS),
    "numbers": (skest.DNNRegressor((8,), loss="huber"), NUMBERS),
    "linear": (skest.LinearClassifier(learning_rate=0.1), np.arange(ROWS) % 3),
    "poisson": (skest.LinearRegressor(loss="poisson"), NUMBERS),
    "dual": (skest.LinearClassifier(optimizer=skest.LinearSDCA(l2=2.0)), LABELS),
    "wide & deep": (skest.DNNLinearCombinedClassifier((8,)), LABELS == "yes"),
    "baseline": (skest.BaselineClassifier(), LABELS),
    "heads": (
        skest.MultiHeadEstimator((8,)),
        pd.DataFrame({"a": LABELS, "b": NUMBERS}),
    ),
    "several labels": (
        skest.DNNClassifier((8,)),
        np.stack([np.arange(ROWS) % 2, np.arange(ROWS) % 3 == 0], 1).astype(int),
    ),
}


def fitted(model, y=LABELS):
    return model.set_params(max_iter=2, random_state=0).fit(X, y)


def exported(directory, model):
    return model.export(directory)


def forged(version, **contents):
    """Replace files of a version, and their digests, as who forges them would."""
    manifest = json.loads((version / "manifest.json").read_text(encoding="utf-8"))
    for name, content in contents.items():
        name = FILES[name]
        manifest["files"].pop(name, None)
        (version / name).unlink(missing_ok=True)
        if content is not None:
            (version / name).write_bytes(content)
            manifest["files"][name] = _models.entry(content)
    if "warmup.json" not in manifest["files"]:
        manifest["parity"]["recorded"] = 0
    (version / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return version


@pytest.mark.parametrize(("model", "y"), MODELS.values(), ids=list(MODELS))
def test_round_trip(tmp_path, model, y):
    model = fitted(model, y)
    again = to_estimator(exported(tmp_path, model))
    assert type(again) is type(model)
    pd.testing.assert_frame_equal(
        pd.DataFrame(again.predict(X)), pd.DataFrame(model.predict(X))
    )
    if hasattr(model, "predict_proba"):
        found, expected = again.predict_proba(X), model.predict_proba(X)
        assert str(found) == str(expected)
    assert again.n_steps_ == model.n_steps_
    assert declare(again) == declare(model)


def test_goes_on_training(tmp_path):
    model = fitted(skest.DNNClassifier((8,)))
    again = to_estimator(exported(tmp_path / "1", model))
    again.partial_fit(X, LABELS)
    assert again.n_steps_ > model.n_steps_
    assert to_estimator(exported(tmp_path / "2", again)).score(X, LABELS) >= 0


@pytest.mark.parametrize("dtype", ["string", "int64"])
def test_words_of_a_file_come_with_the_model(tmp_path, dtype):
    words = {"string": ["Rome", "", "Łódź"], "int64": ["7", "3", "40"]}[dtype]
    (tmp_path / "words.txt").write_text("\n".join(words), encoding="utf-8")
    key = {"string": "city", "int64": "hours"}[dtype]
    column = fc.categorical_column_with_vocabulary_file(
        key, tmp_path / "words.txt", dtype=dtype, num_oov_buckets=2
    )
    columns = [fc.embedding_column(column, dimension=3), fc.indicator_column(column)]
    model = fitted(skest.DNNClassifier((4,), feature_columns=columns))
    version = exported(tmp_path / "version", model)
    (tmp_path / "words.txt").unlink()
    again = to_estimator(version)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert "words.txt" not in (version / "columns.json").read_text(encoding="utf-8")
    again.fit(X, LABELS)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(
        to_estimator(exported(tmp_path / "next", again)).predict(X), model.predict(X)
    )


def test_ftrl_goes_on_from_the_weights(tmp_path):
    model = fitted(skest.LinearClassifier(learning_rate=0.5))
    again = to_estimator(exported(tmp_path, model)).set_params(learning_rate=1e-6)
    again.partial_fit(X, LABELS)
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-4)


def test_sdca_can_not_go_on_without_its_dual_variables(tmp_path):
    rows = X.assign(id=[str(i) for i in range(ROWS)])
    sdca = skest.LinearSDCA(example_id_column="id")
    columns = [fc.numeric_column("hours", normalizer="standard")]
    model = skest.LinearClassifier(
        feature_columns=columns, optimizer=sdca, warm_start=True, max_iter=2
    ).fit(rows, LABELS)
    core = model.estimator_
    core.checkpoint = Checkpoint(1, core.checkpoint.variables)
    with pytest.raises(ValueError, match="no state of LinearSDCA"):
        model.fit(rows, LABELS)


def test_newest_version(tmp_path):
    first, _ = (exported(tmp_path, fitted(skest.DNNClassifier((n,)))) for n in (4, 8))
    assert to_estimator(tmp_path).hidden_units == (8,)
    assert to_estimator(first).hidden_units == (4,)


def test_needs_its_files_no_more(tmp_path):
    model = fitted(skest.DNNClassifier((8,)))
    version = exported(tmp_path, model)
    again = to_estimator(version)
    weights = version / "weights.safetensors"
    with weights.open("r+b") as file:  # in place, as some copy
        file.write(bytes(weights.stat().st_size))
        file.truncate(10)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    again.partial_fit(X, LABELS)


def test_versions_without_weights(tmp_path):
    version = exported(tmp_path, fitted(skest.LinearClassifier()))
    with pytest.raises(ArtifactError, match=r"no estimator.*weights.safetensors"):
        to_estimator(forged(version, weights=None))


def test_what_says_how_to_train_here_is_left_out(tmp_path):
    config = skest.RunConfig(model_dir=tmp_path / "here", log_step_count_steps=None)
    hooks = [skest.hooks.NanLossHook()]
    model = skest.LinearClassifier(
        max_iter=1,
        config=config,
        hooks=hooks,
        device=torch.device("cpu"),
        random_state=np.random.RandomState(0),
    )
    model.set_callbacks(ProgressBar()).fit(X, LABELS)
    assert str(tmp_path) not in declare(model).decode()
    again = to_estimator(exported(tmp_path / "1", model))
    assert (again.hooks, again.config, again.random_state) == ((), None, None)
    assert (again.device, hasattr(again, "_skl_callbacks")) == ("auto", False)
    again.fit(X, LABELS)


def test_parts_that_could_not_be_read_are_named(tmp_path):
    params = {"metric": skest.metrics.AUC()}
    with pytest.raises(ExportError, match=r"names 'skest.metrics:AUC', which is no"):
        declare_core(params, skest.RunConfig(), Checkpoint(1, {}))


def test_functions_of_the_user_are_named(tmp_path):
    column = fc.numeric_column("hours", normalizer=lambda x: x / 80)
    model = fitted(skest.LinearClassifier(feature_columns=[column]))
    with pytest.raises(ExportError, match=r"normalizer is a function, which JSON"):
        declare(model)


def test_estimators_of_others(tmp_path):
    class Mine(skest.LinearClassifier):
        pass

    with pytest.raises(ExportError, match="Only estimators of skest"):
        declare(fitted(Mine()))


def test_versions_without_a_description(tmp_path):
    described = _models.manifest()
    _models.write(tmp_path, None, {**described, "model": {"not_rebuilt": "no reason"}})
    with pytest.raises(
        ArtifactError, match=r"estimator again. no reason. It can be run"
    ):
        to_estimator(tmp_path)


def hostile(change):
    def make(described):
        change(described["state"])
        return described

    return make


LIST_COLUMN = "skest.feature_columns.vocabulary:VocabularyListColumn"
FILE_COLUMN = "skest.feature_columns.vocabulary_file:VocabularyFileColumn"


def object_of(name, **more):
    return {"__skest__": name, **more}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"schema": "x"}, "schema is 'x'"),
        (lambda d: d | {"estimator": "os:system"}, "'os:system', which is no part"),
        (lambda d: d | {"estimator": "skest.export.runtime:Model"}, "is no part"),
        (lambda d: d | {"estimator": ["x"]}, "is no part"),
        (
            lambda d: d | {"estimator": "skest.adapters.dnn:nothing"},
            "no class of skest",
        ),
        (lambda d: {"schema": d["schema"]}, "describes no estimator"),
        (
            hostile(
                lambda s: s.update(
                    hooks=object_of("skest.hooks.profiler:ProfilerHook", state={})
                )
            ),
            "no part of an estimator",
        ),
        (
            hostile(
                lambda s: s.update(
                    verbose=object_of("subprocess:Popen", items=["touch", "x"])
                )
            ),
            "'subprocess:Popen'",
        ),
        (
            hostile(
                lambda s: s.update(verbose=object_of("array", dtype="O", shape=[]))
            ),
            "dtype object",
        ),
        (
            hostile(lambda s: s.update(verbose=object_of("array", dtype="<f8"))),
            "describes no estimator",
        ),
        (
            hostile(
                lambda s: s.update(
                    verbose=object_of("array", dtype="<f8", shape=[2], base64="AA==")
                )
            ),
            "describes no estimator",
        ),
        (
            hostile(
                lambda s: s.update(
                    feature_columns=[object_of(FILE_COLUMN, state={"key": "city"})]
                )
            ),
            "names a vocabulary file",
        ),
        (hostile(lambda s: s["_core"].update(config=None)), "describes no estimator"),
        (hostile(lambda s: s.update(_params_in_fit=[])), "describes no estimator"),
    ],
)
def test_hostile_descriptions_are_refused(tmp_path, change, message):
    model = fitted(skest.LinearClassifier())
    described = json.dumps(change(json.loads(declare(model)))).encode()
    with pytest.raises(ArtifactError, match=message):
        to_estimator(forged(exported(tmp_path, model), columns=described))


def test_no_description_says_where_to_write_or_whom_to_ask(tmp_path):
    victim = tmp_path / "victim"
    cluster = ClusterSpec({"chief": ["far:1"], "ps": ["far:2"]})
    task = TaskConfig("chief", cluster=cluster)
    config = to_json(to_plain(skest.RunConfig(model_dir=victim, task=task)), "config")
    model = fitted(skest.LinearClassifier())
    described = json.loads(declare(model))
    state = described["state"]
    for parameters in (state, state["_params_in_fit"]):
        parameters.update(config=config, warm_start_from=str(victim))
    state["_core"]["config"] = config
    state["model_dir_"] = str(victim)
    version = exported(tmp_path / "versions", model)
    again = to_estimator(forged(version, columns=json.dumps(described).encode()))
    assert (again.config, again.warm_start_from, again.model_dir_) == (None, None, None)
    core = again.estimator_.config
    assert (core.model_dir, core.task) == (None, TaskConfig())
    again.partial_fit(X, LABELS).fit(X, LABELS)
    assert not victim.exists()


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_descriptions_that_are_no_json(tmp_path, content):
    version = exported(tmp_path, fitted(skest.LinearClassifier()))
    with pytest.raises(ArtifactError, match="describes no estimator"):
        to_estimator(forged(version, columns=content))


def test_weights_that_are_no_safetensors(tmp_path):
    version = exported(tmp_path, fitted(skest.LinearClassifier()))
    with pytest.raises(ArtifactError, match="describes no estimator"):
        to_estimator(forged(version, weights=b"x" * 20))


def test_other_weights(tmp_path):
    version = exported(tmp_path, fitted(skest.LinearClassifier()))
    with pytest.raises(ArtifactError, match="missing in the checkpoint"):
        to_estimator(forged(version, weights=save({})))


def places(value, path=()):
    """Yield where the values of a JSON document are."""
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def damaged(described, draw):
    """Return a description with another value, or none, in a place that is drawn."""
    described = json.loads(described)
    *path, last = draw.choice(list(places(described["state"])))
    owner = functools.reduce(operator.getitem, path, described["state"])
    if draw.random() < 0.2:
        del owner[last]
    else:
        owner[last] = draw.choice(
            [None, -1, 0, 3, 1.5, True, "x", "", [], {}, ["a"], {"a": 1}, [[1]]]
        )
    return json.dumps(described).encode()


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not_recorded"])
@pytest.mark.parametrize("name", ["dnn", "linear", "poisson", "wide & deep", "heads"])
def test_forged_descriptions_are_refused_or_work(tmp_path, name, recorded):
    """What is let pass predicts and trains; only wrong values are refused later."""
    model, y = MODELS[name]
    model = fitted(model, y)
    version, described = exported(tmp_path, model), declare(model)
    draw = random.Random(name)
    if not recorded:
        forged(version, warmup=None)
    passed = 0
    for _ in range(60):
        forged(version, columns=damaged(described, draw))
        try:
            again = to_estimator(version)
        except ArtifactError:
            continue
        passed += 1
        for call in (lambda e: e.predict(X), lambda e: e.partial_fit(X, y)):
            with contextlib.suppress(ValueError):
                call(again)
    assert 0 < passed < 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(n_iter_="two"), "counts .'two'"),
        (lambda s: s.update(loss_curve_=[True]), "counts .True"),
        (lambda s: s.update(feature_names_in_=["a", "a", "b"]), "and counts others"),
        (lambda s: s.update(l2=-1.0), "'l2' parameter of LinearClassifier"),
        (lambda s: s.update(feature_columns=[]), "non-empty list of feature columns"),
        (
            lambda s: s["feature_columns_"]["state"].update(columns_=[["a", 1.5]]),
            "no attribute",
        ),
        (lambda s: s["_target"]["state"].pop("classes"), "no attribute 'classes'"),
        (lambda s: s.update(_reads_array="x"), "'_reads_array' is 'x'"),
        (
            lambda s: s["_core"]["checkpoint"]["state"].update(global_step="1"),
            "step is '1'",
        ),
        (
            lambda s: s["feature_columns"].append(
                object_of(LIST_COLUMN, state={"vocabulary_": {"a": 0, "b": None}})
            ),
            "ids 0, 1, 2",
        ),
    ],
)
def test_what_only_a_use_would_find_is_found_before(tmp_path, change, message):
    column = fc.numeric_column("age", default_value=1.0)
    model = fitted(skest.LinearClassifier(feature_columns=[column]))
    described = json.loads(declare(model))
    change(described["state"])
    version = forged(exported(tmp_path, model), columns=json.dumps(described).encode())
    with pytest.raises(ArtifactError, match=f"describes no estimator.*{message}"):
        to_estimator(version)


@pytest.mark.slow
def test_estimators_that_were_exported_unverified(tmp_path):
    numbers = np.zeros((6, 2**16 + 1))
    for model, rows in [
        (fitted(MODELS["dnn"][0]), X),
        (skest.LinearRegressor(max_iter=1).fit(numbers, numbers[:, 0]), numbers),
    ]:
        version = model.export(tmp_path, verify=False)
        assert not (version / "warmup.json").exists()
        np.testing.assert_array_equal(
            to_estimator(version).predict(rows), model.predict(rows)
        )
