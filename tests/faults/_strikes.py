# SPDX-License-Identifier: Apache-2.0
"""Moments at which a task waits for a blow, and the script of such a task.

A task that reaches a moment of the plan leaves a file and waits, until the test has sent
its signal and has left another file. What comes next in the plan is looked for then, so
that every blow falls once, and in its order.

``_strikes.py MODEL_DIR JSON DIRECTORY TASK MOMENT...``, see `tests.distributed._role` for
the first two. TASK MOMENT are pairs: who has to reach what.
"""

import contextlib
import functools
import json
import sys
import time
from pathlib import Path

from skest import checkpoint_store, evaluation_run
from skest.cluster import task_from_env
from skest.distributed.client import PSClient
from skest.distributed.exchange import Exchange
from skest.distributed.server import ParameterServer
from skest.distributed.shard import Shard
from skest.distributed.wire import Op
from skest.hooks import Hook
from tests.distributed import _role

SECONDS = 60.0


class Strikes:
    """The blows of a plan, as one task sees them.

    Parameters
    ----------
    directory : Path
        For the files.
    plan : list of (str, str)
        Which task waits at which moment.
    task : str
        Which one this is.
    """

    def __init__(self, directory, plan, task):
        self.directory, self.plan, self.task = directory, plan, task

    @property
    def number(self):
        """How many have fallen."""
        names = (f"struck-{n}" for n in range(len(self.plan)))
        return sum((self.directory / name).exists() for name in names)

    @property
    def are_over(self):
        return self.number == len(self.plan)

    def at(self, moment):
        """Wait for a blow, if it is this one's turn."""
        number = self.number
        if self.are_over or self.plan[number] != (self.task, moment):
            return
        with contextlib.suppress(FileExistsError):  # another thread is at it, too
            (self.directory / f"reached-{number}").touch(exist_ok=False)
            end = time.monotonic() + SECONDS
            while self.number == number and time.monotonic() < end:
                time.sleep(0.005)

    def watch(self, owner, name, moment, *, before=None, after=False):
        """Let calls of a function be a moment; `before` tells which, from arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args, **options):
            if not after and (before is None or before(*args)):
                self.at(moment)
            found = original(*args, **options)
            if after:
                self.at(moment)
            return found

        setattr(owner, name, watched)

    def watch_all(self):
        """Look for all moments that plans may name."""
        self.watch(PSClient, "connect", "connected", after=True)
        self.watch(PSClient, "ask", "initializes", before=is_commit)
        self.watch(Exchange, "push", "pushes")
        self.watch(checkpoint_store, "write_checkpoint", "saves", after=True)
        self.watch(ParameterServer, "initialize", "is initialized")
        self.watch(ParameterServer, "snapshot", "is saved")
        self.watch(Shard, "update", "has applied", after=True)
        self.watch(evaluation_run, "restore", "restores")
        self.watch(evaluation_run, "record_evaluation", "records")


def is_commit(client, ps, request):
    """Tell whether a chief lets a server begin, after all have been sent their part."""
    return request.code == Op.COMMIT


class Pace(Hook):
    """Lets training last until all blows have fallen."""

    def __init__(self, strikes, max_steps):
        self.strikes, self.max_steps = strikes, max_steps

    def before_step(self, run):
        if not self.strikes.are_over:
            is_near = run.global_step > 0.8 * self.max_steps
            time.sleep(1.0 if is_near else 0.05)


class Evaluates(Hook):
    """The moment within an evaluation."""

    def __init__(self, strikes):
        self.strikes = strikes

    def after_step(self, run, loss):
        self.strikes.at("evaluates")


def main(model_dir, settings, directory, *plan):
    task = task_from_env()
    pairs = list(zip(plan[::2], plan[1::2], strict=True))
    strikes = Strikes(Path(directory), pairs, f"{task.type}-{task.index}")
    strikes.watch_all()
    strikes.at("starts")
    changes = json.loads(settings)
    _role.run(
        model_dir,
        changes,
        hooks=[Pace(strikes, changes["max_steps"])],
        eval_hooks=[Evaluates(strikes)],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
