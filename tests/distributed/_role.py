# SPDX-License-Identifier: Apache-2.0
"""One task of a small training; a script, which ``SKEST_CONFIG`` tells who it is.

``_role.py MODEL_DIR JSON``, where JSON holds `SETTINGS` that differ.
"""

import json
import logging
import sys
import time

import numpy as np
import torch
from torch import nn

import skest
from skest.distributed import AsyncParameterServer

SETTINGS = {
    "max_steps": 60,
    "save_steps": 5,
    "pause": 0.02,  # of every step, in seconds
    "timeout": 1.5,
    "lease": 3.0,
    "attach_timeout": 60.0,
}
N_IDS = 40


class Wide(nn.Module):
    """A dense layer and a table, so that every server has variables."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(2, 1)
        self.table = nn.Embedding(N_IDS, 1, sparse=True)

    def forward(self, features):
        return self.dense(features["x"]) + self.table(features["id"])


def model_fn(features, labels, mode):
    network = Wide()
    return skest.EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, features: ((z[:, 0] - y) ** 2).mean(),
        predictions=lambda z: {"y": z[:, 0]},
        optimizer=torch.optim.Adagrad(network.parameters(), lr=0.1),
    )


def batches(n, pause=0.0):
    """Yield batches of 16, with a pause before each."""
    rng = np.random.default_rng(0)
    for _ in range(n):
        time.sleep(pause)
        x = rng.normal(size=(16, 2)).astype(np.float32)
        ids = rng.integers(0, N_IDS, 16)
        yield {"x": x, "id": ids}, x[:, 0] + (ids % 3).astype(np.float32)


def make_estimator(model_dir, settings):
    config = skest.RunConfig(
        model_dir,
        random_seed=0,
        save_checkpoints_steps=settings["save_steps"],
        log_step_count_steps=10,
        session_creation_timeout_secs=settings["attach_timeout"],
        max_worker_delay_secs=0,
        train_distribute=AsyncParameterServer(
            timeout=settings["timeout"], lease=settings["lease"]
        ),
    )
    return skest.Estimator(model_fn, config=config)


def run(model_dir, changes, *, hooks=(), eval_hooks=()):
    """Do what this task has to."""
    settings = {**SETTINGS, **changes}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    skest.train_and_evaluate(
        make_estimator(model_dir, settings),
        skest.TrainSpec(
            lambda: batches(10**6, settings["pause"]),
            max_steps=settings["max_steps"],
            hooks=hooks,
        ),
        skest.EvalSpec(
            lambda: batches(5),
            hooks=eval_hooks,
            steps=5,
            start_delay_secs=0,
            throttle_secs=0,
        ),
    )


if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]))
