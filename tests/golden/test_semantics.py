# SPDX-License-Identifier: Apache-2.0
"""Training, evaluation, checkpoints, early stopping and exports against tf.estimator."""

import builtins
import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import skest
from skest import feature_columns as fc
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import read_eval_results
from skest.core.files import list_versions
from skest.export import BestExporter, Exporter, FinalExporter, LatestExporter
from skest.export import load as load_export
from skest.heads import MultiClassHead
from skest.inputs import ArrayDataset
from skest.metrics import Mean
from skest.networks import DNN
from tests._models import model_fn, table_fn
from tests.golden._cases import (
    account_for_all_cases,
    cases,
    check_each,
    decode,
    groups,
    refuse_unread,
)
from tests.golden._counting import counting_estimator, counting_input
from tests.golden.test_heads import make_head

NOT_APPLICABLE = {
    "checkpoint/files": "checkpoints are directories of safetensors and JSON",
    "checkpoint/disabled": (
        "None for both intervals is the default of 600 s, 0 means at the end only; "
        "training without any checkpoint would be lost"
    ),
    "canned/optimizer_instance_train_twice": (
        "a defect of Keras' optimizers; here every call builds fresh ones"
    ),
}


NOT_FITTED = {"type": "NotFittedError"}
EMPTY = "an evaluation of nothing is an error; zeros look like a result"
AT_END = "no hook is called for a batch that is not there"
ALL = "the list of checkpoints is complete, also if all are kept"
TYPE = "a wrong type is a TypeError, as everywhere in skest"
FINAL = "the final export takes place however training ends (DESIGN 2.1)"
UNTRAINED = "without a checkpoint there is nothing to evaluate (DESIGN 2.1)"

# What differs on purpose: the reason, and what is expected in place of TensorFlow's.
DIFFERENT = {
    **{
        f"{name}/untrained": (
            UNTRAINED,
            {"ops/0/error": NOT_FITTED, "ops/0/model_fn_modes_called": []},
        )
        for name in ("evaluate", "predict")
    },
    "evaluate/empty_input": (
        EMPTY,
        {"ops/1/error": {"type": "ValueError"}, "ops/1/model_fn_modes_called": []},
    ),
    "train/hook_call_order_input_exhausted": (
        AT_END,
        {"ops/0/hook_calls": ["begin", *["before_run", "after_run"] * 2, "end"]},
    ),
    "evaluate/hooks": (
        AT_END,
        {"ops/1/hook_calls": ["begin", *["before_run", "after_run"] * 3, "end"]},
    ),
    "evaluate/checkpoint_path_missing": (
        "the checkpoint is looked for before the model is built",
        {"ops/1/model_fn_modes_called": []},
    ),
    "predict/empty_input": (
        "the model is built for the first batch",
        {"ops/1/model_fn_modes_called": []},
    ),
    **{
        f"checkpoint/keep_max_{n}": (
            ALL,
            {"checkpoint_state/all": [f"model.ckpt-{i}" for i in range(0, 13, 2)]},
        )
        for n in (0, None)
    },
    "exporters/final_no_final_when_input_ends_early": (
        FINAL,
        {
            "run_1/export_calls [name, step, is_final, exported]/2": [
                *["final", 25, True, True]
            ],
            "run_1/kept_export_steps/final": [25],
            "run_1/returned_export_results_is_none": [False],
        },
    ),
    "exporters/final_max_steps_none": (
        FINAL,
        {
            "run_1/export_calls [name, step, is_final, exported]/4": [
                *["final", 25, True, True]
            ],
            "run_1/export_calls [name, step, is_final, exported]/5": [
                *["latest", 25, True, True]
            ],
            "run_1/kept_export_steps/final": [25],
            "run_1/returned_export_results_is_none": [False, False],
        },
    ),
    "exporters/best_second_run_new_object": (
        "BestExporter goes on where it was (DESIGN 2.1)",
        {
            "run_2/export_calls [name, step, is_final, exported]/0": [
                *["best", 50, False, False]
            ],
            "run_2/kept_export_steps/best": [10, 20, 40],
        },
    ),
    "hooks/stop_at_step_already_past": (
        "no step is taken beyond the last one",
        {"final_global_step": 4},
    ),
    "run_config/err_seed_float": (TYPE, {"error/type": "TypeError"}),
    "tf_config/err_json_list": (TYPE, {"error/type": "TypeError"}),
    "tf_config/err_not_json": (
        "a ValueError that names the variable, as for all else that is wrong in it",
        {"error/type": "ValueError"},
    ),
    "construct/err_config_type": (TYPE, {"error/type": "TypeError"}),
    "construct/err_model_fn_returns_int": (TYPE, {"error/type": "TypeError"}),
    "warm_start/err_missing_checkpoint": (
        "a path without a checkpoint is a ValueError, as for evaluate",
        {"error/type": "ValueError"},
    ),
    "estimator_spec/predict_tensor": (
        "predictions have names",
        {"error": {"type": "TypeError"}},
    ),
    "estimator_spec/err_mode": (
        "an unknown mode is refused",
        {"error": {"type": "ValueError"}},
    ),
}


