# SPDX-License-Identifier: Apache-2.0
"""Learning rates that change with the step."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from skest.core.checks import check_not_negative

RateFunction: TypeAlias = Callable[[int], float]
LRSchedulerLike: TypeAlias = type[LRScheduler] | Callable[[Optimizer], LRScheduler]

_ATTRIBUTE = "learning_rate_function"


class CosineCycles:
    """A learning rate that falls to zero in cosine cycles of doubling length.

    Every cycle starts near zero, which warms the optimizer up, and ends at zero, where
    the network is as good as the steps so far can make it. So training may end well
    after each of them: short cycles find out early what a short training gives.

    Parameters
    ----------
    peak : float
        The highest rate.
    n_steps : int
        Steps of all cycles together; the rate is zero behind them.
    first_step : int, default=0
        Global step at which the first cycle starts.
    n_cycles : int, default=4
        How many cycles.

    Notes
    -----
    Four cycles are the schedule "coslog4" of Holzmüller et al., "Better by Default"
    (NeurIPS 2024, arXiv 2407.04491, appendix A); cycles of doubling length are from
    Loshchilov and Hutter, "SGDR" (ICLR 2017, arXiv 1608.03983).

    Examples
    --------
    >>> from skest.optimizers.schedules import CosineCycles
    >>> rate = CosineCycles(0.1, 300)
    >>> [round(rate(step), 3) for step in (9, 19, 59, 139, 299)]
    [0.093, 0.0, 0.0, 0.0, 0.0]
    >>> rate.ends(30)
    [2, 6, 14, 30]
    """

    def __init__(
        self, peak: float, n_steps: int, first_step: int = 0, n_cycles: int = 4
    ) -> None:
        self.peak = peak
        self.n_steps = n_steps
        self.first_step = first_step
        self.n_cycles = n_cycles

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        # The last step of a cycle, not the one after it, has the rate of its end.
        part = (step - self.first_step + 1) / self.n_steps
        if part >= 1:
            return 0.0
        # Whole numbers are the ends of cycles, halves their peaks.
        cycles = math.log2(1 + self._n_parts * max(part, 0.0))
        return self.peak * (1 - math.cos(2 * math.pi * cycles)) / 2

    def ends(self, n_epochs: int) -> list[int]:
        """Return the epochs, of all that there are, with which the cycles end."""
        ends = {
            max(1, round(n_epochs * (2**n - 1) / self._n_parts))
            for n in range(1, self.n_cycles + 1)
        }
        return sorted(ends)

    @property
    def _n_parts(self) -> int:
        """Of which the n-th cycle takes 2 ** (n - 1)."""
        return 2**self.n_cycles - 1

    def __repr__(self) -> str:
        return f"CosineCycles({self.peak:g}, {self.n_steps})"


class FunctionLR(LRScheduler):
    """Sets the learning rate to a function of the number of steps taken.

    What ``tf.keras.optimizers.schedules.LearningRateSchedule`` is to an optimizer of
    TensorFlow. Unlike ``LambdaLR`` it takes the rate itself and not a factor, checks
    it, and has no state: training that resumes goes on at its global step, with the
    function as it is then.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Whose rate is set, that of all parameter groups.
    function : callable
        ``function(step) -> rate``, with `step` 0 before the first update. Every rate
        must be a finite number >= 0. That of the next step is asked for right after a
        step, so the function must know one more than there are steps.

    Raises
    ------
    TypeError, ValueError
        Here and in `step`, if a rate is none; the message names the step.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.schedules import FunctionLR
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    >>> scheduler = FunctionLR(optimizer, lambda step: 0.1 * 0.5**step)
    >>> optimizer.param_groups[0]["lr"]
    0.1
    >>> optimizer.step()
    >>> scheduler.step()
    >>> optimizer.param_groups[0]["lr"]
    0.05
    """

    def __init__(self, optimizer: Optimizer, function: RateFunction) -> None:
        self.function = function
        was_wrapped = "step" in vars(optimizer)
        super().__init__(optimizer)
        if not was_wrapped:
            # By torch, for a warning of `LRScheduler.step`; such steps cost more.
            del optimizer.step

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of the present step, once for every parameter group."""
        # Asked once for all groups: a function may draw or log.
        rate = rate_at(self.function, self.last_epoch)
        return [rate] * len(self.optimizer.param_groups)

    def step(self, epoch: int | None = None) -> None:
        """Set the rate of the next step."""
        self.move_to(self.last_epoch + 1 if epoch is None else epoch)

    def move_to(self, step: int) -> None:
        """Set the rate for the update after `step` steps, wherever training was."""
        # torch's name: it counts what its schedulers are stepped by, here training steps.
        self.last_epoch = step
        # What `LRScheduler.get_last_lr` returns.
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            if isinstance(group["lr"], Tensor):  # kept where a captured graph reads it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps taken."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the step that `state_dict` says."""
        self.move_to(state_dict["last_epoch"])


