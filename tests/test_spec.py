# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest
import torch
from torch import nn

from skest import EstimatorSpec, ModeKeys
from skest.heads import RegressionHead
from skest.hooks import Hook
from skest.optimizers import make_optimizer
from skest.optimizers.schedules import FunctionLR
from tests._models import Mean, squared_loss

NETWORK = nn.Linear(2, 1)
OPTIMIZER = torch.optim.SGD(NETWORK.parameters(), lr=0.1)
COMPLETE = {
    "network": NETWORK,
    "loss": squared_loss,
    "optimizer": OPTIMIZER,
    "predictions": dict,
}
HOOKS = (
    "training_hooks",
    "training_chief_hooks",
    "evaluation_hooks",
    "prediction_hooks",
)
MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def test_one_specification_serves_all_modes():
    for mode in MODES:
        spec = EstimatorSpec(mode, **COMPLETE)
        assert spec.optimizers == (OPTIMIZER,)
        assert spec.lr_schedulers == ()


def test_what_a_mode_requires_is_named():
    for mode, given, missing in [
        (ModeKeys.TRAIN, ["network", "optimizer"], "lacks loss"),
        (ModeKeys.TRAIN, ["network", "loss"], "lacks optimizer"),
        (ModeKeys.TRAIN, ["loss", "optimizer"], "lacks network"),
        (ModeKeys.EVAL, ["network"], "lacks loss; it needs network, loss"),
        (ModeKeys.EVAL, [], "lacks network and loss"),
        (ModeKeys.PREDICT, ["network", "loss"], "lacks predictions"),
    ]:
        with pytest.raises(ValueError, match=f"of mode '{mode}' {missing}"):
            EstimatorSpec(mode, **{name: COMPLETE[name] for name in given})


def test_unknown_modes_are_refused():
    for mode in ["predict", "", None]:
        with pytest.raises(ValueError, match=r"'mode' .* one of 'train', 'eval', 'inf"):
            EstimatorSpec(mode, **COMPLETE)


def test_wrong_types_are_refused_by_name():
    for field, value, message in [
        ("network", lambda x: x, "'network' .*torch.nn.Module; got function"),
        ("encode", {"a": 1}, "'encode' .*must be a function; got dict"),
        ("encode_labels", 1, "'encode_labels' .*must be a function; got int"),
        ("loss", 0.5, "'loss' .*must be a function; got float"),
        ("predictions", {"a": 1}, "'predictions' .*must be a function; got dict"),
        *(
            (
                field,
                torch.zeros(3),
                f"got Tensor. Give {field}.{call}., which is called",
            )
            for field, call in [
                ("encode", "features"),
                ("encode_labels", "labels"),
                ("loss", "labels, logits, features"),
                ("predictions", "logits"),
                ("update_metrics", "eval_metrics, labels, logits, features"),
                ("summaries", "labels, logits, features"),
            ]
        ),
        ("update_metrics", [], "'update_metrics' .*must be a function; got list"),
        ("summaries", {}, "'summaries' .*must be a function; got dict"),
        ("optimizer", "adam", "must be a torch.optim.Optimizer.*make_optimizer"),
        ("optimizer", torch.optim.SGD, "'optimizer' .*got type"),
        ("optimizer", [OPTIMIZER, 3], "'optimizer' .*sequence of them; got int"),
        ("lr_scheduler", lambda optimizer: None, "'lr_scheduler' .*make_lr_schedulers"),
        ("lr_scheduler", [torch.optim.lr_scheduler.StepLR], "'lr_scheduler' .*got <cl"),
        ("clip_norm", "1", "'clip_norm' of an EstimatorSpec must be a .*got '1'"),
        ("clip_norm", True, "'clip_norm' of an EstimatorSpec must be a .*got True"),
        ("eval_metrics", {"m": 3.0}, "The metric 'm' must have .*update and compute"),
        *(
            (field, value, f"'{field}' .*instances of skest.hooks.Hook; got")
            for field in HOOKS
            for value in (3, [3], [Hook], [Hook(), "hook"])
        ),
    ]:
        with pytest.raises(TypeError, match=message):
            EstimatorSpec(ModeKeys.TRAIN, **{**COMPLETE, field: value})