def expected_of(case):
    """What TensorFlow gave, or what is better."""
    expected = copy.deepcopy(case["expected"])
    for path, value in DIFFERENT.get(case["id"], ("", {}))[1].items():
        *parents, last = [int(p) if p.isdecimal() else p for p in path.split("/")]
        owner = expected
        for part in parents:
            owner = owner[part]
        owner[last] = value
    return expected


def of(prefix):
    found = cases("semantics", NOT_APPLICABLE)
    return [case for case in found if case["id"].startswith(f"{prefix}/")]


def raises(error):
    """Expect an error of the type; texts are skest's own."""
    name = error["type"]
    return pytest.raises(
        getattr(skest.exceptions, name, None) or getattr(builtins, name)
    )


GROUPS = [
    *["train", "evaluate", "predict", "checkpoint", "early_stopping", "exporters"],
    *[
        "run_config",
        "tf_config",
        "construct",
        "estimator_spec",
        "specs",
        "hooks",
        "add_metrics",
    ],
    "saved_model",
    "warm_start",  # run by test_warm_start.py
]


def test_every_case_is_run_or_listed():
    run = [case for group in GROUPS for case in of(group)]
    account_for_all_cases("semantics", run, NOT_APPLICABLE)
    assert set(DIFFERENT) <= {case["id"] for case in run}
    assert all(reason for reason, _ in DIFFERENT.values())


# Calls of an Estimator


class CallHook(skest.hooks.Hook):
    """Notes calls under their names in TensorFlow; stops after a step if asked to."""

    def __init__(self, stop_at=None):
        self.calls, self.stop_at = [], stop_at

    def begin(self, run):
        self.calls.append("begin")

    def before_step(self, run):
        self.calls.append("before_run")

    def after_step(self, run, loss):
        self.calls.append("after_run")
        if run.global_step == self.stop_at:
            run.request_stop("as asked")

    def end(self, run):
        self.calls.append("end")


class CallListener(skest.hooks.CheckpointListener):
    def __init__(self):
        self.calls = []

    def begin(self, run):
        self.calls.append(["begin"])

    def before_save(self, run):
        self.calls.append(["before_save", run.global_step])

    def after_save(self, run):
        self.calls.append(["after_save", run.global_step])

    def end(self, run):
        self.calls.append(["end", run.global_step])


class Calls:
    """Performs the operations of a case on an Estimator."""

    def __init__(self, model_dir, config):
        self.model_dir, self.config, self.modes = model_dir, config, []
        self.new_estimator()

    def new_estimator(self):
        config = {k: self.config[k] for k in ("run_config", "metric_by_step")}
        self.estimator = counting_estimator(self.model_dir, modes=self.modes, **config)
        return {}

    def train(self, batches=None, hook_stop_at=None, log_hook=None, listener=None, **n):
        hook, saving = CallHook(hook_stop_at), CallListener()
        result = self.estimator.train(
            counting_input(batches), [hook], saving_listeners=[saving], **n
        )
        return {
            "returns_self": result is self.estimator,
            "hook_calls": hook.calls,
            "listener_calls": saving.calls,
        }

    def path(self, at_step):
        return None if at_step is None else self.model_dir / f"ckpt-{at_step}"

    def evaluate(self, steps=None, batches=3, at_step=None, log_hook=None):
        hook = CallHook()
        result = self.estimator.evaluate(
            counting_input(batches), steps, [hook], self.path(at_step)
        )
        dirs = [path.name for path in self.model_dir.glob("eval*")]
        # Keys are sorted, but for TensorFlow's step; a dictionary compares without order.
        return {"result": result, "eval_dirs": dirs, "hook_calls": hook.calls}

    def predict(self, batches=2, at_step=None, with_labels=False, **options):
        predictions = self.estimator.predict(
            counting_input(batches, labels=with_labels),
            checkpoint_path=self.path(at_step),
            **options,
        )
        return {"result": [self.prediction(p) for p in predictions]}

    @staticmethod
    def prediction(values):
        return {key: np.reshape(value, (-1, 1)) for key, value in values.items()}

    def variables(self):
        names = self.estimator.get_variable_names()
        values = {n: float(self.estimator.get_variable_value(n)) for n in names}
        return {"names": names, **values}

    def latest_checkpoint(self):
        return {"result": in_tensorflow(self.estimator.latest_checkpoint().name)}


