# SPDX-License-Identifier: Apache-2.0
"""Replicas that train the same variables, in one process."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest import DNNClassifier, RunConfig
from skest.distributed import SharedMemory
from skest.distributed.shared_memory import SharedMemoryReplica, SharedTensors
from skest.engine.loop import train_step
from skest.hooks.base import Run
from skest.optimizers.ftrl import Ftrl, ProximalAdagrad
from skest.optimizers.row_sparse import RowSparse
from skest.spec import EstimatorSpec

OPTIMIZERS = {
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "ftrl": Ftrl,
    "momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "proximal_adagrad": ProximalAdagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

ONE_WORKER = RunConfig(train_distribute=SharedMemory(1))


def make_run(make=torch.optim.SGD, network=None, step=0, seed=0):
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    network = torch.nn.Linear(3, 1) if network is None else network()
    torch.random.set_rng_state(torch_state)
    spec = EstimatorSpec(
        "train",
        network=network,
        loss=lambda labels, logits, features: (logits - labels).square().mean(),
        optimizer=make(network.parameters(), lr=0.1),
    )
    return Run(spec, RunConfig(), global_step=step)


def pair(**options):
    """Return two replicas that have begun, with their runs."""
    runs = [make_run(seed=seed, **options) for seed in (0, 1)]
    chief = SharedMemoryReplica(0, 2)
    chief.begin(runs[0])
    worker = SharedMemoryReplica(1, 2, chief.memory)
    worker.begin(runs[1])
    return (chief, worker), runs


def batch(seed):
    rng = np.random.default_rng(seed)
    X = torch.tensor(rng.normal(size=(8, 3)), dtype=torch.float32)
    return X, X.sum(1, keepdim=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_that_take_turns_are_one(name):
    make = OPTIMIZERS[name]
    alone = make_run(make)
    (chief, worker), runs = pair(make=make)
    for i in range(6):
        features, labels = batch(i)
        expected = train_step(alone.spec, features, labels)
        run, replica = runs[i % 2], (chief, worker)[i % 2]
        loss = train_step(run.spec, features, labels)
        assert replica.steps_taken(run) == i + 1
        torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    for run in runs:
        for ours, theirs in zip(
            run.network.parameters(), alone.network.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)


def test_rows_of_tables_are_shared_with_their_slots():
    def table():
        return torch.nn.Embedding(50, 1, sparse=True)

    def make(params, lr):
        return RowSparse(torch.optim.Adam(params, lr=lr))

    alone = make_run(make, network=table)
    _, runs = pair(make=make, network=table)
    for i in range(6):
        features, labels = torch.tensor([i, 3, i, 7]), torch.ones(4, 1)
        train_step(alone.spec, features, labels)
        train_step(runs[i % 2].spec, features, labels)
    assert torch.equal(runs[0].network.weight, alone.network.weight)
    assert torch.equal(runs[1].network.weight, alone.network.weight)


def test_the_global_step_is_the_sum_and_begins_at_that_of_the_checkpoint():
    chief, worker = SharedMemoryReplica(0, 2), None
    run = make_run(step=40)
    chief.begin(run)
    assert [chief.steps_taken(run) for _ in range(2)] == [41, 42]
    worker, other = SharedMemoryReplica(1, 2, chief.memory), make_run()
    worker.begin(other)
    assert other.global_step == 42
    assert worker.steps_taken(other) == chief.global_step == 43


def test_all_stop_when_the_chief_asks():
    (chief, worker), runs = pair()
    worker.steps_taken(runs[1])
    assert not runs[1].should_stop
    chief.stop_others()
    worker.steps_taken(runs[1])
    assert runs[1].stop_reason == "the other processes have stopped"
    late = make_run()
    SharedMemoryReplica(1, 2, chief.memory).begin(late)
    assert late.should_stop


class Drawn(torch.nn.Linear):
    """Has buffers that it draws when it is built."""

    def __init__(self, n_rows=2):
        super().__init__(3, 1)
        self.register_buffer("saved", torch.randn(2))
        self.register_buffer("unsaved", torch.randn(()), persistent=False)
        self.register_buffer("mask", torch.ones(1).expand(3))
        self.register_buffer("sparse", torch.eye(2).to_sparse(), persistent=False)
        self.register_buffer("rows", torch.full((n_rows,), float(n_rows)))


def test_buffers_begin_alike_and_then_belong_to_each_process():
    _, (run, other) = pair(network=Drawn)
    ours, theirs = (
        {name: b.to_dense() for name, b in r.network.named_buffers()}
        for r in (run, other)
    )
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    ours["saved"].fill_(7)
    assert (theirs["saved"] != 7).all()


def test_another_network_is_refused():
    chief = SharedMemoryReplica(0, 2)
    chief.begin(make_run())
    other = make_run(network=lambda: torch.nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"'weight' has the .* \(1, 4\) in this .*3\)"):
        SharedMemoryReplica(1, 2, chief.memory).begin(other)
    other = make_run(network=lambda: torch.nn.Sequential(torch.nn.Linear(3, 1)))
    with pytest.raises(ValueError, match=r"'0.weight' .* and none in the calling one"):
        SharedMemoryReplica(1, 2, chief.memory).begin(other)


def test_optimizers_whose_state_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="can't begin .* NAdam: its slot 'mu_product'"):
        SharedMemoryReplica(0, 2).begin(make_run(torch.optim.NAdam))


DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=8),
    dtype=st.sampled_from(DTYPES),
    n_counters=st.integers(1, 20),
)
def test_tensors_are_where_the_others_look(shapes, dtype, n_counters):
    tensors = {f"0:{i}/s": torch.ones(s).to(dtype) for i, s in enumerate(shapes)}
    first = SharedTensors.create(tensors, n_counters)
    second = SharedTensors(first.file, first.layout)
    assert second.counters.tolist() == [0] * n_counters
    first.counters[-1] = 7
    assert second.counters[-1] == 7
    for i, (name, tensor) in enumerate(tensors.items()):
        assert torch.equal(second.tensors[name], tensor)
        first.tensors[name].fill_(i % 2)
    for name in tensors:
        assert torch.equal(second.tensors[name], first.tensors[name])
    first.file.close()


def variables(model):
    core = model.estimator_
    return {name: core.get_variable_value(name) for name in core.get_variable_names()}


def fitted(config, make):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    return make(config).fit(X, X[:, 0] * X[:, 1] > 0)


@pytest.mark.parametrize("execution", ["eager", "graph"])
@pytest.mark.parametrize(
    "optimizer", ["adagrad", "adam", "ftrl", "momentum", "rmsprop"]
)
def test_one_worker_is_a_local_training_bit_for_bit(optimizer, execution):
    def make(config):
        return DNNClassifier(
            (8,),
            optimizer=optimizer,
            learning_rate=0.05,
            dropout=0.1,
            batch_size=64,
            max_iter=5,
            random_state=0,
            execution=execution,
            config=config,
        )

    ours, theirs = (variables(fitted(c, make)) for c in (ONE_WORKER, RunConfig()))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
