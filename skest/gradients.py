# SPDX-License-Identifier: Apache-2.0
"""What is done to gradients before and after the backward pass."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.optimizer import Optimizer

__all__ = ["clip_gradients", "reset_gradients"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale gradients together so that their norm is at most `max_norm`.

    The norm is the L2 norm of all gradients as one vector. Dense gradients become what
    ``torch.nn.utils.clip_grad_norm_`` makes of them (in TensorFlow
    ``tf.clip_by_global_norm``, without the 1e-6 added to the norm here). It takes
    row-sparse gradients, too: rows that occur several times count by their sum.

    Parameters
    ----------
    parameters : iterable of Tensor
        Those without a gradient are passed over. Sparse gradients are replaced by
        coalesced ones, the others changed in place.
    max_norm : float
        Largest norm, > 0.

    Returns
    -------
    Tensor of shape ()
        The norm before, on the device: nothing here waits for it. If it is NaN, all
        gradients become NaN.

    References
    ----------
    Pascanu et al., "On the difficulty of training recurrent neural networks", ICML 2013.

    Examples
    --------
    >>> import torch
    >>> from skest.gradients import clip_gradients
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], 1.0)
    tensor(5.)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        else:
            values.append(parameter.grad)
    norm = get_total_norm(values)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(scale.to(value.device))
    return norm


def reset_gradients(optimizer: Optimizer) -> None:
    """Do what ``optimizer.zero_grad()`` does, without its marks for a profiler.

    They take longer than all else in it. An optimizer with a method of its own has its
    way.

    Examples
    --------
    >>> import torch
    >>> from skest.gradients import reset_gradients
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.sum().backward()
    >>> reset_gradients(torch.optim.SGD([weight]))
    >>> weight.grad is None
    True
    """
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
