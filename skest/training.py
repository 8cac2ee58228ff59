# SPDX-License-Identifier: Apache-2.0
"""The step loop of training, with hooks around it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from skest.gradients import clip_gradients
from skest.hooks.base import Hook, Run
from skest.spec import EstimatorSpec

__all__ = ["train_loop", "train_step"]


def train_loop(
    run: Run, batches: Iterator[tuple[Any, Any]], hooks: Sequence[Hook]
) -> None:
    """Take training steps until the input ends or a hook asks to stop.

    Parameters
    ----------
    run : Run
        The run to advance.
    batches : iterator of (features, labels)
        Encoded batches on the device of the network.
    hooks : sequence of Hook
        Called in this order.
    """
    run.network.train()
    watching = [h for h in hooks if type(h).after_backward is not Hook.after_backward]

    def after_backward() -> None:
        for hook in watching:
            hook.after_backward(run)

    for hook in hooks:
        hook.begin(run)
    while not run.should_stop:
        batch = next(batches, None)
        if batch is None:
            run.request_stop("the input ended")
            break
        run.batch = batch
        for hook in hooks:
            hook.before_step(run)
        run.loss = train_step(run.spec, *batch, after_backward if watching else None)
        run.global_step += 1
        for scheduler in run.spec.lr_schedulers:
            scheduler.step()
        for hook in hooks:
            hook.after_step(run, run.loss)
    for hook in hooks:
        hook.end(run)


def train_step(
    spec: EstimatorSpec,
    features: Any,
    labels: Any,
    after_backward: Callable[[], None] | None = None,
) -> Tensor:
    """Update the variables with one batch.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    features, labels : tensors or dictionaries of tensors
        One encoded batch.
    after_backward : callable, default=None
        Called when the gradients are computed, before they are clipped.

    Returns
    -------
    Tensor of shape ()
        The detached loss, read before the update.

    Raises
    ------
    ValueError
        If the loss is not a scalar.
    TypeError
        If it is not a tensor.
    """
    if spec.network is None or spec.loss is None:
        raise ValueError("A training step needs an EstimatorSpec of mode 'train'.")
    for optimizer in spec.optimizers:
        optimizer.zero_grad()
    loss = scalar_loss(spec.loss(labels, spec.network(features), features))
    loss.backward()
    if after_backward is not None:
        after_backward()
    if spec.clip_norm is not None:
        clip_gradients(_trained(spec), spec.clip_norm)
    for optimizer in spec.optimizers:
        optimizer.step()
    return loss.detach()


def _trained(spec: EstimatorSpec) -> dict[Tensor, None]:
    """Return every parameter that an optimizer holds, once.

    Others of the network may have gradients as well, but nobody resets those.
    """
    groups = [g for optimizer in spec.optimizers for g in optimizer.param_groups]
    return dict.fromkeys(parameter for group in groups for parameter in group["params"])


def scalar_loss(loss: Tensor) -> Tensor:
    """Return a loss of shape () or (1,) as one of shape ()."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            "'loss' of an EstimatorSpec must return a tensor; "
            f"got {type(loss).__name__}."
        )
    if loss.numel() != 1:
        raise ValueError(
            "'loss' of an EstimatorSpec must return one number; got a tensor of shape "
            f"{tuple(loss.shape)}. Reduce it, for example with .mean()."
        )
    return loss.reshape(())