def test_functions_take_what_they_are_called_with():
    for field, value, message in [
        ("loss", lambda labels, logits: 0, r"\(labels, .* features\), by position"),
        ("loss", nn.MSELoss(), r"'loss' .* takes \(input: .*Give a function of labels"),
        ("encode", lambda features, labels: {}, r"'encode' .* as encode\(features\)"),
        ("update_metrics", lambda m: None, r"'update_metrics' .* takes \(m\)\."),
        ("predictions", lambda: {}, r"as predictions\(logits\), .* takes \(\)\."),
        ("summaries", lambda x: {}, r"'summaries' .* that is given takes \(x\)\."),
    ]:
        with pytest.raises(TypeError, match=message):
            EstimatorSpec(ModeKeys.TRAIN, **{**COMPLETE, field: value})


def test_hooks_may_be_one_or_several_or_none():
    for field in HOOKS:
        hook = Hook()
        for given, expected in [(None, ()), (hook, (hook,)), (iter([hook]), (hook,))]:
            spec = EstimatorSpec(ModeKeys.TRAIN, **COMPLETE, **{field: given})
            assert getattr(spec, field) == expected
        spec = RegressionHead().create_estimator_spec(
            [[0.0]], ModeKeys.TRAIN, NETWORK, [0.0], OPTIMIZER, **{field: None}
        )
        assert getattr(spec, field) == ()


def test_reserved_metric_names_are_refused():
    for name in ["loss", "global_step"]:
        with pytest.raises(ValueError, match=f"metric name '{name}' is taken"):
            EstimatorSpec(ModeKeys.EVAL, **COMPLETE, eval_metrics={name: Mean()})


def test_a_norm_to_clip_at_is_positive():
    for clip_norm in [0, -1.0, float("inf"), float("nan")]:
        with pytest.raises(ValueError, match="'clip_norm' .*greater than 0; got"):
            EstimatorSpec(ModeKeys.TRAIN, **COMPLETE, clip_norm=clip_norm)


def test_optimizers_that_compute_the_loss_themselves_are_refused():
    optimizer = torch.optim.LBFGS(NETWORK.parameters())
    for given in (optimizer, [OPTIMIZER, optimizer]):
        with pytest.raises(ValueError, match=r"'optimizer' .* is LBFGS, .*optim\.Adam"):
            EstimatorSpec(ModeKeys.TRAIN, **{**COMPLETE, "optimizer": given})


def test_a_rate_that_is_a_function_gets_its_scheduler_once():
    optimizers = [
        make_optimizer("sgd", NETWORK.parameters(), rate)
        for rate in (0.1, lambda step: 0.5**step)
    ]
    constant = torch.optim.lr_scheduler.ConstantLR(optimizers[0])
    spec = EstimatorSpec(
        ModeKeys.TRAIN,
        **{**COMPLETE, "optimizer": optimizers, "lr_scheduler": constant},
    )
    assert spec.lr_schedulers[0] is constant
    assert isinstance(spec.lr_schedulers[1], FunctionLR)
    assert spec.lr_schedulers[1].optimizer is optimizers[1]
    again = dataclasses.replace(spec, predictions=dict)
    assert again.lr_schedulers == spec.lr_schedulers


def test_a_schedule_is_of_the_optimizer():
    other = torch.optim.SGD(NETWORK.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(ValueError, match="is a StepLR of an optimizer that is not its"):
        EstimatorSpec(ModeKeys.TRAIN, **{**COMPLETE, "lr_scheduler": schedule})


def test_the_type_of_a_specification_is_that_of_its_variables():
    def spec(network):
        return EstimatorSpec(
            ModeKeys.PREDICT, network=network, predictions=lambda z: {"z": z}
        )

    assert spec(nn.Linear(1, 1).double()).dtype == torch.float64
    assert spec(nn.Identity()).dtype == torch.get_default_dtype()
