# SPDX-License-Identifier: Apache-2.0
"""Records the first half of a step, and takes it again if that cannot be done."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skest.execution.impurity import Impurity
from skest.execution.recording import Recorder
from skest.spec import EstimatorSpec

__all__ = ["recorded_gradients"]


def recorded_gradients(
    spec: EstimatorSpec,
    features: Any,
    labels: Any,
    recorder: Recorder,
    compute: Callable[[EstimatorSpec, Any, Any], Tensor],
) -> tuple[Tensor, str | None]:
    """Compute gradients, and record that.

    Some code fails only while operations are recorded. The buffers of the network and the
    generators are set back then, and the gradients computed without a recording. What
    fails in any case, fails then.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    features, labels
        The batch.
    recorder : Recorder
        Records it.
    compute : callable
        `skest.training.compute_gradients`, or what does so in another way.

    Returns
    -------
    loss : Tensor of shape ()
        What `compute` returns.
    obstacle : str or None
        Why what was recorded does not hold for other batches, if it does not.
    """
    restore = _undo(spec)
    try:
        with Impurity(spec.network, spec.loss) as impurity, recorder:
            loss = compute(spec, features, labels)
    except Exception as error:
        restore()
        failure = f"it cannot be recorded: {type(error).__name__}"
        return compute(spec, features, labels), failure
    return loss, impurity.obstacle or recorder.recording.obstacle


def _undo(spec: EstimatorSpec) -> Callable[[], None]:
    """Return what sets buffers and generators to their present states."""
    modules = [] if spec.network is None else list(spec.network.modules())
    buffers = [b for m in modules for b in m.buffers(recurse=False)]
    values = [buffer.clone() for buffer in buffers]
    own = [getattr(module, "generator", None) for module in modules]
    generators = {torch.default_generator: torch.default_generator.get_state()}
    for generator in own:
        if isinstance(generator, torch.Generator):
            generators[generator] = generator.get_state()

    def restore() -> None:
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
        for generator, state in generators.items():
            generator.set_state(state)

    return restore
