# SPDX-License-Identifier: Apache-2.0
"""Estimators on a GPU; without one these tests are skipped."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import skest
from skest.distributed import AsyncParameterServer, SharedMemory
from skest.distributed.ps.messages import MAC_BYTES, Message, Op, pack
from skest.engine.recorded.cuda_graph import CudaGraphProgram
from skest.inputs import ArrayDataset
from skest.inputs.batches import Source, Transfer, tensor_batches
from skest.optimizers import OPTIMIZERS

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "age": rng.integers(18, 80, 600),
            "word": rng.choice(list("abcdefgh"), 600),
            "visits": [
                list(rng.choice(["x", "y"], k)) for k in rng.integers(0, 4, 600)
            ],
        }
    )
    return X, (X["age"] > 40) ^ (X["word"] > "d")


@pytest.mark.parametrize("execution", ["eager", "graph"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_wide_and_deep_learns_and_predicts_as_on_the_cpu(people, execution, optimizer):
    X, y = people[0][["age", "word"]], people[1]

    def fitted(device, execution):
        return skest.DNNLinearCombinedClassifier(
            (16,),
            dnn_optimizer=optimizer,
            dnn_learning_rate=0.05,
            execution=execution,
            max_iter=30,
            random_state=0,
            device=device,
        ).fit(X, y)

    model = fitted("cuda", execution)
    on_gpu = model.predict_proba(X)
    expected = fitted("cpu", "eager").predict_proba(X)
    np.testing.assert_allclose(on_gpu, expected, rtol=1e-2, atol=1e-2)
    model.estimator_._config = model.estimator_.config.replace(device="cpu")
    np.testing.assert_allclose(model.predict_proba(X), on_gpu, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "first"), [("adagrad", "cpu"), ("adam", "cuda"), ("ftrl", "cuda")]
)
def test_training_goes_on_on_the_other_device(people, optimizer, first):
    X, y = people[0][["age", "word"]], people[1]

    def fitted(*devices):
        model = skest.DNNLinearCombinedClassifier(
            (16,),
            dnn_optimizer=optimizer,
            dnn_learning_rate=0.05,
            max_iter=5,
            warm_start=True,
            random_state=0,
        )
        for device in devices:
            model.set_params(device=device).fit(X, y)
        return model.predict_proba(X)

    moved = fitted(first, {"cpu": "cuda", "cuda": "cpu"}[first])
    np.testing.assert_allclose(moved, fitted("cpu", "cpu"), rtol=1e-3, atol=1e-3)


def test_a_model_of_the_gpu_is_the_same_after_pickling(people):
    X, y = people[0][["age", "word"]], people[1]
    model = skest.DNNClassifier((16,), max_iter=3, random_state=0, device="cuda").fit(
        X, y
    )
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert all(
        v.device.type == "cpu" for v in model.estimator_.checkpoint.variables.values()
    )


def test_sequences(people):
    X, y = people
    model = skest.RNNClassifier(8, max_iter=3, random_state=0, device="cuda").fit(
        X[["visits"]], y
    )
    assert np.isfinite(model.predict_proba(X[["visits"]])).all()


def model_fn(features, labels, mode):
    network = torch.nn.Linear(features.shape[1], 1)
    return skest.EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: (z[:, 0] - y).square().mean(),
        predictions=lambda z: {"y": z[:, 0]},
        optimizer=torch.optim.Adam(network.parameters(), 0.01)
        if mode == skest.ModeKeys.TRAIN
        else None,
    )


@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_checkpoints_move_between_devices(tmp_path, first):
    X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)

    def train(device, steps):
        config = skest.RunConfig(random_seed=0, device=device, execution="eager")
        estimator = skest.Estimator(model_fn, tmp_path, config)
        return estimator.train(lambda: ArrayDataset(X, X[:, 0]), max_steps=steps)

    second = {"cpu": "cuda", "cuda": "cpu"}[first]
    train(first, 1)
    estimator = train(second, 2)
    assert estimator.checkpoint.global_step == 2
    slots = estimator.get_variable_names()
    assert "weight/exp_avg" in slots


def test_the_memory_of_the_gpu_is_free_after_a_call(people):
    X, y = people[0][["age", "word"]], people[1]
    model = skest.DNNClassifier((64,), max_iter=50, random_state=0, device="cuda")

    def allocated(n_calls):
        for _ in range(n_calls):
            model.fit(X, y).predict(X)
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    # cuBLAS keeps some for each stream from its first call on.
    assert allocated(1) == allocated(5)


def test_out_of_memory_names_the_batch_size():
    class Exhausting(torch.nn.Linear):
        def forward(self, x):
            torch.empty(2**44, device=x.device)
            return super().forward(x)

    def exhausting(features, labels, mode):
        network = Exhausting(3, 1)
        return skest.EstimatorSpec(
            mode,
            network=network,
            loss=lambda y, z, x: z.mean(),
            optimizer=torch.optim.SGD(network.parameters(), 0.1),
        )

    X = np.zeros((64, 3), np.float32)
    estimator = skest.Estimator(exhausting, config=skest.RunConfig(device="cuda"))
    with pytest.raises(torch.OutOfMemoryError, match="batches of 32 rows .* 4 weights"):
        estimator.train(lambda: ArrayDataset(X, X[:, 0], batch_size=32))


@pytest.mark.parametrize(
    "strategy",
    [
        AsyncParameterServer(num_workers=2, num_ps=1),
        AsyncParameterServer(num_workers=1, num_ps=2),
    ],
    ids=repr,
)
def test_workers_of_a_cluster_compute_on_the_gpu(people, strategy):
    X, y = people[0][["age", "word"]], people[1]
    model = skest.DNNLinearCombinedClassifier(
        (16,),
        dnn_optimizer="adam",
        dnn_learning_rate=0.05,
        max_iter=40,
        random_state=0,
        device="cuda",
        config=skest.RunConfig(train_distribute=strategy),
    ).fit(X, y)
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_a_table_that_does_not_fit_is_sent_batch_by_batch(
    people, execution, monkeypatch
):
    X, y = people[0][["age", "word"]], people[1]
    sent = []
    send = Transfer.__call__
    monkeypatch.setattr(
        Transfer, "__call__", lambda self, t: sent.append(len(t)) or send(self, t)
    )

    def predicted(fits):
        monkeypatch.setattr("skest.inputs.batches._fits", lambda *given: fits)
        model = skest.DNNLinearCombinedClassifier(
            (16,),
            dnn_optimizer="adagrad",
            dnn_learning_rate=0.05,
            batch_size=32,
            max_iter=20,
            execution=execution,
            random_state=0,
            device="cuda",
        )
        return model.fit(X, y).predict_proba(X)

    expected = predicted(True)
    assert sent == []
    np.testing.assert_allclose(predicted(False), expected, rtol=1e-3, atol=1e-3)
    assert sent


def test_batches_may_repeat_a_number_and_be_used_again_by_their_owner():
    buffer = torch.empty(8, 3).pin_memory()
    one = torch.ones(1)

    def batches():
        for number in range(50):
            yield buffer.fill_(number), one.expand(8)

    found = tensor_batches(
        Source(batches()), None, None, torch.device("cuda"), torch.float32
    )
    sums = [(x.sum(), y.sum()) for x, y in found]
    assert [(x.item(), y.item()) for x, y in sums] == [(24 * n, 8) for n in range(50)]


def test_recorded_steps_of_wide_and_deep_are_captured(people, monkeypatch):
    X, y = people[0][["age", "word"]], people[1]
    captured = []
    capture = CudaGraphProgram._capture

    def noting(self, inputs):
        capture(self, inputs)
        captured.append(self.obstacle)

    monkeypatch.setattr(CudaGraphProgram, "_capture", noting)
    skest.DNNLinearCombinedClassifier(
        (16,),
        dnn_optimizer="adam",
        dnn_learning_rate=0.05,
        execution="graph",
        max_iter=5,
        random_state=0,
        device="cuda",
    ).fit(X, y)
    assert captured == [None]


def test_messages_are_written_from_a_gpu():
    tensors = [torch.arange(5.0), torch.arange(3)]
    expected = pack(Message(Op.PUSH, payload=tensors))[MAC_BYTES:]
    found = pack(Message(Op.PUSH, payload=[t.cuda() for t in tensors]))
    assert torch.equal(found[MAC_BYTES:], expected)


def test_workers_that_share_memory_do_not_compute_on_a_gpu(people):
    X, y = people[0][["age", "word"]], people[1]
    config = skest.RunConfig(train_distribute=SharedMemory(num_workers=2))
    model = skest.DNNClassifier((16,), config=config, device="cuda")
    with pytest.raises(ValueError, match="Set device='cpu'"):
        model.fit(X, y)


_TORCHRUN = """
import numpy as np, skest
from skest.distributed import DataParallel
from skest import DNNClassifier, RunConfig
X = np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32)
model = DNNClassifier((8,), max_iter=3, random_state=0, device="cuda",
    config=RunConfig(train_distribute=DataParallel()))
model.fit(X, X[:, 0] > 0)
print("score", model.score(X, X[:, 0] > 0))
"""


def test_data_parallel_on_all_gpus(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_TORCHRUN)
    n = torch.cuda.device_count()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={n}", str(script)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("score") == n