def keep_rates_in_tensors(lr_schedulers: Sequence[LRScheduler]) -> bool:
    """Let a recorded update read the rates that schedulers set, if it can.

    Parameters
    ----------
    lr_schedulers : sequence of LRScheduler
        Of the optimizers of a model.

    Returns
    -------
    bool
        Whether all rates are tensors now, whose numbers change with the step. Those of
        `FunctionLR` become it where the rule is a fused one of a CPU: others make a
        number of the rate first, which a recording would repeat.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.schedules import FunctionLR, keep_rates_in_tensors
    >>> optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], fused=True)
    >>> scheduler = FunctionLR(optimizer, lambda step: 0.1 * 0.5**step)
    >>> keep_rates_in_tensors([scheduler]), optimizer.param_groups[0]["lr"]
    (True, tensor(0.1000, dtype=torch.float64))
    """
    groups = [group for s in lr_schedulers for group in s.optimizer.param_groups]
    if not all(type(s) is FunctionLR for s in lr_schedulers) or not all(
        group.get("fused") and all(p.device.type == "cpu" for p in group["params"])
        for group in groups
    ):
        return False
    # Wide & deep on Census: 8.4 ms a step in place of 11.5 (one core).
    for group in groups:
        # Double, as the numbers of Python that rates are otherwise.
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float64)
    return True


def rate_at(function: RateFunction, step: int) -> float:
    """Return the learning rate of a step.

    Raises
    ------
    TypeError, ValueError
        If it is not a finite number >= 0.

    Examples
    --------
    >>> from skest.optimizers.schedules import rate_at
    >>> rate_at(lambda step: 1 - step, 2)
    Traceback (most recent call last):
        ...
    ValueError: 'learning_rate' of step 2 must be a finite number of at least 0; got -1.
    """
    rate = function(step)
    check_not_negative(rate, "learning_rate", f"step {step}")
    return float(rate)


def attach_rate_function(optimizer: Optimizer, function: RateFunction) -> None:
    """Note on an optimizer that its rate is a function, for `missing_function_lrs`."""
    setattr(optimizer, _ATTRIBUTE, function)


def missing_function_lrs(
    optimizers: Sequence[Optimizer], lr_schedulers: Sequence[LRScheduler]
) -> list[LRScheduler]:
    """Make a `FunctionLR` for every optimizer whose rate is a function.

    Parameters
    ----------
    optimizers : sequence of torch.optim.Optimizer
        Some of them may be marked by `attach_rate_function`.
    lr_schedulers : sequence of LRScheduler
        What there is already.

    Returns
    -------
    list of LRScheduler
        What `lr_schedulers` lacks.

    Raises
    ------
    ValueError
        If another scheduler changes such a rate, too.
    """
    missing: list[LRScheduler] = []
    for optimizer in optimizers:
        function = _rate_function(optimizer)
        if function is None:
            continue
        # A model_fn may have made the FunctionLR itself.
        present = [s for s in lr_schedulers if is_scheduler_of(s, optimizer)]
        for scheduler in present:
            if not isinstance(scheduler, FunctionLR):
                raise ValueError(
                    "'learning_rate' of an optimizer is a function of the step, and "
                    f"'lr_scheduler' has a {type(scheduler).__name__} for it as well. "
                    "Give only one of them: a number as 'learning_rate', or no "
                    "'lr_scheduler'."
                )
        if not present:
            missing.append(FunctionLR(optimizer, function))
    return missing