def in_tensorflow(name):
    return name.replace("ckpt-", "model.ckpt-")


def on_disk(model_dir):
    found = (re.fullmatch(r"ckpt-(\d+)", path.name) for path in model_dir.glob("*"))
    return sorted(int(match[1]) for match in found if match)


def compare_predictions(got, expected):
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in decode(theirs).items():
            np.testing.assert_array_equal(mine[name], value.reshape(-1, 1))
            assert mine[name].dtype == value.dtype


@groups([c for g in ("train", "evaluate", "predict", "checkpoint") for c in of(g)])
def test_calls(cases, tmp_path):
    check_each(cases, check_calls, folder=tmp_path)


def check_calls(case, tmp_path):
    calls, expected = Calls(tmp_path, case["config"]), expected_of(case)
    for (name, options), outcome in zip(
        case["config"]["ops"], expected["ops"], strict=True
    ):
        calls.modes.clear()
        left = dict(outcome)
        assert left.pop("op") == name
        if "error" in left:
            with raises(left.pop("error")):
                getattr(calls, name)(**options)
            for of_a_result in ("result", "keys_in_order", "eval_dirs"):
                left.pop(of_a_result, None)
            got = {}
        else:
            got = getattr(calls, name)(**options)
        got["global_step_after"] = calls.estimator.checkpoint and (
            calls.estimator.checkpoint.global_step
        )
        got["checkpoints_on_disk"] = on_disk(tmp_path)
        got["model_fn_modes_called"] = list(calls.modes)
        if name == "predict" and "result" in left:
            compare_predictions(got.pop("result"), left.pop("result"))
        if name == "evaluate" and "result" in left:
            assert set(left.pop("keys_in_order")) == set(left["result"])
            left["result"] = pytest.approx(left["result"])
        if "hook_calls" in left:
            left["hook_calls"] = [
                call for call in left["hook_calls"] if call != "after_create_session"
            ]
        assert {key: got[key] for key in left} == left
    compare_state(tmp_path / "checkpoint", expected["checkpoint_state"])


def compare_state(path, expected):
    if expected is None:
        assert not path.exists()
        return
    state = json.loads(path.read_text())
    assert in_tensorflow(state["latest"]) == expected["latest"]
    assert [in_tensorflow(entry["name"]) for entry in state["all"]] == expected["all"]


# train_and_evaluate


class Spy(Exporter):
    """Notes what another exporter is asked, and whether it exported."""

    def __init__(self, exporter, calls):
        super().__init__(exporter.name)
        self.exporter, self.calls = exporter, calls

    def export(self, eval_result, is_the_final_export, **arguments):
        path = self.exporter.export(
            eval_result=eval_result,
            is_the_final_export=is_the_final_export,
            **arguments,
        )
        call = [self.name, eval_result["global_step"], is_the_final_export]
        self.calls.append([*call, path is not None])
        return path


def m_higher(best_eval_result, current_eval_result):
    return current_eval_result["m"] > best_eval_result["m"]


def exporter_of(config):
    kinds = {k.__name__: k for k in (BestExporter, FinalExporter, LatestExporter)}
    left = dict(config)
    kind = kinds[left.pop("exporter")]
    if "compare_fn" in left:
        left["compare_fn"] = {"m_higher": m_higher}[left["compare_fn"]]
    # When they export is at stake, and checkpoints are the quickest to write.
    return kind(**left, format="checkpoint")


