# SPDX-License-Identifier: Apache-2.0
"""`Ftrl` and `ProximalAdagrad`: L1 and L2 in closed form, which torch.optim lacks."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors, unflatten_dense_tensors
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from skest.core.checks import check_not_negative, check_positive
from skest.core.resources import without_dynamo


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """Return what a closure of `Optimizer.step` returns, called with gradients on."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


# A wide model has a variable of one number for each of its columns: if they are some, an
# operation on each of them takes longer than one on all, and copying them.
# Variables, and elements of one.
_FEWEST_JOINED, _MOST_JOINED = 8, 1_024

_Slots = dict[str, list[Tensor]]


class Elementwise(Optimizer):
    """A rule for dense gradients, whose slots are there from construction on.

    A subclass defines ``_slots`` of a parameter and ``_apply``, which updates several
    parameters together.
    """

    @abstractmethod
    def _slots(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the slots that a parameter starts with."""

    @abstractmethod
    def _apply(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        slots: _Slots,
        group: dict[str, Any],
    ) -> None:
        """Update parameters and slots in place."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in torch.optim, and create their slots."""
        without_dynamo(Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            # Before the first step, as slots of TensorFlow: a checkpoint of step 0 has
            # them, and weights can be kept.
            self.state[param] = self._slots(param, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients anew and returns the loss.

        Returns
        -------
        loss : float or None
            What `closure` returned.

        Raises
        ------
        ValueError
            If a gradient is sparse.
        """
        loss = loss_of(closure)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse for p in params):
                name = type(self).__name__
                raise ValueError(
                    f"{name} takes dense gradients, got a sparse one; wrap the optimizer: "
                    f"skest.optimizers.RowSparse({name}(...))."
                )
            small = [p for p in params if p.numel() <= _MOST_JOINED]
            is_worth_it = len(small) >= _FEWEST_JOINED
            if is_worth_it and len({(p.dtype, p.device) for p in small}) == 1:
                self._apply_joined(small, group)
                params = [p for p in params if p.numel() > _MOST_JOINED]
            if params:
                grads: Any = [p.grad for p in params]
                self._apply(params, grads, self._slots_of(params), group)
        return loss

    def _slots_of(self, params: list[Tensor]) -> _Slots:
        # All parameters have the same slots.
        names = self.state[params[0]]
        return {name: [self.state[p][name] for p in params] for name in names}

    def _apply_joined(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters as one, which is a copy of them."""
        slots = self._slots_of(params)
        changed = [params, *slots.values()]
        # (n_elements,) each, in lists of one, as `_apply` takes parameters.
        wholes = [[flatten_dense_tensors(tensors)] for tensors in changed]
        grads: Any = [p.grad for p in params]
        self._apply(
            wholes[0],
            [flatten_dense_tensors(grads)],
            dict(zip(slots, wholes[1:], strict=True)),
            group,
        )
        for tensors, (whole,) in zip(changed, wholes, strict=True):
            torch._foreach_copy_(tensors, unflatten_dense_tensors(whole, tensors))


class Ftrl(Elementwise):
    r"""Follow-the-regularised-leader with per-element learning rates.

    Every element keeps two slots: ``accumulator`` :math:`n`, the sum of squared
    gradients, and ``linear`` :math:`z`. With :math:`p = -\mathrm{lr\_power}` a step is

    .. math::
        n' &= n + g^2 \\
        z' &= z + g + 2\,\mathrm{l2\_shrinkage}\,w
              - \frac{n'^p - n^p}{\mathrm{lr}}\,w \\
        w' &= \frac{\operatorname{clip}(z', -\mathrm{l1}, \mathrm{l1}) - z'}
                   {(n'^p + \mathrm{beta}) / \mathrm{lr} + 2\,\mathrm{l2}}

    so that ``l1`` makes weights exactly zero.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs or parameter groups, as in torch.optim.
    lr : float, default=0.001
        Learning rate, >= 0. The rule divides by it; 0 leaves everything as it is.
    lr_power : float, default=-0.5
        How fast the rate of an element falls with its accumulator, <= 0; 0 is a
        constant rate.
    initial_accumulator_value : float, default=0.1
        Where accumulators start, >= 0.
    l1, l2 : float, default=0.0
        Strengths of the two penalties, >= 0.
    l2_shrinkage : float, default=0.0
        Strength of a penalty on the size of the step, >= 0; unlike `l2` it leaves
        alone what is zero.
    beta : float, default=0.0
        Lowers the rate of elements whose accumulator is still small, >= 0.

    Raises
    ------
    ValueError
        For an argument out of its range; in `step`, for a sparse gradient.

    Notes
    -----
    The rule and the defaults are those of ``tf.keras.optimizers.legacy.Ftrl`` and, with
    ``beta=0``, of ``tf.compat.v1.train.FtrlOptimizer``. A weight is a function of its
    slots alone: the first step replaces the initial weight, and weights restored
    without their slots are lost, unless `keep_weights` is called.

    References
    ----------
    McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.ftrl import Ftrl
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = Ftrl([weight], lr=0.1, l1=0.5)
    >>> weight.grad = torch.tensor([1.0, -1.0, 0.4])
    >>> optimizer.step()
    >>> weight.detach()
    tensor([-0.0477,  0.0477,  0.0000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        options = {
            "lr": lr,
            "initial_accumulator_value": initial_accumulator_value,
            "l1": l1,
            "l2": l2,
            "l2_shrinkage": l2_shrinkage,
            "beta": beta,
        }
        for name, value in options.items():
            check_not_negative(value, name, "Ftrl")
        if not lr_power <= 0:  # so that NaN is refused as well
            raise ValueError(f"'lr_power' of Ftrl must be <= 0; got {lr_power!r}.")
        super().__init__(params, {**options, "lr_power": lr_power})

    def _slots(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        start = group["initial_accumulator_value"]
        return {
            "accumulator": torch.full_like(param, start, requires_grad=False),
            "linear": torch.zeros_like(param, requires_grad=False),
        }

    @torch.no_grad()
    def keep_weights(self, params: Iterable[Tensor]) -> None:
        r"""Make the present weights of parameters those that their slots stand for.

        The linear slot becomes the one whose closed form is the weight,

        .. math::
            z = -\left(\frac{n^p + \mathrm{beta}}{\mathrm{lr}} + 2\,\mathrm{l2}\right) w
                - \mathrm{l1}\,\operatorname{sign}(w)

        for accumulators as they are. So a step without gradient leaves the weights where
        they are, and the others move like those of Adagrad, by
        :math:`g\,\mathrm{lr} / \sqrt{n'}` (without `l2` and `beta`).

        Parameters
        ----------
        params : iterable of Tensor
            Some of the parameters of this optimizer; others are left out.

        Raises
        ------
        ValueError
            If no slot stands for a weight that is not zero: where the learning rate is 0,
            or `initial_accumulator_value`, `l2` and `beta` are.

        Examples
        --------
        >>> import torch
        >>> from skest.optimizers.ftrl import Ftrl
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> optimizer = Ftrl([weight], lr=0.1)
        >>> optimizer.keep_weights([weight])
        >>> weight.grad = torch.zeros(2)
        >>> optimizer.step()
        >>> torch.allclose(weight, torch.tensor([3.0, -2.0]))
        True
        """
        kept = {id(param) for param in params}
        for group in self.param_groups:
            for param in group["params"]:
                if id(param) in kept:
                    self.state[param]["linear"] = _linear_of(
                        param, self.state[param]["accumulator"], group
                    )

    def _apply(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        slots: _Slots,
        group: dict[str, Any],
    ) -> None:
        lr = float(group["lr"])  # a scheduler may keep the rate as a tensor
        if lr == 0:  # the rule divides by it
            return
        power, l1 = -group["lr_power"], group["l1"]
        accumulators, linears = slots["accumulator"], slots["linear"]
        # One call for the tensors of all parameters, each without a loop in Python.
        old = _foreach_power(accumulators, power)
        torch._foreach_addcmul_(accumulators, grads, grads)
        denominators = _foreach_power(accumulators, power)

        # `old` becomes n^p - n'^p, and `linears` z'.
        torch._foreach_sub_(old, denominators)
        torch._foreach_add_(linears, grads)
        torch._foreach_addcmul_(linears, old, params, value=1 / lr)
        if group["l2_shrinkage"]:
            torch._foreach_add_(linears, params, alpha=2 * group["l2_shrinkage"])

        # `denominators`, n'^p until here, becomes what w' is divided by.
        # As `ApplyFtrl` of TensorFlow, where Keras puts beta beside l2: (n'^p + beta) /
        # lr + 2 l2.
        torch._foreach_add_(denominators, group["beta"] + 2 * group["l2"] * lr)
        torch._foreach_div_(denominators, lr)
        # An element without any gradient so far may have 0 / 0, which shall be 0.
        tiny = [torch.finfo(tensor.dtype).tiny for tensor in denominators]
        torch._foreach_clamp_min_(denominators, tiny)
        # To w' = (clip(z', -l1, l1) - z') / denominator.
        torch._foreach_copy_(params, linears)
        torch._foreach_clamp_min_(params, -l1)
        torch._foreach_clamp_max_(params, l1)
        torch._foreach_sub_(params, linears)
        torch._foreach_div_(params, denominators)


def _linear_of(weight: Tensor, accumulator: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the linear slot whose closed form is `weight`."""
    lr = float(group["lr"])
    slope = accumulator.pow(-group["lr_power"]).add_(
        group["beta"] + 2 * group["l2"] * lr
    )
    # With a slope of 0 the slot would stand for 0, whatever the weight.
    if lr == 0 or ((slope == 0) & (weight != 0)).any():
        raise ValueError(
            "Ftrl cannot keep the weights that it is given: no slot stands for them with "
            f"lr={lr:g} and initial_accumulator_value="
            f"{group['initial_accumulator_value']:g}. Set both above 0."
        )
    return -(slope.div_(lr).mul_(weight)).add_(weight.sign(), alpha=group["l1"])


def _foreach_power(tensors: list[Tensor], exponent: float) -> list[Tensor]:
    # The default: a root takes less time than a power.
    if exponent == 0.5:
        return list(torch._foreach_sqrt(tensors))
    return list(torch._foreach_pow(tensors, exponent))


class ProximalAdagrad(Elementwise):
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
    in `skest.optimizers.RowSparse`, the rows that a batch touches are penalised, as there.

    References
    ----------
    Duchi and Singer, "Efficient Online and Batch Learning Using Forward Backward
    Splitting", JMLR 2009.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.ftrl import ProximalAdagrad
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
        options = {"lr": lr, "l1": l1, "l2": l2}
        for name, value in options.items():
            check_not_negative(value, name, owner)
        check_positive(initial_accumulator_value, "initial_accumulator_value", owner)
        options["initial_accumulator_value"] = initial_accumulator_value
        super().__init__(params, options)

    def _slots(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        start = group["initial_accumulator_value"]
        return {"accumulator": torch.full_like(param, start, requires_grad=False)}

    def _apply(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        slots: _Slots,
        group: dict[str, Any],
    ) -> None:
        accumulators = slots["accumulator"]
        torch._foreach_addcmul_(accumulators, grads, grads)
        rates = torch._foreach_rsqrt(accumulators)
        torch._foreach_mul_(rates, float(group["lr"]))  # a scheduler may keep a tensor
        # To v; the penalties follow, a step of forward-backward splitting.
        torch._foreach_addcmul_(params, grads, rates, value=-1)
        if group["l1"]:
            # sign(v) max(|v| - limit, 0) is v less what of it lies within the limit.
            limits = torch._foreach_mul(rates, group["l1"])
            taken = torch._foreach_minimum(params, limits)
            torch._foreach_maximum_(taken, torch._foreach_neg(limits))
            torch._foreach_sub_(params, taken)
        if group["l2"]:
            torch._foreach_mul_(rates, group["l2"])
            torch._foreach_add_(rates, 1)
            torch._foreach_div_(params, rates)
