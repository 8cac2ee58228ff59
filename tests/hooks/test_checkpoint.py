# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator, RunConfig
from skest.checkpoints.store import DirectoryStore
from skest.hooks import CheckpointListener, CheckpointSaverHook
from tests._models import At, model_fn, raising, table_fn


class Listener(CheckpointListener):
    def __init__(self, stop_after=None):
        self.calls, self.stop_after = [], stop_after

    def begin(self, run):
        self.calls.append("begin")

    def before_save(self, run):
        self.calls.append(("before_save", run.global_step))

    def after_save(self, run):
        self.calls.append(("after_save", run.global_step))
        return run.global_step == self.stop_after

    def end(self, run):
        self.calls.append(("end", run.global_step))


def calls(*saved):
    pairs = [((f"{when}_save", step)) for step in saved for when in ("before", "after")]
    return ["begin", *pairs, ("end", saved[-1])]


@pytest.fixture
def train(tmp_path):
    def train(steps, config=None, **arguments):
        config = (config or RunConfig()).replace(model_dir=tmp_path)
        estimator = Estimator(model_fn, config=config)
        return estimator.train(table_fn(num_epochs=None), steps=steps, **arguments)

    return train


@pytest.mark.parametrize(
    "given",
    [
        {"save_checkpoints_steps": 0},
        {"save_checkpoints_secs": 0},
        {"save_checkpoints_steps": None, "save_checkpoints_secs": None},
    ],
)
def test_without_an_interval_the_end_is_saved(train, given):
    """Where tf.estimator saves nothing; for the rest see golden cases checkpoint/..."""
    listener = Listener()
    train(5, RunConfig(**given), saving_listeners=[listener])
    assert listener.calls == calls(5)


def test_a_hook_of_the_caller_replaces_the_one_of_the_configuration(train):
    listener = Listener()
    saver = CheckpointSaverHook(save_steps=4)
    config = RunConfig(save_checkpoints_steps=1)
    train(6, config, hooks=[saver], saving_listeners=[listener])
    assert listener.calls == calls(0, 4, 6)


def test_listeners_join_those_of_the_hook_and_leave_it_as_it_was(train):
    own, added = Listener(), Listener()
    saver = CheckpointSaverHook(save_steps=2, listeners=[own])
    train(2, hooks=[saver], saving_listeners=[added])
    assert own.calls == added.calls == calls(0, 2)
    assert saver.listeners == [own]


def test_a_listener_can_stop_the_training(train):
    steps = 4
    listener = Listener(stop_after=steps)
    estimator = train(
        20, RunConfig(save_checkpoints_steps=2), saving_listeners=[listener]
    )
    assert estimator.checkpoint.global_step == steps
    assert listener.calls == calls(*range(0, steps + 1, 2))


def test_a_listener_can_ask_for_a_checkpoint_out_of_turn(train):
    class Wants(Listener):
        def wants_checkpoint(self, run):
            return run.global_step in (1, 4, 5)

    listener = Wants()
    config = RunConfig(save_checkpoints_steps=4)
    train(9, config, saving_listeners=[listener])
    assert listener.calls == calls(0, 1, 4, 5, 8, 9)


def test_saving_comes_after_all_other_hooks(train, tmp_path):
    listener = Listener()
    hooks = [CheckpointSaverHook(save_steps=1), At(3, raising(ValueError("refused")))]
    with pytest.raises(ValueError, match="refused"):
        train(5, hooks=hooks, saving_listeners=[listener])
    assert ("before_save", 3) not in listener.calls
    # The last state is saved all the same, because training was interrupted.
    assert DirectoryStore(tmp_path).latest_step() == 3