def run_exporters(config, model_dir, exporters, max_steps):
    estimator = counting_estimator(
        model_dir,
        {"save_checkpoints_steps": config["save_checkpoints_steps"]},
        config["metric_by_step"],
    )
    calls = []
    metrics, exports = skest.train_and_evaluate(
        estimator,
        skest.TrainSpec(counting_input(config["train_batches"]), max_steps),
        skest.EvalSpec(
            counting_input(2),
            exporters=[Spy(exporter_of(e), calls) for e in exporters],
            throttle_secs=config["throttle_secs"],
        ),
    )
    kept = {
        e["name"]: [
            json.loads((version / "manifest.json").read_text())["global_step"]
            for version in list_versions(model_dir / "export" / e["name"])
        ]
        for e in exporters
    }
    return {
        "export_calls [name, step, is_final, exported]": calls,
        "kept_export_steps": kept,
        "returned_metrics": pytest.approx(metrics),
        "returned_export_results_is_none": [path is None for path in exports],
        "final_global_step": estimator.checkpoint.global_step,
    }


def test_exporters(tmp_path):
    check_each(of("exporters"), check_exporters, folder=tmp_path)


def check_exporters(case, tmp_path):
    config, expected = case["config"], expected_of(case)
    if "error" in expected:
        if config.get("compare_fn"):
            config = {"compare_fn": lambda a, b: True}
        with raises(expected["error"]):
            BestExporter(**config)
        return
    got = {
        "run_1": run_exporters(
            config, tmp_path, config["exporters"], config["max_steps"]
        )
    }
    if config["second_run"]:
        got["run_2"] = run_exporters(config, tmp_path, *config["second_run"])
    assert got == expected


def test_early_stopping(tmp_path):
    check_each(of("early_stopping"), check_early_stopping, folder=tmp_path)


def check_early_stopping(case, tmp_path):
    left = dict(case["config"])
    estimator = counting_estimator(
        tmp_path,
        {"save_checkpoints_steps": left.pop("save_checkpoints_steps")},
        left.pop("metric_by_step"),
    )
    arguments = left.pop("hook")
    make = getattr(skest.hooks, arguments["hook"])
    hook = make(estimator, **{k: v for k, v in arguments.items() if k != "hook"})
    metrics, _ = skest.train_and_evaluate(
        estimator,
        skest.TrainSpec(counting_input(), left.pop("max_steps"), hooks=[hook]),
        skest.EvalSpec(counting_input(2), throttle_secs=0),
    )
    refuse_unread(left, case["id"])
    results = read_eval_results(estimator.eval_dir())
    expected = expected_of(case)
    # Nothing is added to the checkpoint, so the hook can be added to an older one.
    assert expected.pop("stop_variable_in_checkpoint")
    assert estimator.get_variable_names() == ["global_step", "w"]
    m = {str(step): result["m"] for step, result in results.items()}
    assert {
        "final_global_step": estimator.checkpoint.global_step,
        "evaluated_steps": list(results),
        "metric_m": pytest.approx(m),
        "returned_metrics_global_step": metrics["global_step"],
    } == expected


# Hooks, metrics, arguments


def test_hooks():
    check_each(of("hooks"), check_hooks)


def check_hooks(case):
    left, expected = dict(case["config"]), expected_of(case)
    estimator = counting_estimator(None)
    if case["component"] == "InMemoryEvaluatorHook":
        steps = left.pop("train_steps")
        hook = skest.hooks.InMemoryEvaluatorHook(estimator, counting_input(2), **left)
        estimator.train(counting_input(), [hook], steps=steps)
        assert list(hook.results) == expected["evaluated_steps"]
        m = [result["m"] for result in hook.results.values()]
        np.testing.assert_allclose(m, expected["metric_m"], rtol=1e-6)
    else:
        estimator.train(counting_input(), steps=left.pop("trained_before"))
        estimator.train(counting_input(), [skest.hooks.StopAtStepHook(**left)])
        assert estimator.checkpoint.global_step == expected["final_global_step"]


def test_add_metrics():
    check_each(of("add_metrics"), check_add_metrics)


def check_add_metrics(case):
    metric = case["config"]["metric"]

    def metric_fn(features):
        if metric == "m = -7":
            return {"m": (Mean(), torch.full((1,), -7.0))}
        return {"ten_x_mean": (Mean(), 10 * features)}

    assert metric in ("m = -7", "mean(10*x)")
    estimator, step = counting_estimator(None), case["expected"]["global_step"]
    estimator.checkpoint = Checkpoint(int(step), {"w": torch.tensor(step)})
    results = skest.add_metrics(estimator, metric_fn).evaluate(counting_input(3))
    assert results == pytest.approx(case["expected"])


