# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator, RunConfig
from skest.checkpoints.store import read_eval_results
from skest.hooks import InMemoryEvaluatorHook
from tests._models import assert_same_checkpoint, model_fn, table_fn

ENDLESS = table_fn(num_epochs=None, shuffle=True, seed=0)


def make(model_dir=None, network="batch_norm"):
    config = RunConfig(random_seed=0, save_checkpoints_steps=0)
    params = {"network": network, "optimizer": "adam"}
    return Estimator(model_fn, model_dir, config, params)


@pytest.mark.parametrize("network", ["skest_dropout", "batch_norm"])
def test_results_are_those_of_checkpoints_and_training_is_not_touched(network):
    estimator, plain = make(network=network), make(network=network)
    hook = InMemoryEvaluatorHook(estimator, table_fn(), every_n_iter=3)
    estimator.train(ENDLESS, [hook], steps=7)
    assert list(hook.results) == [0, 3, 6, 7]
    assert hook.results[7] == estimator.evaluate(table_fn())
    assert_same_checkpoint(
        plain.train(ENDLESS, steps=7).checkpoint, estimator.checkpoint
    )
    at_three = make(network=network).train(ENDLESS, steps=3)
    assert hook.results[3] == at_three.evaluate(table_fn())


def test_writes_results_and_no_checkpoint(tmp_path):
    estimator = make(tmp_path)
    hook = InMemoryEvaluatorHook(estimator, table_fn(), name="live", every_n_iter=2)
    estimator.train(ENDLESS, [hook], steps=4)
    assert read_eval_results(estimator.eval_dir("live")) == hook.results
    assert [path.name for path in tmp_path.glob("ckpt-*")] == ["ckpt-4"]


def test_wrong_arguments():
    for arguments, error, match in [
        ((None, table_fn()), TypeError, "'estimator' must be a skest.Estimator"),
        ((make(), [1]), TypeError, "'input_fn' of .*Hook must be a function"),
        ((make(), table_fn(), None, [3]), TypeError, "'hooks' must be .*Hook; got 3"),
        (
            (make(), table_fn(), None, (), None, 0),
            ValueError,
            "'every_n_iter' of InMemoryEvaluatorHook must be",
        ),
    ]:
        with pytest.raises(error, match=match):
            InMemoryEvaluatorHook(*arguments)
