# SPDX-License-Identifier: Apache-2.0
"""Canned estimators against tf.estimator: predictions, evaluation, loss and weights.

The model functions run in a core Estimator from the given initial weights, on the given
batches in their order.
"""

import re
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skest import Estimator, RunConfig
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.canned.linear import baseline_model_fn, linear_model_fn
from skest.checkpoints.checkpoint import Checkpoint
from skest.exceptions import NanLossDuringTrainingError
from skest.hooks import Hook
from tests.golden._auc import as_tensorflow
from tests.golden._cases import (
    account_for_all_cases,
    cases,
    check_each,
    decode,
    groups,
    load,
    refuse_unread,
)
from tests.golden._optimizers import keras_optimizer
from tests.golden.test_feature_columns import build, farmhash  # noqa: F401 (a fixture)
from tests.golden.test_heads import make_head

RTOL, ATOL = 1e-4, 2e-5

NOT_APPLICABLE = {
    "dnn/opt_adam": "Adam of row tables is lazy here: rows that a batch does not touch "
    "keep their moments (the table k_embedding); see test_adam_with_dense_gradients",
    "dnn/opt_rmsprop_momentum": "torch's centered RMSprop adds epsilon outside the root; "
    "see tests/golden/test_optimizers.py",
    "err/combined_no_hidden_units": "dnn_hidden_units has a default here; () is allowed",
    "err/bad_optimizer_name": "names of optimizers are taken in any case here",
}


def columns(specs):
    """The columns of a model, or None if the original was given none."""
    return None if specs is None else fc.FeatureColumns([build(spec) for spec in specs])


def optimizer(spec, rate_of_names):
    """The optimizer of a definition, or of a name with the rate that the class gives it.

    A definition without a rate, and a name where the class has none (None), have Keras'.
    """
    return keras_optimizer(spec, rate_of_names if isinstance(spec, str) else None)


def dropout(share, config):
    if share and config["train_steps"]:
        raise NotImplementedError("Training with dropout is random.")
    return share or 0.0


def head(left, is_v1=False):
    """Take what concerns the head out of a configuration, and make it."""
    kind = re.search("(Classifier|Regressor|Estimator)$", left.pop("class"))[0]
    if kind == "Estimator":
        return make_head(left.pop("head"))
    # The first version of the canned estimators summed over the batch.
    default = "sum" if is_v1 else "sum_over_batch_size"
    arguments = {
        "weight_column": left.pop("weight_column", None),
        "loss_reduction": left.pop("loss_reduction", default),
    }
    if kind == "Regressor":
        arguments["label_dimension"] = left.pop("label_dimension", 1)
        return make_head({"head": "RegressionHead", **arguments})
    arguments["label_vocabulary"] = left.pop("label_vocabulary", None)
    n_classes = left.pop("n_classes", 2)
    if n_classes == 2:
        return make_head({"head": "BinaryClassHead", **arguments})
    return make_head({"head": "MultiClassHead", "n_classes": n_classes, **arguments})


def with_tensorflow_auc(function):
    """Let evaluation estimate areas as the original does."""

    def model_fn(features, labels, mode):
        spec = function(features, labels, mode)
        return replace(spec, eval_metrics=as_tensorflow(spec.eval_metrics))

    return model_fn


def combined_arguments(left, is_v1):
    linear = columns(left.pop("linear_feature_columns", None))
    wide = left.pop("linear_optimizer", "Ftrl")
    rate = min(0.005, (len(linear.columns) if linear else 1) ** -0.5)
    return {
        "linear_columns": linear,
        "linear_optimizer": wide if wide == "Ftrl" else optimizer(wide, rate),
        "linear_learning_rate": "auto",
        "linear_sparse_combiner": left.pop("linear_sparse_combiner", "sum"),
        "dnn_columns": columns(left.pop("dnn_feature_columns", None)),
        "dnn_hidden_units": left.pop("dnn_hidden_units", ()),
        "dnn_activation": left.pop("dnn_activation_fn", "relu"),
        "dnn_dropout": dropout(left.pop("dnn_dropout", None), left),
        "dnn_optimizer": optimizer(left.pop("dnn_optimizer", "Adagrad"), 0.001),
        "dnn_learning_rate": None,
        "batch_norm": left.pop("batch_norm", False),
        "batch_norm_momentum": 0.999,
    }


def dnn_arguments(left, is_v1):
    rate = 0.05 if is_v1 else None
    return {
        "columns": columns(left.pop("feature_columns")),
        "hidden_units": left.pop("hidden_units"),
        "activation": left.pop("activation_fn", "relu"),
        "dropout": dropout(left.pop("dropout", None), left),
        "batch_norm": left.pop("batch_norm", False),
        "batch_norm_momentum": 0.999,
        "optimizer": optimizer(left.pop("optimizer", "Adagrad"), rate),
        "learning_rate": None,
    }


