# SPDX-License-Identifier: Apache-2.0
"""How the learning rates of a task go back with the servers."""

import copy
from typing import Any

from skest.hooks.base import Run
from skest.optimizer_state import group_options, set_group_options
from skest.schedules import FunctionLR, is_scheduler_of

__all__ = ["Rewind"]


class Rewind:
    """Takes a run back to an earlier step, with its learning rate schedules.

    Schedules of torch only go forward. They, and the options that they change, are set
    to what they were at the start of the run, and take the steps from there anew.

    Parameters
    ----------
    run : Run
        As it is at its start, of a task whose optimizers only describe what servers do.
    """

    def __init__(self, run: Run) -> None:
        self._start = run.global_step
        self._schedulers: list[tuple[Any, dict[str, Any]]] = [
            (scheduler, copy.deepcopy(scheduler.state_dict()))
            for scheduler in run.spec.lr_schedulers
            if not isinstance(scheduler, FunctionLR)
        ]
        self._options = [
            (group, group_options(group))
            for optimizer in run.spec.optimizers
            if any(is_scheduler_of(s, optimizer) for s, _ in self._schedulers)
            for group in optimizer.param_groups
        ]
        for scheduler, _ in self._schedulers:
            # Steps are taken in servers; torch would warn that there are none.
            scheduler.optimizer._opt_called = True

    def to(self, run: Run, step: int) -> None:
        """Set the global step to an earlier one, and learning rates to those of it.

        What hooks have done to options of optimizers with schedules of torch is undone.
        """
        run.global_step = step
        for group, options in self._options:
            set_group_options(group, options)
        for scheduler, state in self._schedulers:
            scheduler.load_state_dict(copy.deepcopy(state))
        for scheduler in run.spec.lr_schedulers:
            if isinstance(scheduler, FunctionLR):
                scheduler.move_to(step)
                continue
            for _ in range(self._start, step):
                scheduler.step()
