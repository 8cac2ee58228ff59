# SPDX-License-Identifier: Apache-2.0
"""Census with parameter servers comes as far as one process does, also after losses."""

import os
import signal
from pathlib import Path

import pytest
from sklearn.metrics import log_loss

from skest import DNNLinearCombinedClassifier, RunConfig
from skest.distributed import AsyncParameterServer
from skest.distributed.ps.messages import Message, Op
from skest.hooks import Hook
from tests.distributed._processes import pids, wait_for

CENSUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "adult"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
N_STEPS = 600
WITHIN = 0.005

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}"
    ),
]


class Kill(Hook):
    """Kills the other worker when so many steps are taken, and waits for its return.

    Parameters
    ----------
    step : int or None
        Global step; None never.
    """

    def __init__(self, step=None):
        self.step, self.client = step, None

    def before_step(self, run):
        if self.client is None:
            chief = run._capture.func.__self__
            self.client, self.processes = chief.client, chief._workers
            self.wait_for_worker(0)
        if self.step is not None and run.global_step >= self.step:
            self.step = None
            os.kill(pids(self.processes)["worker-1"], signal.SIGKILL)
            self.wait_for_worker(self.pushes_of_worker())

    def pushes_of_worker(self):
        """Return how many gradients the other worker has sent."""
        tasks = self.client.ask(0, Message(Op.STATS)).control["tasks"]
        return sum(t["pushes"] for t in tasks if t["task_type"] == "worker")

    def wait_for_worker(self, before):
        """Return when it has sent more gradients than before."""

        def is_ahead():
            self.processes.check()
            return self.pushes_of_worker() > before + 1

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
def test_two_workers_come_as_far_as_one_process_also_after_a_loss(table):
    served = {"train_distribute": AsyncParameterServer(num_workers=2, num_ps=1)}
    assert loss_of(table, [Kill(N_STEPS // 2)], **served) < loss_of(table) + WITHIN
