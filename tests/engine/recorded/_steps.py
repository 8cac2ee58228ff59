# SPDX-License-Identifier: Apache-2.0
"""Runs a model with eager and with replayed steps, from the same start."""

import logging
from contextlib import contextmanager

import torch
from torch import nn

from skest import EstimatorSpec, ModeKeys
from skest.engine.loop import train_step
from skest.engine.recorded.choice import make_step


def batches(n_steps, *, sizes=(8,), dtype=torch.float32):
    """Return different batches; `sizes` are gone through again and again."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(n_steps):
        shape = (sizes[i % len(sizes)], 3)
        x = torch.randn(shape, generator=generator, dtype=dtype)
        found.append((x, x[:, :1].sin()))
    return found


def mlp(*middle, dtype=torch.float32):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 5), nn.ReLU(), *middle, nn.Linear(5, 1)]
    return nn.Sequential(*layers).to(dtype)


def mean_square(labels, logits, features):
    return (logits - labels).square().mean()


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.1)


def make_spec(network, optimizer=sgd, **changes):
    """Return a specification; `optimizer` may be a function of the network."""
    made = optimizer(network) if callable(optimizer) else optimizer
    fields = {"network": network, "loss": mean_square, "optimizer": made}
    return EstimatorSpec(ModeKeys.TRAIN, **{**fields, **changes})


def state(spec):
    """Return variables and slots of optimizers."""
    found = list(spec.network.state_dict().values())
    for optimizer in spec.optimizers:
        for slots in optimizer.state.values():
            found += [v for v in slots.values() if isinstance(v, torch.Tensor)]
    return found


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        if one.is_floating_point():  # 0.0 and -0.0 are equal, and not the same
            assert torch.equal(one.signbit(), other.signbit())


@contextmanager
def reported():
    """Collect why steps are taken eagerly although recorded ones were asked for."""
    found = []
    handler = logging.Handler(logging.WARNING)
    prefix = "Training steps are taken eagerly: "
    handler.emit = lambda r: found.append(r.getMessage().removeprefix(prefix))
    logging.getLogger("skest").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("skest").removeHandler(handler)


def run_both(
    make, data, *, hooks=(), n_steps=None, has_table=False, between=lambda spec, i: None
):
    """Train both ways and compare bit for bit.

    `between(spec, i)` is called after the i-th step of each. Return how many steps were
    replayed, and why others were not.
    """
    eager, graph = make(), make()
    with reported() as reports:
        step = make_step("graph", graph, hooks, n_steps, has_table=has_table)
        for i, (features, labels) in enumerate(data):
            torch.manual_seed(i)
            expected = train_step(eager, features, labels)
            torch.manual_seed(i)
            loss = step(features, labels)
            assert not loss.requires_grad
            assert_same([loss, *state(graph)], [expected, *state(eager)])
            for spec in (eager, graph):
                for scheduler in spec.lr_schedulers:
                    scheduler.step()
                between(spec, i)
    return getattr(step, "n_replayed", 0), reports
