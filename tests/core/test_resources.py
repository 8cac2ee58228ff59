# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

from skest import DNNRegressor, Estimator, EstimatorSpec, ModeKeys, RunConfig
from skest.core.resources import (
    FLOP_PER_THREAD,
    IntraOpThreads,
    dense_size,
    explained_out_of_memory,
    resolve_device,
    threads_for,
)
from skest.distributed import SharedMemory
from skest.inputs import ArrayDataset
from tests import _forkserver
from tests._models import At, model_fn, table_fn


@pytest.fixture(autouse=True)
def three_threads():
    """Let the caller's setting be one that nothing else would choose."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_shared_memory_is_that_of_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = RunConfig(train_distribute=SharedMemory(num_workers=2))
    estimator = Estimator(lambda features, labels, mode: None, config=config)
    assert estimator._builder.device == torch.device("cpu")


def test_unknown_devices_are_refused():
    for device in ["gpu", "", 3.5, None]:
        with pytest.raises(ValueError, match="'device' must be"):
            resolve_device(device)


def test_a_missing_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"'device' is 'cuda:0', but .*device='auto'"):
        resolve_device("cuda:0")


def test_threads_grow_with_the_work_of_a_step():
    for work, threads in [(0.0, 1), (0.99, 1), (1.0, 2), (2.5, 3), (7.0, 8)]:
        for passes in [1, 3]:
            n_parameters = 1000
            network = nn.Linear(n_parameters, 1, bias=False)
            rows = round(work * FLOP_PER_THREAD / (2 * passes * n_parameters) + 0.5)
            rows = rows if work else 0
            assert threads_for(dense_size(network), rows, passes=passes) == threads


@pytest.mark.parametrize("first_to_leave", ["this", "other"])
def test_overlapping_threads_get_the_callers_setting_back(first_to_leave):
    entered, leave = threading.Event(), threading.Event()
    found = {}

    def other():
        with IntraOpThreads.limited_to(8, wanted="auto"):
            found["inside"] = torch.get_num_threads()
            entered.set()
            assert leave.wait(60)
        found["outside"] = torch.get_num_threads()

    with IntraOpThreads.limited_to(1, wanted="auto"):
        thread = in_thread(other)  # it starts with the limit of this thread
        assert entered.wait(60)
        if first_to_leave == "other":
            leave.set()
            thread.join()
        assert torch.get_num_threads() == 1
    leave.set()
    thread.join()
    assert found == {"inside": 3, "outside": 3}
    assert torch.get_num_threads() == 3
    in_thread(lambda: found.update(later=torch.get_num_threads())).join()
    assert found["later"] == 3


@pytest.mark.parametrize(("num_threads", "expected"), [("auto", 1), (4, 4)])
def test_training_runs_with_the_threads_it_needs(num_threads, expected):
    seen = []
    estimator = Estimator(model_fn, config=RunConfig(num_threads=num_threads))
    hook = At(2, lambda run: seen.append(torch.get_num_threads()))
    estimator.train(table_fn(), hooks=[hook], max_steps=2)
    estimator.evaluate(table_fn(), hooks=[hook], steps=1)
    assert seen == [expected, expected]
    assert torch.get_num_threads() == 3


def fit_large_layers(num_threads):
    X = np.ones((1000, 64), np.float32)
    config = RunConfig(num_threads=num_threads)
    model = DNNRegressor((512,), max_iter=1, batch_size=1000, config=config)
    model.fit(X, X[:, 0])


def fit_before_and_after_a_fork():
    fit_large_layers(2)
    for num_threads in ("auto", 2):
        child = multiprocessing.get_context("fork").Process(
            target=fit_large_layers, args=(num_threads,)
        )
        child.start()
        child.join(60)
        child.kill()
        child.join()
        assert child.exitcode == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_fit_ends_in_the_fork_of_a_process_that_fitted():
    process = _forkserver.context().Process(target=fit_before_and_after_a_fork)
    process.start()
    process.join()
    assert process.exitcode == 0


class Exhausting(torch.nn.Linear):
    """Runs out of memory in the third call."""

    n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        if self.n_calls == 3:
            torch.empty(2**46)
        return super().forward(x)


def exhausting_model_fn(features, labels, mode):
    network = Exhausting(2, 1)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: (z[:, 0] - y).square().mean(),
        predictions=lambda z: {"y": z[:, 0]},
        optimizer=torch.optim.SGD(network.parameters(), 0.1)
        if mode == ModeKeys.TRAIN
        else None,
    )


def test_training_names_the_batch_size_and_the_variables():
    X = np.zeros((40, 2), np.float32)
    estimator = Estimator(exhausting_model_fn)
    match = (
        r"of cpu is at its end with batches of 8 rows and 3 weights \(largest: 'weight' of "
        r"shape \(1, 2\), 8.0 bytes, 'bias'.*smaller batch size.*can't allocate memory"
    )
    with pytest.raises(MemoryError, match=match):
        estimator.train(lambda: ArrayDataset(X, X[:, 0], batch_size=8))


def test_the_error_of_a_gpu_keeps_its_type():
    match = r"of cuda:1 is at its end with batches of 5 rows and 0 weights; .*1 GiB"
    with (
        pytest.raises(torch.OutOfMemoryError, match=match),
        explained_out_of_memory(5, torch.device("cuda:1"), nn.Module()),
    ):
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")
