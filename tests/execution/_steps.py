# SPDX-License-Identifier: Apache-2.0
"""Runs a model with eager and with replayed steps, from the same start."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from skest import EstimatorSpec, ModeKeys
from skest.execution import GraphStep
from skest.training import train_step


def batches(n_steps, *, sizes=(8,), n_inputs=3, dtype=torch.float32):
    """Return different batches; `sizes` are gone through again and again."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(n_steps):
        shape = (sizes[i % len(sizes)], n_inputs)
        x = torch.randn(shape, generator=generator, dtype=dtype)
        found.append((x, x[:, :1].sin()))
    return found


def mlp(*middle: nn.Module, dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 5), nn.ReLU(), *middle, nn.Linear(5, 1)]
    return nn.Sequential(*layers).to(dtype)


def mean_square(labels, logits, features):
    return (logits - labels).square().mean()


def make_spec(network: nn.Module, **changes: Any) -> EstimatorSpec:
    fields: dict[str, Any] = {"network": network, "loss": mean_square}
    if "optimizer" not in changes:
        fields["optimizer"] = torch.optim.SGD(network.parameters(), lr=0.1)
    return EstimatorSpec(ModeKeys.TRAIN, **{**fields, **changes})


def state(spec: EstimatorSpec) -> list[torch.Tensor]:
    """Return variables, optimizer slots and gradients."""
    found = list(copy.deepcopy(spec.network.state_dict()).values())
    for optimizer in spec.optimizers:
        for slots in optimizer.state.values():
            found += [v.clone() for v in slots.values() if isinstance(v, torch.Tensor)]
    return found


def assert_change_counts(
    change: Callable[[Any], None],
    eager: EstimatorSpec,
    graph: EstimatorSpec,
    of_both: Sequence[Any],
) -> None:
    """Train two equal models for 12 steps; change something of each before step 6.

    What was recorded is of no use from then on: the step is recorded anew, once.
    """
    step = GraphStep(graph, eager_steps=1, report=print)
    for i, (features, labels) in enumerate(batches(12)):
        if i == 6:
            for changed in of_both:
                change(changed)
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
        for ours, theirs in zip(state(graph), state(eager), strict=True):
            assert torch.equal(ours, theirs)
    assert step.n_replayed == 12 - 3 - 2


def run_both(
    make: Callable[[], EstimatorSpec], data: list[Any], **arguments: Any
) -> tuple[GraphStep, list[str]]:
    """Train both ways and compare bit for bit; return the step and its reports."""
    reports: list[str] = []
    eager, graph = make(), make()
    step = GraphStep(graph, **{"eager_steps": 1, "report": reports.append, **arguments})
    for features, labels in data:
        torch.manual_seed(1)
        expected = train_step(eager, features, labels)
        torch.manual_seed(1)
        loss = step(features, labels)
        assert torch.equal(loss, expected)
        assert not loss.requires_grad
        for ours, theirs in zip(state(graph), state(eager), strict=True):
            assert torch.equal(ours, theirs)
    return step, reports
