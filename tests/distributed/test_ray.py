# SPDX-License-Identifier: Apache-2.0
"""Scripts and functions as all tasks of a cluster on the nodes of Ray."""

import _thread
import json
import os
import secrets
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from skest import Estimator, EstimatorSpec, RunConfig
from skest.distributed.ray import launch
from skest.exceptions import PeerLostError
from skest.inputs import ArrayDataset
from tests.distributed._processes import wait_for

N_STEPS = 60


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine, with resources for six tasks."""
    with pytest.MonkeyPatch.context() as patch:
        # Without a token Ray writes one into the home directory; it reads them once.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


def nothing():
    """Do nothing."""


def model_fn(features, labels, mode):
    network = torch.nn.Linear(3, 1)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: ((z[:, 0] - y) ** 2).mean(),
        predictions=lambda z: {"y": z[:, 0]},
        optimizer=torch.optim.SGD(network.parameters(), lr=0.05),
    )


def input_fn():
    X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    y = X @ np.float32([1, -2, 3])
    return ArrayDataset(X, y, batch_size=16, shuffle=True, seed=0, num_epochs=None)


def train(model_dir, dies=False):
    config = RunConfig(model_dir=str(model_dir), log_step_count_steps=None)
    mark = model_dir / "died"
    if dies and config.task_type == "worker" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    Estimator(model_fn, config=config).train(input_fn, max_steps=N_STEPS)


@pytest.mark.slow
def test_each_task_is_told_who_it_is(ray, tmp_path):
    def tell(directory):
        config = json.loads(os.environ["SKEST_CONFIG"])
        kind, index = config["task"].values()
        told = {**config, "secret": os.environ["SKEST_SECRET"]}
        (directory / f"{kind}-{index}").write_text(json.dumps(told))

    launch(tell, [tmp_path], workers=3, ps=1, evaluator=True)
    told = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert set(told) == {"chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"}
    clusters = [config["cluster"] for config in told.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    assert {kind: len(of) for kind, of in clusters[0].items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }
    assert len({config["secret"] for config in told.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_a_training(ray, tmp_path, dies):
    launch(train, [tmp_path, dies], workers=2, ps=1)
    model = Estimator(model_fn, model_dir=str(tmp_path))
    assert model.get_variable_value("global_step") >= N_STEPS
    weights = model.get_variable_value("weight")
    np.testing.assert_allclose(weights, [[1, -2, 3]], atol=0.3)
    assert (tmp_path / "died").exists() == dies


@pytest.mark.slow
def test_errors_come_back(ray, tmp_path):
    def fail():
        if '"worker"' in os.environ["SKEST_CONFIG"].partition('"task"')[2]:
            raise KeyError("no such column")
        time.sleep(1000)  # it is ended

    with pytest.raises(KeyError, match="no such column") as caught:
        launch(fail, workers=2, ps=0)
    assert "in fail" in str(caught.value.__cause__)


@pytest.mark.slow
def test_a_lost_server_lets_all_begin_again(ray, tmp_path):
    def work():
        is_server = '"ps"' in os.environ["SKEST_CONFIG"].partition('"task"')[2]
        if is_server and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if not is_server:
            wait_for((tmp_path / "died").exists)
            time.sleep(3)

    launch(work, workers=1, ps=1)
    (tmp_path / "died").unlink()
    with pytest.raises(PeerLostError, match="Ray lost ps 0.* goes on from its last"):
        launch(work, workers=1, ps=1, max_restarts=0)


@pytest.mark.slow
def test_ctrl_c_lets_tasks_save(ray, tmp_path):
    def work():
        try:
            (tmp_path / "begun").touch()
            while True:  # Ray interrupts Python, and no call of the system
                time.sleep(0.1)
        except KeyboardInterrupt:
            (tmp_path / "saved").touch()

    def interrupt():
        wait_for((tmp_path / "begun").exists)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        launch(work, workers=1, ps=0)
    wait_for((tmp_path / "saved").exists)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ([3], {}, TypeError, "must be the path of a script or a callable; got 3"),
        (["nowhere.py"], {}, ValueError, "There is no script 'nowhere.py'"),
        ([nothing, "x"], {}, TypeError, "'arguments' must be a list; got 'x'"),
        ([__file__, [1]], {}, TypeError, r"must be strings; got \[1\]"),
        ([nothing], {"workers": 0}, ValueError, "workers"),
        ([nothing], {"ps": -1}, ValueError, "ps"),
        ([nothing], {"max_restarts": -1}, ValueError, "max_restarts"),
        ([nothing], {"start_timeout": 0}, ValueError, "start_timeout"),
        ([nothing], {"resources": {"gpu": {}}}, ValueError, r"keys out of .*\['gpu'\]"),
    ],
)
def test_wrong_arguments(arguments, options, error, match, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(error, match=match):
        launch(*arguments, **options)


def test_a_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install ray"):
        launch(nothing)