SAME_FIELDS = {
    "model_dir": "model_dir",
    "tf_random_seed": "random_seed",
    "save_checkpoints_steps": "save_checkpoints_steps",
    "save_checkpoints_secs": "save_checkpoints_secs",
    "keep_checkpoint_max": "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours": "keep_checkpoint_every_n_hours",
    "log_step_count_steps": "log_step_count_steps",
    "session_creation_timeout_secs": "session_creation_timeout_secs",
    "experimental_max_worker_delay_secs": "max_worker_delay_secs",
}
NO_FIELDS = {
    "save_summary_steps": "summaries come with a later piece of part 6",
    "protocol": "of TensorFlow's sessions",
    "checkpoint_save_graph_def": "there is no graph to save",
}


def test_run_config():
    check_each(of("run_config"), check_run_config)


def check_run_config(case):
    expected = expected_of(case)
    args = {SAME_FIELDS[name]: v for name, v in case["config"]["args"].items()}

    def make():
        config = skest.RunConfig(**args)
        changes = case["config"]["replace"]
        return config if changes is None else config.replace(**changes)

    if "error" in expected:
        with raises(expected["error"]):
            make()
        return
    config = make()
    refuse_unread(
        {k: v for k, v in expected.items() if k not in {**SAME_FIELDS, **NO_FIELDS}},
        case["id"],
    )
    for theirs, mine in SAME_FIELDS.items():
        assert getattr(config, mine) == expected[theirs], theirs


CLUSTER_PROPERTIES = [
    *["task_type", "task_id", "is_chief", "num_ps_replicas", "num_worker_replicas"],
    *["evaluation_master", "global_id_in_cluster", "model_dir", "service"],
]


@pytest.mark.parametrize("variable", ["TF_CONFIG", "SKEST_CONFIG"])
def test_tf_config(variable, monkeypatch):
    def check(case):
        with monkeypatch.context() as patch:
            check_tf_config(case, variable, patch)

    check_each(of("tf_config"), check)


def check_tf_config(case, variable, monkeypatch):
    expected, text = expected_of(case), case["config"]["TF_CONFIG"]
    if text is not None:
        monkeypatch.setenv(variable, text)
    args = case["config"].get("args", {})
    if "error" in expected:
        with raises(expected["error"]):
            skest.RunConfig(**args)
        return
    config = skest.RunConfig(**args)
    expected.pop("session_device_filters")  # there are no sessions
    # An address has no scheme: there is no gRPC.
    assert config.master == expected.pop("master").removeprefix("grpc://")
    assert config.cluster_spec.as_dict() == expected.pop("cluster_spec")
    assert {name: getattr(config, name) for name in CLUSTER_PROPERTIES} == expected


def returns(value):
    return lambda features, labels, mode: value


def train_with(input_fn, function=model_fn):
    skest.Estimator(function).train(input_fn, steps=1)


CONSTRUCT = {
    "err_config_type": lambda: skest.Estimator(model_fn, config="abc"),
    "err_model_fn_extra_arg": lambda: skest.Estimator(
        lambda features, labels, mode, foo: 0
    ),
    "err_model_fn_no_features": lambda: skest.Estimator(lambda labels, mode: 0),
    "err_model_fn_returns_int": lambda: train_with(table_fn(), returns(3)),
    "err_input_fn_three_tuple_dataset": lambda: train_with(lambda: [(1, 2, 3)]),
    "err_input_fn_bad_arg": lambda: train_with(lambda foo: []),
}


def test_construction():
    check_each(of("construct"), check_construction)


def check_construction(case):
    name, expected = case["id"].partition("/")[2], expected_of(case)
    if "error" in expected:
        with raises(expected["error"]):
            CONSTRUCT[name]()
    elif name == "model_dir_from_config":
        config = skest.RunConfig(model_dir=case["config"]["config_model_dir"])
        assert skest.Estimator(model_fn, config=config).model_dir == Path(
            expected["model_dir"]
        )
    else:
        assert case["config"]["input_fn_args"] == ["mode", "params", "config"]
        seen = {}

        def input_fn(mode, params, config):
            seen.update(mode=mode, params=params, config=type(config).__name__)
            return table_fn()()

        skest.Estimator(model_fn, params={"batch": 3}).train(input_fn, steps=1)
        assert seen == expected


