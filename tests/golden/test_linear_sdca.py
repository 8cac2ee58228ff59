# SPDX-License-Identifier: Apache-2.0
"""LinearSDCA against that of tf.estimator: trajectories, optima and errors.

The original takes the examples of a batch in random order, so batches of one example are
compared step by step, and larger ones where they converge.
"""

from functools import partial
from itertools import cycle, islice

import numpy as np
import pytest

from skest import Estimator, RunConfig
from skest.canned.linear import linear_model_fn
from skest.canned.sdca import LinearSDCA
from skest.hooks import Hook
from tests.golden._cases import (
    account_for_all_cases,
    cases,
    check_each,
    decode,
    refuse_unread,
)
from tests.golden.test_canned import columns, head, variables, with_tensorflow_auc
from tests.golden.test_feature_columns import farmhash  # noqa: F401 (a fixture)

RTOL, ATOL = 1e-5, 1e-6

SETTINGS = {"symmetric_l1_regularization": "l1", "symmetric_l2_regularization": "l2"}
# How the original finds the optimum, or shares the work; there is one optimum only.
WITHOUT_EFFECT = {"adaptive", "num_loss_partitions", "num_table_shards"}
ERRORS = {
    "err/three_classes": "Only binary classification is supported.* 3 classes",
    "err/label_dimension_2": "label_dimension=2",
    "err/sparse_combiner": "sparse_combiner=\"sum\"; got 'mean'",
    # The original raises a bare KeyError.
    "err/no_example_id": "example id column 'id'",
}


def settings(config):
    left = {k: v for k, v in config["sdca"].items() if k not in WITHOUT_EFFECT}
    arguments = {SETTINGS[k]: left.pop(k) for k in list(left) if k in SETTINGS}
    refuse_unread(left, "LinearSDCA")
    return LinearSDCA("id", **arguments)


def estimator(config):
    left = dict(config)
    function = partial(
        linear_model_fn,
        head=head(left),
        columns=columns(left.pop("feature_columns")),
        sparse_combiner=left.pop("sparse_combiner", "sum"),
        optimizer=settings(config),
    )
    for known in ("sdca", "train_steps"):
        left.pop(known)
    refuse_unread(left, "the linear model")
    return Estimator(with_tensorflow_auc(function), config=RunConfig(random_seed=0))


def batches(case):
    given = case["inputs"]["train_batches"]
    return [(decode(b["features"]), decode(b["labels"])) for b in given]


class Recorder(Hook):
    """Keeps the losses, and weights before and after the threshold."""

    def __init__(self, l2):
        self.l2 = l2
        self.losses, self.weights, self.unshrunk = [], [], []

    def after_step(self, run, loss):
        self.losses.append(loss.item())
        named = dict(run.network.named_parameters())
        (optimizer,) = run.spec.optimizers
        sums = {name: optimizer.state[p]["dual_sum"] for name, p in named.items()}
        self.weights.append({name: p.detach().clone() for name, p in named.items()})
        self.unshrunk.append({name: slot / self.l2 for name, slot in sums.items()})


def split(weights):
    """Variables of the original by the names here: those of the model, and unshrunk."""
    ending = "_unshrunk"
    model = {k: v for k, v in weights.items() if not k.endswith(ending)}
    unshrunk = {
        k.removesuffix(ending): v for k, v in weights.items() if k.endswith(ending)
    }
    return variables(model, combined=False), variables(unshrunk, combined=False)


def assert_equal(got, expected, rtol=RTOL, atol=ATOL):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol, err_msg=name)


def trained(case):
    config = case["config"]
    model, recorder = estimator(config), Recorder(settings(config).l2)
    endless = cycle(batches(case))
    model.train(lambda: islice(endless, config["train_steps"]), hooks=[recorder])
    return model, recorder


def outputs(model, case, key):
    rows = model.predict(lambda: batches(case), predict_keys=key)
    return np.stack([row[key] for row in rows])


CASES = cases("linear_sdca")
EXACT, CONVERGED, REFUSED = (
    [case for case in CASES if case["id"].startswith(kind)]
    for kind in ("trajectory/", "converged/", "err/")
)


def test_trajectory():
    check_each(EXACT, check_trajectory)


def check_trajectory(case):
    if case["config"]["sdca"].get("num_loss_partitions", 1) > 1:
        raise NotImplementedError("Steps of a partition are smaller than those here.")
    model, recorder = trained(case)
    expected = case["expected"]
    np.testing.assert_allclose(
        recorder.losses, expected["loss_per_step"], rtol=RTOL, atol=ATOL
    )
    assert len(expected["weights_per_step"]) == len(recorder.weights)
    for step, wanted in enumerate(expected["weights_per_step"]):
        weights, unshrunk = split(wanted)
        assert_equal(recorder.weights[step], weights)
        assert_equal(recorder.unshrunk[step], unshrunk)
    metrics = model.evaluate(lambda: batches(case))
    assert_equal(metrics, expected["final_evaluate"])
    logits = outputs(model, case, "logits")
    np.testing.assert_allclose(
        logits, decode(expected["final_logits"]), rtol=RTOL, atol=ATOL
    )


@pytest.mark.slow
def test_optimum():
    check_each(CONVERGED, check_optimum)


def check_optimum(case):
    model, recorder = trained(case)
    expected, atol = decode(case["expected"]), case["expected"]["atol"]
    assert model.get_variable_value("global_step") == expected["final_global_step"]
    weights, unshrunk = split(case["expected"]["final_weights"])
    assert_equal(recorder.weights[-1], weights, atol=atol)
    assert_equal(recorder.unshrunk[-1], unshrunk, atol=atol)
    for name, value in weights.items():
        zeros = value.numpy() == 0
        assert (recorder.weights[-1][name].numpy()[zeros] == 0).all()
    np.testing.assert_allclose(recorder.losses[0], expected["first_loss"], rtol=RTOL)
    np.testing.assert_allclose(recorder.losses[-1], expected["final_loss"], atol=atol)
    key = "logits" if "final_logits" in expected else "predictions"
    np.testing.assert_allclose(
        outputs(model, case, key), expected[f"final_{key}"], atol=atol
    )


def test_refused():
    check_each(REFUSED, check_refused)


def check_refused(case):
    with pytest.raises(ValueError, match=ERRORS[case["id"]]):
        trained(case)


def test_every_case_is_run_or_listed():
    account_for_all_cases("linear_sdca", EXACT + CONVERGED + REFUSED, {})
