# SPDX-License-Identifier: Apache-2.0
"""An interrupted training goes on in the middle of its input, bit for bit."""

import itertools
import logging
import os
import re
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from skest import Estimator, RunConfig
from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import DirectoryStore
from skest.hooks import StopAtStepHook
from skest.inputs import ArrayDataset, Pipeline
from tests import _forkserver
from tests._models import (
    At,
    Recorder,
    assert_same_checkpoint,
    model_fn,
    raising,
    table,
    table_fn,
)

N_STEPS, SAVE_STEPS = 40, 10
X, Y = table()


def rows():
    return zip(X, Y, strict=True)


INPUTS = {
    "table": table_fn(shuffle=True, num_epochs=None, seed=1),
    "table_in_order": table_fn(num_epochs=None),
    "weighted": lambda: ArrayDataset(
        X, Y, batch_size=3, sampling_weight=1 + np.arange(20), num_epochs=50, seed=2
    ),
    "pipeline": lambda: (
        Pipeline(rows).shuffle(7, seed=5).batch(3).repeat().map(tuple).prefetch(2)
    ),
    "one_shot_pipeline": lambda: (
        Pipeline(itertools.cycle(rows())).shuffle(7, seed=5).batch(3)
    ),
    "list": lambda: 40 * [(X[:3], Y[:3]), (X[3:6], Y[3:6]), (X[6:9], Y[6:9])],
    "generator": lambda: (
        (X[i % 9 : i % 9 + 4], Y[i % 9 : i % 9 + 4]) for i in range(200)
    ),
    "loader": lambda: Pipeline(
        lambda: DataLoader(
            TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
            batch_size=6,
            shuffle=True,
            generator=torch.Generator().manual_seed(3),
        )
    ).repeat(),
}


def make(model_dir=None, *, save=SAVE_STEPS, seed=0, resume=True, **params):
    config = RunConfig(
        model_dir,
        random_seed=seed,
        save_checkpoints_steps=save,
        keep_checkpoint_max=None,
        resume_input=resume,
    )
    return Estimator(model_fn, config=config, params=params)


class KilledError(Exception):
    """Stands for the end of a process."""


def interrupt(estimator, input_fn, step):
    """Leave what SIGKILL at a step leaves: the checkpoints until then."""
    store = estimator._store
    save, store.save = store.save, lambda c: c.global_step < step and save(c)
    with pytest.raises(KilledError):
        estimator.train(input_fn, [At(step, raising(KilledError()))], max_steps=N_STEPS)
    del store.save


def train_and_die(model_dir, input_name, network, step):
    """Train, and be killed; runs in a process of its own."""
    hook = At(step, lambda run: os.kill(os.getpid(), signal.SIGKILL))
    make(model_dir, network=network, optimizer="adam").train(
        INPUTS[input_name], [hook], max_steps=100
    )