def spec_of(case):
    """The specification of a case; losses and predictions are functions here."""
    network = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loss = {
        "train_loss_shape_1": lambda y, z, x: z.sum().reshape(1),
        "train_err_loss_vector": lambda y, z, x: torch.zeros(2),
        "err_python_loss": lambda y, z, x: 1.0,
    }.get(case, lambda y, z, x: z.sum())
    return {
        "network": network,
        "loss": None if case.endswith("err_no_loss") else loss,
        "optimizer": None if case == "train_err_no_train_op" else optimizer,
        "predictions": (lambda z: z)
        if case == "predict_tensor"
        else lambda z: {"z": z},
        "export_outputs": 3 if case == "predict_err_export_not_dict" else None,
    }


def test_estimator_spec():
    check_each(of("estimator_spec"), check_estimator_spec)


def check_estimator_spec(case):
    config, expected = case["config"], expected_of(case)
    fields = spec_of(config["case"])
    x = np.ones((2, 1), dtype=np.float32)

    def input_fn():
        return ArrayDataset(x, x[:, 0])

    def run():
        mode = config["mode"]
        estimator = skest.Estimator(
            lambda features, labels, mode: skest.EstimatorSpec(config["mode"], **fields)
        )
        estimator.checkpoint = Checkpoint(0, fields["network"].state_dict())
        if mode == "eval":
            return estimator.evaluate(input_fn)
        if mode == "infer":
            return next(estimator.predict(input_fn))
        return estimator.train(input_fn)

    if "error" in expected:
        with raises(expected["error"]):
            run()
    else:
        assert run()


def test_specs():
    check_each(of("specs"), check_specs)


def check_specs(case):
    name, config = case["id"].partition("/")[2], case["config"]
    expected = expected_of(case)
    if name == "train_defaults":
        spec = skest.TrainSpec(table_fn())
        assert spec.max_steps == expected.pop("max_steps")
        assert {key: list(getattr(spec, key)) for key in expected} == expected
        return
    with raises(expected["error"]):
        if name == "err_te_eval_spec_type":
            skest.train_and_evaluate(
                skest.Estimator(model_fn), skest.TrainSpec(table_fn()), None
            )
        elif name == "err_train_input_fn":
            skest.TrainSpec(**config)
        else:
            skest.EvalSpec(table_fn(), **config)


def exported_by_core(config, base):
    """Export an Estimator of the feature columns and the head of a case."""
    left = {key: v for key, v in config.items() if key != "feature_columns"}
    columns = fc.FeatureColumns(
        [
            fc.numeric_column(c["key"], c.get("shape", 1))
            for c in config["feature_columns"]
            if c["kind"] == "numeric"
        ]
    )
    assert len(columns.active) == len(config["feature_columns"])
    hidden = left.pop("hidden_units", None)
    if left.pop("class") == "LinearClassifier":
        head = MultiClassHead(**left)
    else:
        head = make_head(left["head"])

    def model_fn(features, labels, mode):
        size = head.logits_dimension
        network = (
            fc.LinearFeatures(columns, size)
            if hidden is None
            else DNN(fc.DenseFeatures(columns), hidden, size)
        )
        return head.create_estimator_spec(
            features, mode, network, encode=columns.encode
        )

    X = {"x": np.ones(2, np.float32), "z": np.ones((2, 2), np.float32)}
    spec = model_fn(X, None, "infer")
    estimator = skest.Estimator(model_fn)
    estimator.checkpoint = Checkpoint(0, spec.network.state_dict())
    return estimator.export(base, example=X)


def test_export(tmp_path):
    check_each(of("saved_model"), check_export, folder=tmp_path)


def check_export(case, tmp_path):
    if "error" in case["expected"]:
        with raises(case["expected"]["error"]):
            skest.Estimator(model_fn, model_dir=tmp_path).export(tmp_path / "export")
        return
    pytest.importorskip("onnx")
    found = load_export(exported_by_core(case["config"], tmp_path)).signatures
    # TensorFlow has the signatures of classes for models that parse tf.Example only.
    expected = case["expected"]["signatures"]
    assert found.keys() == expected["parsing"].keys()
    for name, signature in expected["parsing"].items():
        assert described(found[name]["outputs"]) == signature["outputs"]
        assert described(found[name]["inputs"]) == expected["raw"]["predict"]["inputs"]


def described(tensors):
    """Types and shapes as the file has them; the answers in `y`'s type are skest's."""
    return {
        name: [info["dtype"], info["shape"]]
        for name, info in tensors.items()
        if name.rpartition("/")[2] != "labels"
    }