def linear_arguments(left, is_v1):
    given = left.pop("optimizer", "Ftrl")
    return {
        "columns": columns(left.pop("feature_columns")),
        "sparse_combiner": left.pop("sparse_combiner", "sum"),
        "optimizer": "ftrl" if given is None else optimizer(given, 0.2),
        "learning_rate": "auto",
    }


def baseline_arguments(left, is_v1):
    by_name = left.pop("optimizer", "Ftrl")
    return {"optimizer": optimizer(by_name, 0.3), "learning_rate": None}


MODELS = {
    "DNNLinearCombined": (dnn_linear_combined_model_fn, combined_arguments),
    "DNN": (dnn_model_fn, dnn_arguments),
    "Linear": (linear_model_fn, linear_arguments),
    "Baseline": (baseline_model_fn, baseline_arguments),
}


def model_fn(config):
    """The model function of a canned estimator; every argument is known, or raises."""
    left = dict(config)
    name = left["class"]
    is_v1 = left.pop("v1", False)
    function, arguments_of = next(v for k, v in MODELS.items() if name.startswith(k))
    arguments = {"head": head(left, is_v1), **arguments_of(left, is_v1)}
    for known in ("initial_weights", "train_steps"):
        left.pop(known)
    refuse_unread(left, name)
    return partial(function, **arguments)


def variable_name(tf_name, combined):
    """The name here of a variable of the original."""
    name = tf_name.removesuffix("/part_0")
    rules = [
        (r"dnn/hiddenlayer_(\d+)/kernel", r"dnn.hidden_\1.weight"),
        (r"dnn/hiddenlayer_(\d+)/bias", r"dnn.hidden_\1.bias"),
        (r"dnn/logits/kernel", "dnn.logits.weight"),
        (r"dnn/logits/bias", "dnn.logits.bias"),
        (r"dnn/hiddenlayer_\d+/batchnorm_(\d+)/gamma", r"dnn.batch_norm_\1.weight"),
        (r"dnn/hiddenlayer_\d+/batchnorm_(\d+)/beta", r"dnn.batch_norm_\1.bias"),
        (
            r"dnn/hiddenlayer_\d+/batchnorm_(\d+)/moving_mean",
            r"dnn.batch_norm_\1.running_mean",
        ),
        (
            r"dnn/hiddenlayer_\d+/batchnorm_(\d+)/moving_variance",
            r"dnn.batch_norm_\1.running_var",
        ),
        (
            r"dnn/input_from_feature_columns/input_layer/(\w+)/embedding_weights",
            r"dnn.inputs.\1_weights",
        ),
        (r"baseline/bias", "baseline.bias"),
        (r"linear/linear_model/bias_weights", "linear.bias"),
        (r"linear/linear_model/(\w+)/weights", r"linear.\1_weights"),
    ]
    for pattern, replacement in rules:
        if re.fullmatch(pattern, name):
            here = re.sub(pattern, replacement, name)
            return here if combined else here.partition(".")[2]
    if name.startswith("training"):
        return None  # slots and hyperparameters of optimizers
    raise NotImplementedError(f"The runner does not know the variable {tf_name}.")


def variables(weights, combined):
    named = {variable_name(k, combined): decode(v) for k, v in weights.items()}
    named.pop(None, None)
    return {
        k: torch.tensor(v.T if k.endswith("weight") and v.ndim == 2 else v).contiguous()
        for k, v in named.items()
    }


class Recorder(Hook):
    """Keeps the losses, and the weights after some steps."""

    def __init__(self):
        self.losses, self.weights = [], {}

    def after_step(self, run, loss):
        self.losses.append(loss.item())
        state = run.network.state_dict()
        self.weights[run.global_step] = {k: v.clone() for k, v in state.items()}


class RestoredRate(Hook):
    """Sets the learning rate that the checkpoint of the original holds, if it does.

    One case started from a checkpoint with another rate than that of its definition,
    and the original restores rates like weights. (Decay and momentum, which are there
    too, have no effect in an optimizer that was built without them.)
    """

    def __init__(self, initial_weights):
        named = initial_weights.items()
        self.rates = [decode(v) for k, v in named if k.endswith("/learning_rate")]

    def begin(self, run):
        for rate in self.rates:
            (optimizer,) = run.spec.optimizers
            optimizer.param_groups[0]["lr"] = float(rate)


def at_initial_weights(case):
    """The Estimator at its initial weights, and whether the model has two parts."""
    config = case["config"]
    combined = config["class"].startswith("DNNLinearCombined")
    function = with_tensorflow_auc(model_fn(config))
    estimator = Estimator(function, config=RunConfig(random_seed=0))
    estimator.checkpoint = Checkpoint(0, variables(config["initial_weights"], combined))
    return estimator, combined


def batches(case, name):
    given = case["inputs"][name]
    if given == "same as train_batches":
        given = case["inputs"]["train_batches"]
    return [(decode(b["features"]), decode(b["labels"])) for b in given]


