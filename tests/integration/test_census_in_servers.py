# SPDX-License-Identifier: Apache-2.0
"""Census with parameter servers comes as far as one process does, despite losses."""

import os
import signal
from pathlib import Path

import pytest
from sklearn.metrics import log_loss

from skest import DNNLinearCombinedClassifier, RunConfig
from skest.distributed import AsyncParameterServer
from skest.distributed.ps.messages import Message, Op
from skest.hooks import Hook
from tests.distributed._local import replica_of
from tests.distributed._processes import wait_for

CENSUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "adult"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
N_STEPS, SAVE_STEPS = 1000, 100
WITHIN = 0.005

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}"
    ),
]


class Kill(Hook):
    """Kills tasks of a local training, each at its step, and waits for them.

    Parameters
    ----------
    tasks : dict of int to str
        Names of tasks by the global step that is reached before they are killed.
    """

    def __init__(self, tasks):
        self.left, self.restarts = dict(tasks), None

    def before_step(self, run):
        chief = replica_of(run)
        if self.restarts is None:
            self.restarts = chief.supervisor.restarts
            wait_for_worker(chief, 0)
        for step in [step for step in self.left if run.global_step >= step]:
            name = self.left.pop(step)
            os.kill(chief.supervisor.pids[name], signal.SIGKILL)
            wait_for(lambda name=name: self.restarts[name] == 1)
            if name.startswith("worker"):
                wait_for_worker(chief, pushes_of_worker(chief))


def pushes_of_worker(chief):
    """Return how many gradients the other task has sent."""
    stats = chief.parts.replica.client.ask(0, Message(Op.STATS)).control
    return sum(t["pushes"] for t in stats["tasks"] if t["task_type"] == "worker")


def wait_for_worker(chief, before):
    """Return when it has sent more gradients than before."""

    def is_ahead():
        chief.supervisor.check()
        return pushes_of_worker(chief) > before

    wait_for(is_ahead)


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from mixed_tables import load_census

    return load_census(CENSUS, offline=True)


def loss_of(table, hooks=(), **config):
    """Return the log loss on the test rows after training."""
    model = DNNLinearCombinedClassifier(
        max_steps=N_STEPS,
        batch_size=128,
        early_stopping=False,
        random_state=0,
        hooks=list(hooks),
        config=RunConfig(**config),
    ).fit(table.X_train, table.y_train)
    assert N_STEPS <= model.n_steps_ <= N_STEPS + 1
    return log_loss(table.y_test, model.predict_proba(table.X_test))


@pytest.mark.timeout(400)
def test_two_workers_come_as_far_as_one_process(table, tmp_path):
    kill = Kill({300: "worker-1", 700: "ps-0"})
    together = loss_of(
        table,
        [kill],
        model_dir=tmp_path,
        train_distribute=AsyncParameterServer(num_workers=2, num_ps=1),
        save_checkpoints_steps=SAVE_STEPS,
    )
    assert kill.restarts == {"ps-0": 1, "worker-1": 1}
    assert together < loss_of(table) + WITHIN
