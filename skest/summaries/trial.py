# SPDX-License-Identifier: Apache-2.0
"""A network is called in training mode, and nothing remains of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from skest._random import draws_from_global_generator
from skest.spec import EstimatorSpec

__all__ = ["without_traces"]


@contextmanager
def without_traces(spec: EstimatorSpec) -> Iterator[None]:
    """Restore buffers and generators when the context ends; no gradients inside.

    A call of the network and of the loss in the context gives what the next training
    step is going to compute, dropout included, and does not change that step.

    Parameters
    ----------
    spec : EstimatorSpec
        Model in training.
    """
    network = spec.network or nn.Module()
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    generators = [(g, g.get_state()) for g in _generators(spec, network)]
    try:
        with torch.no_grad():
            yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        for generator, state in generators:
            generator.set_state(state)


def _generators(spec: EstimatorSpec, network: nn.Module) -> list[torch.Generator]:
    own = [getattr(module, "generator", None) for module in network.modules()]
    found = [g for g in own if isinstance(g, torch.Generator)]
    if draws_from_global_generator(network, spec.loss, *spec.optimizers):
        # The run has borrowed them; otherwise they are other people's.
        found.append(torch.default_generator)
        devices = {p.device for p in network.parameters() if p.is_cuda}
        found += [torch.cuda.default_generators[d.index or 0] for d in devices]
    return list(dict.fromkeys(found))