def assert_evaluates(estimator, case, expected):
    got = estimator.evaluate(lambda: batches(case, "eval_batches"))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        # The first version of the original interpolated this area in another way.
        other_rule = name == "auc_precision_recall" and case["config"].get("v1")
        atol = 1e-2 if other_rule else ATOL
        np.testing.assert_allclose(got[name], value, rtol=RTOL, atol=atol, err_msg=name)


def assert_predicts(estimator, case, expected):
    rows = list(estimator.predict(lambda: batches(case, "eval_batches")))
    for name, values in decode(expected).items():
        key = tuple(name.split("|")) if "|" in name else name
        got = np.stack([row[key] for row in rows])
        if values.dtype == object:
            np.testing.assert_array_equal(got, values)
        else:
            np.testing.assert_allclose(got, values, rtol=RTOL, atol=ATOL, err_msg=name)


def is_error(case):
    return "error" in case["expected"]


def has_start(case):
    return "initial_evaluate" in case["expected"]


def case_of(case_id):
    return next(c for c in load("canned") if c["id"] == case_id)


RUN = cases("canned", NOT_APPLICABLE)
TRAINED = [case for case in RUN if not is_error(case)]
REFUSED = [case for case in RUN if is_error(case)]


@groups(TRAINED)
def test_canned(cases):
    check_each(cases, check_canned)


def check_canned(case):
    estimator, combined = at_initial_weights(case)
    expected = case["expected"]
    assert_evaluates(estimator, case, expected["initial_evaluate"])
    assert_predicts(estimator, case, expected["initial_predictions"])
    n_steps = case["config"]["train_steps"]
    if n_steps:
        restored = RestoredRate(case["config"]["initial_weights"])
        recorder = train(estimator, case, n_steps, restored)
        assert_trained(recorder, expected["train"], combined)
        assert_evaluates(estimator, case, expected["final_evaluate"])
        assert_predicts(estimator, case, expected["final_predictions"])


def train(estimator, case, n_steps, *hooks):
    recorder = Recorder()
    endless = cycle(batches(case, "train_batches"))
    estimator.train(lambda: islice(endless, n_steps), hooks=[recorder, *hooks])
    return recorder


def assert_trained(recorder, expected, combined):
    losses = decode(expected["loss_per_step"])
    np.testing.assert_allclose(recorder.losses, losses, rtol=RTOL, atol=ATOL)
    steps = [s for s in recorder.weights if f"weights_after_{s}" in expected]
    assert steps
    for step in steps:
        wanted = variables(expected[f"weights_after_{step}"], combined)
        assert wanted.keys() == recorder.weights[step].keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(
                recorder.weights[step][name],
                value,
                rtol=RTOL,
                atol=ATOL,
                err_msg=f"{name} after {step} steps",
            )


ERRORS = {
    "err/no_feature_columns": (ValueError, "non-empty list of feature columns"),
    "err/combined_no_columns": (ValueError, "linear"),
    "err/n_classes_1": (ValueError, "'n_classes' of MultiClassHead"),
    "err/categorical_in_dnn": (ValueError, "embedding_column"),
    "err/labels_out_of_range": (ValueError, "label"),
    "err/missing_feature": (ValueError, "nope"),
    "err/diverge": (NanLossDuringTrainingError, "NaN"),
}


def test_refused():
    check_each(REFUSED, check_refused)


def check_refused(case):
    error, match = ERRORS[case["id"]]
    with pytest.raises(error, match=match):
        estimator = Estimator(model_fn(case["config"]), config=RunConfig(random_seed=0))
        train(estimator, case, case["config"]["train_steps"])


def test_listed_cases_before_training():
    check_each(
        [case for case in map(case_of, NOT_APPLICABLE) if has_start(case)],
        check_before_training,
    )


def check_before_training(case):
    estimator, _ = at_initial_weights(case)
    assert_evaluates(estimator, case, case["expected"]["initial_evaluate"])
    assert_predicts(estimator, case, case["expected"]["initial_predictions"])


class KerasEpsilon(Hook):
    """Keras adds Adam's epsilon before it corrects the bias of the second moment."""

    def before_step(self, run):
        (optimizer,) = run.spec.optimizers
        corrected = 1e-7 / (1 - 0.999 ** (run.global_step + 1)) ** 0.5
        optimizer.param_groups[0]["eps"] = corrected


def test_adam_with_dense_gradients(monkeypatch):
    """The listed Adam case differs by laziness, and by the place of epsilon, only."""
    case = case_of("dnn/opt_adam")

    look_up = F.embedding

    def dense_lookup(ids, weight, sparse):
        assert sparse
        return look_up(ids, weight)

    monkeypatch.setattr(F, "embedding", dense_lookup)
    estimator, _ = at_initial_weights(case)
    n_steps = case["config"]["train_steps"]
    recorder = train(estimator, case, n_steps, KerasEpsilon())
    assert_trained(recorder, case["expected"]["train"], combined=False)


def test_every_case_is_run_or_listed():
    account_for_all_cases("canned", RUN, NOT_APPLICABLE)