def _rate_function(optimizer: Optimizer) -> RateFunction | None:
    """Return what was attached to an optimizer, or to the one in a RowSparse."""
    inner = getattr(optimizer, "inner", None)
    return getattr(optimizer, _ATTRIBUTE, getattr(inner, _ATTRIBUTE, None))


# RowSparse shares the list of groups with the optimizer that it wraps.
def is_scheduler_of(scheduler: LRScheduler, optimizer: Optimizer) -> bool:
    """Tell whether a scheduler changes an optimizer, or the one that it wraps."""
    return scheduler.optimizer.param_groups is optimizer.param_groups


def make_lr_schedulers(
    lr_scheduler: LRSchedulerLike | None, optimizers: Sequence[Optimizer]
) -> list[LRScheduler]:
    """Build a fresh scheduler for every optimizer.

    Parameters
    ----------
    lr_scheduler : LRScheduler subclass, callable or None
        A class of ``torch.optim.lr_scheduler``, a ``functools.partial`` of one, or any
        ``callable(optimizer) -> LRScheduler``. It counts training steps: what torch
        calls an epoch is a step here.
    optimizers : sequence of torch.optim.Optimizer
        As `skest.optimizers.make_optimizers` returns them.

    Returns
    -------
    list of LRScheduler
        Empty for None.

    Raises
    ------
    TypeError
        If `lr_scheduler` is an instance, no callable, or returns something else.
    ValueError
        For ``ReduceLROnPlateau``, which waits for a metric.

    Examples
    --------
    >>> from functools import partial
    >>> import torch
    >>> from skest.optimizers import make_optimizers
    >>> from skest.optimizers.schedules import make_lr_schedulers
    >>> optimizers = make_optimizers("sgd", torch.nn.Linear(2, 1).named_parameters())
    >>> halving = partial(torch.optim.lr_scheduler.StepLR, step_size=100, gamma=0.5)
    >>> [type(s).__name__ for s in make_lr_schedulers(halving, optimizers)]
    ['StepLR']
    """
    if lr_scheduler is None:
        return []
    if isinstance(lr_scheduler, LRScheduler) or not callable(lr_scheduler):
        raise TypeError(
            "'lr_scheduler' must be a class of torch.optim.lr_scheduler or a "
            "callable(optimizer) that returns a scheduler, because every call builds "
            f"fresh optimizers; got {lr_scheduler!r}. Write, for example, "
            "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=100)."
        )
    made = [lr_scheduler(optimizer) for optimizer in optimizers]
    for scheduler in made:
        check_lr_scheduler(scheduler)
    return made


def check_lr_scheduler(scheduler: Any) -> None:
    """Raise unless `scheduler` is one that can be stepped after every update."""
    if not isinstance(scheduler, LRScheduler):
        raise TypeError(
            "'lr_scheduler' must be or return a torch.optim.lr_scheduler.LRScheduler; "
            f"got {scheduler!r}. Classes and functions become schedulers with "
            "skest.optimizers.schedules.make_lr_schedulers."
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "'lr_scheduler' cannot be ReduceLROnPlateau: it waits for a metric, and a "
            "training step has none. Use a schedule of the step, such as "
            "CosineAnnealingLR or StepLR, or a function of the step as "
            "'learning_rate'; early stopping ends training when a score no longer "
            "improves."
        )