@pytest.fixture(scope="module")
def context():
    return _forkserver.context()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("input_name", "network"),
    [("table", "torch_dropout"), ("pipeline", "skest_dropout")],
)
def test_100_steps_are_37_a_kill_and_the_rest(context, tmp_path, input_name, network):
    arguments = (tmp_path / "killed", input_name, network, 37)
    process = context.Process(target=train_and_die, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert DirectoryStore(tmp_path / "killed").latest_step() == 30
    params = {"network": network, "optimizer": "adam"}
    resumed, whole = Recorder(), Recorder()
    a = make(tmp_path / "killed", **params)
    a.train(INPUTS[input_name], [resumed], max_steps=100)
    b = make(**params)
    b.train(INPUTS[input_name], [whole], max_steps=100)
    assert resumed.losses == whole.losses[30:]
    assert_same_checkpoint(a.checkpoint, b.checkpoint)


@pytest.mark.parametrize(
    ("input_name", "step"),
    [("pipeline", 1), ("table", 1), *((name, 37) for name in sorted(INPUTS))],
)
def test_every_kind_of_input_goes_on(tmp_path, input_name, step):
    input_fn = INPUTS[input_name]
    killed = make(tmp_path, network="skest_dropout")
    interrupt(killed, input_fn, step)
    killed = make(tmp_path, network="skest_dropout")
    assert killed.checkpoint.input_position["batches"] == step // 10 * 10
    killed.train(input_fn, max_steps=N_STEPS)
    whole = make(network="skest_dropout").train(input_fn, max_steps=N_STEPS)
    assert_same_checkpoint(killed.checkpoint, whole.checkpoint)
    assert whole.checkpoint.input_position is None


@pytest.mark.parametrize(
    ("network", "input_fn"),
    [
        ("skest_dropout", table_fn(shuffle=True, num_epochs=None)),
        ("torch_dropout", lambda: Pipeline(rows).shuffle(20).batch(3).repeat()),
    ],
    ids=["table", "pipeline"],
)
def test_without_any_seed_the_checkpoint_knows_them(tmp_path, network, input_fn):
    whole = make(tmp_path / "whole", seed=None, network=network)
    whole.train(input_fn, max_steps=N_STEPS)
    again = make(tmp_path / "again", seed=None, network=network)
    again._store.save(read_checkpoint(tmp_path / "whole" / "ckpt-20"))
    again.train(input_fn, max_steps=N_STEPS)
    assert_same_checkpoint(whole.checkpoint, again.checkpoint)


# When the input starts anew


def losses(estimator, input_fn, **options):
    recorder = Recorder()
    estimator.train(input_fn, [recorder], **options)
    return recorder.losses


@pytest.mark.parametrize(
    ("options", "save"),
    [
        ({"max_steps": 30}, 7),
        ({"hooks": [StopAtStepHook(num_steps=30)]}, 10),
        ({"input_fn": lambda: itertools.islice(iter(INPUTS["table"]()), 30)}, 10),
    ],
)
def test_a_finished_call_starts_its_input_anew(tmp_path, options, save):
    # The last checkpoint may be one that was due in the step before the end.
    estimator = make(tmp_path, save=save)
    estimator.train(**{"input_fn": INPUTS["table"], **options})
    checkpoint = estimator.checkpoint
    assert checkpoint.global_step == 30
    assert checkpoint.input_position is None
    again = make()
    again.checkpoint = checkpoint
    assert losses(estimator, INPUTS["table"], steps=5) == losses(
        again, INPUTS["table"], steps=5
    )


def test_resume_input_is_a_setting(tmp_path):
    interrupt(make(tmp_path), INPUTS["table"], 37)
    anew = make()
    anew.checkpoint = DirectoryStore(tmp_path).latest()
    expected = losses(anew, INPUTS["table"], steps=20)
    estimator = make(tmp_path, resume=False)
    assert losses(estimator, INPUTS["table"], steps=20) == expected


@pytest.mark.parametrize(
    ("input_fn", "kind"),
    [
        (INPUTS["list"], "list"),
        (table_fn(batch_size=5, shuffle=True, seed=1), "ArrayDataset.*batch_size=5"),
    ],
)
def test_another_input_starts_anew_with_a_warning(tmp_path, caplog, input_fn, kind):
    interrupt(make(tmp_path), INPUTS["table"], 37)
    anew = make()
    anew.checkpoint = DirectoryStore(tmp_path).latest()
    expected = losses(anew, input_fn, steps=2)
    with caplog.at_level(logging.WARNING, "skest"):
        assert losses(make(tmp_path), input_fn, steps=2) == expected
    (message,) = [m for m in caplog.messages if "anew" in m]
    assert re.search(f"had taken 30 batches of ArrayDataset.*returns {kind}", message)


@pytest.mark.parametrize("n_left", [0, 3])
def test_a_shorter_input_is_refused(tmp_path, n_left):
    interrupt(make(tmp_path), INPUTS["list"], 37)
    with pytest.raises(ValueError, match="took 30 batches, but this input has fewer"):
        make(tmp_path).train(lambda: INPUTS["list"]()[:n_left] or [(X, Y)])
    assert DirectoryStore(tmp_path).latest_step() == 30
