# SPDX-License-Identifier: Apache-2.0
"""Adagrad with L1 and L2 penalties, which torch.optim lacks."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from skest._checks import check_not_negative, check_positive
from skest._without_dynamo import without_dynamo

__all__ = ["ProximalAdagrad"]


class ProximalAdagrad(Optimizer):
    r"""Adagrad whose every step ends with the penalties, so that weights become zero.

    Every element keeps one slot, the ``accumulator`` :math:`n` of squared gradients, from
    which it has its rate :math:`\eta`. A step is

    .. math::
        n' &= n + g^2, \qquad \eta = \mathrm{lr} / \sqrt{n'} \\
        v &= w - \eta g \\
        w' &= \frac{\operatorname{sign}(v) \max(|v| - \eta\,\mathrm{l1}, 0)}
                   {1 + \eta\,\mathrm{l2}}

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs or parameter groups, as in torch.optim.
    lr : float, default=0.001
        Learning rate, >= 0.
    initial_accumulator_value : float, default=0.1
        Where accumulators start, > 0.
    l1, l2 : float, default=0.0
        Strengths of the two penalties, >= 0.

    Raises
    ------
    ValueError, TypeError
        For an argument out of its range or of another type; ValueError in `step` for a
        sparse gradient.

    Notes
    -----
    The rule is that of ``tf.compat.v1.train.ProximalAdagradOptimizer``. Of tables, wrapped
    in `skest.row_sparse.RowSparse`, the rows that a batch touches are penalised, as there.

    References
    ----------
    Duchi and Singer, "Efficient Online and Batch Learning Using Forward Backward
    Splitting", JMLR 2009.

    Examples
    --------
    >>> import torch
    >>> from skest.proximal_adagrad import ProximalAdagrad
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0, 0.01]))
    >>> optimizer = ProximalAdagrad([weight], lr=0.1, l1=0.5)
    >>> weight.grad = torch.tensor([1.0, -1.0, 0.0])
    >>> optimizer.step()
    >>> weight.detach()
    tensor([ 0.8570, -0.8570,  0.0000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        owner = type(self).__name__
        for name, value in {"lr": lr, "l1": l1, "l2": l2}.items():
            check_not_negative(value, name, owner)
        check_positive(initial_accumulator_value, "initial_accumulator_value", owner)
        options = {
            "lr": lr,
            "initial_accumulator_value": initial_accumulator_value,
            "l1": l1,
            "l2": l2,
        }
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in torch.optim, and create their slots."""
        without_dynamo(Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        start = group["initial_accumulator_value"]
        for param in group["params"]:
            slot = torch.full_like(param, start, requires_grad=False)
            self.state[param] = {"accumulator": slot}

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients anew and returns the loss.

        Returns
        -------
        loss : float or None
            What `closure` returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, group)
        return loss

    def _update(self, params: list[torch.Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise ValueError(
                "ProximalAdagrad takes dense gradients, got a sparse one; wrap the "
                "optimizer: skest.row_sparse.RowSparse(ProximalAdagrad(...))."
            )
        accumulators = [self.state[p]["accumulator"] for p in params]
        torch._foreach_addcmul_(accumulators, grads, grads)
        rates = torch._foreach_rsqrt(accumulators)
        torch._foreach_mul_(rates, float(group["lr"]))  # a scheduler may keep a tensor
        torch._foreach_addcmul_(params, grads, rates, value=-1)
        if group["l1"]:
            limits = torch._foreach_mul(rates, group["l1"])
            taken = torch._foreach_minimum(params, limits)
            torch._foreach_maximum_(taken, torch._foreach_neg(limits))
            torch._foreach_sub_(params, taken)
        if group["l2"]:
            torch._foreach_mul_(rates, group["l2"])
            torch._foreach_add_(rates, 1)
            torch._foreach_div_(params, rates)
