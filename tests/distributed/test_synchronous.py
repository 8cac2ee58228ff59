# SPDX-License-Identifier: Apache-2.0
"""`DataParallel` and `LocalSGD`, with two processes that are started once."""

import dataclasses
import functools
import os
import signal

import numpy as np
import pytest
import torch
import torch.distributed as dist

from skest import DNNClassifier, RunConfig
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import DirectoryStore, MemoryStore
from skest.distributed import DataParallel, LocalSGD
from skest.distributed.synchronous import DataParallelReplica, LocalSGDReplica
from skest.exceptions import NanLossDuringTrainingError, PeerLostError
from skest.hooks import Hook
from tests._models import At
from tests.distributed import _ranks
from tests.distributed._ranks import Dense, batches, estimator, variables

SIZES = [(4, 4)] * 5
UNEVEN = [(4, 2), (1, 3), (5, 1)]
MODELS = {
    "sgd": {"optimizer": "sgd"},
    "adam": {"optimizer": "adam", "learning_rate": 0.1},
    "ftrl": {"optimizer": "ftrl", "learning_rate": 0.1},
    "clipped": {"clip_norm": 0.25},
    "dense": {"network": Dense},
}


def trained(rank, folder, sizes=SIZES, *, hooks=(), seed=1, config=None, **params):
    """Train on this rank's part of the batches, in all processes."""
    made = estimator(folder, seed, config=config, **params)
    replica = DataParallelReplica("cpu", timeout=60)
    return _ranks.train(replica, made, batches(sizes, rank), hooks=hooks)


def alone(sizes=SIZES, **params):
    """Train on all batches, in this process."""
    return variables(estimator(**params).train(batches(sizes)))


def numbers(found):
    """Return the variables of a network only."""
    return {k: v for k, v in found.items() if isinstance(v, list)}


def assert_near(found, expected):
    assert found["step"] == expected["step"]
    assert numbers(found).keys() == numbers(expected).keys()
    for name, value in numbers(expected).items():
        np.testing.assert_allclose(found[name], value, 1e-4, 1e-6, err_msg=name)


class Trace(Hook):
    """Notes losses and, at the end, what each process has."""

    def __init__(self):
        self.losses, self.end_state = [], {}

    def after_step(self, run, loss):
        self.losses.append(loss.item())
        self.end_state = {n: v.tolist() for n, v in run.network.state_dict().items()}
        self.random = torch.random.get_rng_state().tolist()


# What the processes do. All is done in one start of them, one after another, so that
# they join again as well.


def same_as_one(rank, folder, **params):
    trace = Trace()
    found = variables(trained(rank, folder, hooks=[trace], **params))
    return found, trace.losses, trace.end_state


for _name, _params in MODELS.items():
    globals()[f"model_{_name}"] = functools.partial(same_as_one, **_params)


def uneven(rank, folder):
    return variables(trained(rank, folder, UNEVEN))


def one_ends_earlier(rank, folder):
    sizes = SIZES[: 3 + rank]
    made = estimator(folder)
    replica = DataParallelReplica("cpu", timeout=60)
    trace = Trace()
    _ranks.train(replica, made, batches(sizes, rank), hooks=[trace])
    return variables(made), len(trace.losses)


def one_is_stopped(rank, folder):
    hooks = [At(2, lambda run: run.request_stop("enough"))] if rank == 1 else []
    return variables(trained(rank, folder, hooks=hooks))


def fit_of(strategy, in_directory, rank, folder):
    # One row more than whole batches, which is a batch of one process only.
    X = np.random.default_rng(0).normal(size=(41, 3)).astype(np.float32)
    config = RunConfig(folder if in_directory else None, train_distribute=strategy)
    model = DNNClassifier(
        (4,), config=config, batch_size=5, max_iter=2, random_state=0, device="cpu"
    ).fit(X, X[:, 0] > 0)
    found = model.predict_proba(X).tolist(), model.n_steps_, model.score(X, X[:, 0] > 0)
    again = model.set_params(warm_start=True).fit(X, X[:, 0] > 0)
    return found, again.n_steps_, again.predict_proba(X).tolist(), model.model_dir_


fit_in_memory = functools.partial(fit_of, DataParallel(), False)
fit_in_directory = functools.partial(fit_of, LocalSGD(3), True)


def one_is_interrupted(rank, folder):
    interrupt = At(2, lambda run: os.kill(os.getpid(), signal.SIGINT))
    first = variables(trained(rank, folder, hooks=[interrupt] if rank == 1 else []))
    return first, variables(trained(rank, folder))


def one_fails(rank, folder):
    def fail(run):
        raise OSError("no more paper")

    try:
        trained(rank, folder, hooks=[At(3, fail)] if rank == 1 else [])
    except (OSError, PeerLostError) as error:
        first = f"{type(error).__name__}: {error}"
    return first, variables(trained(rank, folder))


def nan_in_one(rank, folder):
    def input_fn():
        for step, (ids, y) in enumerate(batches(SIZES, rank)()):
            yield ids, y * (np.nan if step == 2 and rank == 1 else 1)

    replica = DataParallelReplica("cpu", timeout=60)
    try:
        _ranks.train(replica, estimator(folder), input_fn)
    except NanLossDuringTrainingError as error:
        return str(error)


def another_network_in_one(rank, folder):
    trained(rank, folder, network=Dense if rank else _ranks.Tables)


def no_batch_for_one(rank, folder):
    made = estimator(folder)
    _ranks.train(
        DataParallelReplica("cpu"), made, lambda: batches(SIZES, 0)() if rank else []
    )


def dropout(rank, folder):
    found = []
    for name in "ab":
        trace = Trace()
        made = trained(rank, folder / name, hooks=[trace], network=Dense, dropout=0.5)
        found.append((numbers(variables(made)), trace.random))
    return found


def batch_norm(rank, folder):
    trace = Trace()
    made = trained(rank, folder, hooks=[trace], network=Dense, batch_norm=True)
    return variables(made), trace.end_state


# The same for LocalSGD


def sgd_trained(
    rank, folder, sync_every, *, hooks=(), sizes=SIZES, config=None, **params
):
    made = estimator(folder, config=config, **params)
    replica = LocalSGDReplica(sync_every, "cpu", timeout=60)
    return _ranks.train(replica, made, batches(sizes, rank), hooks=hooks)


def sgd_every_step(rank, folder):
    return variables(sgd_trained(rank, folder, 1))


def sgd_every_second_step(rank, folder):
    trace = Trace()
    config = {"save_checkpoints_steps": 2}
    made = sgd_trained(rank, folder, 2, hooks=[trace], config=config)
    kept = DirectoryStore(folder)
    steps = sorted(int(path.name[5:]) for path in folder.glob("ckpt-*"))
    return variables(made), trace.end_state, (steps, kept.latest_step())


def sgd_in_graph(rank, folder):
    return variables(sgd_trained(rank, folder, 2, config={"execution": "graph"}))


def sgd_of_ftrl(rank, folder):
    params = {"optimizer": "ftrl", "learning_rate": 0.1}
    states = []
    hooks = [At(step, lambda run: states.append(state_of(run))) for step in (2, 3, 4)]
    sgd_trained(rank, folder, 2, hooks=hooks, **params)
    return states


def state_of(run):
    return Checkpoint.capture(run.network, run.global_step).variables["once.weight"]


def sgd_one_ends_earlier(rank, folder):
    return variables(sgd_trained(rank, folder, 2, sizes=SIZES[: 3 + 2 * rank]))


TOGETHER = [
    *(f"model_{name}" for name in MODELS),
    *("uneven", "one_ends_earlier", "one_is_stopped", "one_is_interrupted"),
    *("one_fails", "nan_in_one", "another_network_in_one", "no_batch_for_one"),
    *("dropout", "batch_norm", "fit_in_memory", "fit_in_directory"),
    *("sgd_every_step", "sgd_every_second_step", "sgd_in_graph"),
    *("sgd_of_ftrl", "sgd_one_ends_earlier"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both processes found, by function."""
    folder = tmp_path_factory.mktemp("ranks")
    return _ranks.found_by_both(__name__, TOGETHER, folder)


@pytest.mark.parametrize("name", MODELS)
def test_two_processes_train_as_one(results, name):
    (found, losses, end), (_, other_losses, other_end) = results[f"model_{name}"]
    assert_near(found, alone(**MODELS[name]))
    assert losses == other_losses
    assert end == other_end
    assert {n: found[n] for n in end} == end


def test_processes_with_more_rows_count_for_more(results):
    assert_near(results["uneven"][0], alone(UNEVEN))


def test_all_stop_where_the_input_of_one_ends(results):
    (found, n_steps), (_, n_others) = results["one_ends_earlier"]
    assert n_steps == n_others == found["step"] == 3
    assert found["stop_reason"] == "the input ended"


def test_all_stop_where_one_is_asked_to(results):
    found = results["one_is_stopped"][0]
    assert found["step"] == 2
    assert found["stop_reason"] == "another process asked to stop"


@pytest.mark.parametrize("place", ["memory", "directory"])
def test_fit_leaves_every_process_with_the_same_model(results, place):
    (*chief, chief_dir), (*other, other_dir) = results[f"fit_in_{place}"]
    assert chief == other
    (_, n_steps, score), n_steps_of_two, _ = other
    assert n_steps_of_two == 2 * n_steps == 20
    assert score > 0.4
    assert (chief_dir is None) == (place == "memory")
    assert other_dir is None  # the files are those of the chief


def test_an_interrupted_training_goes_on(results):
    first, found = results["one_is_interrupted"][0]
    assert first["position"]["input"] == "generator, part 1 of 2"
    assert len(first["position"]["ranks"]) == 2
    assert first["step"] == 2
    assert first["stop_reason"] == "interrupted by Ctrl-C"
    assert first["position"]["batches"] == 2
    uninterrupted = results["model_sgd"][0][0]
    assert found == uninterrupted


def test_the_others_are_told_of_an_error(results):
    (told, found), (own, _) = results["one_fails"]
    assert own == "OSError: no more paper"
    assert "PeerLostError: A process of this training has ended" in told
    assert "(rank 1: OSError: no more paper)" in told
    assert "(rank 0 of 2)" in told
    assert found == results["model_sgd"][0][0]  # it went on behind the last whole step


def test_nan_of_one_is_nan_of_all(results):
    for found in results["nan_in_one"]:
        assert "The loss of step 3 is NaN" in found


def test_networks_must_be_the_same(results):
    told, own = results["another_network_in_one"]
    assert "CheckpointMismatchError" in own
    assert "(rank 1: CheckpointMismatchError" in told


def test_an_input_without_a_batch_does_not_keep_others_waiting(results):
    own, told = results["no_batch_for_one"]
    assert own is None
    assert "(rank 0: it made no steps; its input may have no batch)" in told


def test_dropout_differs_between_processes_and_can_be_repeated(results):
    (first, again), others = results["dropout"]
    assert first == again
    assert others[0] == others[1]
    assert first[0] == others[0][0]  # the variables
    assert first[1] != others[0][1]  # the generators


def test_statistics_are_those_of_the_chief(results):
    (found, own), (_, other) = results["batch_norm"]
    for name in own:
        is_statistic = "running" in name
        assert found[name] == own[name]
        assert (own[name] != other[name]) == is_statistic


# Processes that end


def killed(rank, folder):
    def kill(run):
        os.kill(os.getpid(), signal.SIGKILL)

    config = {"save_checkpoints_steps": 1}
    try:
        hooks = [At(3, kill)] if rank == 1 else []
        trained(rank, folder, hooks=hooks, config=config)
    finally:
        # Of the survivor, which torchrun ends as well.
        (folder / f"{rank}.txt").write_text("ended")


@pytest.mark.slow
def test_torchrun_starts_both_and_ends_all_when_one_is_killed(tmp_path):
    found, done = _ranks.torchrun(__name__, ["model_sgd", "killed"], tmp_path)
    for of_rank in found:
        assert_near(of_rank["model_sgd"][0], alone(**MODELS["sgd"]))
    assert done.returncode != 0
    checkpoint = estimator(tmp_path / "killed").checkpoint
    assert checkpoint.global_step in (2, 3)


# One process


@pytest.fixture
def one_process(monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**variables, "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["adam", "clipped"])
def test_one_process_trains_as_without_a_strategy(one_process, tmp_path, name):
    sizes = [4, 4, 3]
    made = estimator(tmp_path, **MODELS[name])
    with_replica = _ranks.train(DataParallelReplica("cpu"), made, batches(sizes))
    assert numbers(variables(with_replica)) == numbers(alone(sizes, **MODELS[name]))


def test_the_environment_of_torchrun_is_needed(one_process, monkeypatch):
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match=r"'RANK' is not set(.|\n)*torchrun --npr"):
        DataParallelReplica("cpu").__enter__()


def test_an_input_is_not_gone_on_with_by_another_number_of_processes(
    one_process, caplog
):
    position = {"input": "generator", "batches": 2, "seeds": []}
    made = estimator(seed=1).train(batches(SIZES), steps=2)
    of_two = {**position, "input": "generator, part 1 of 2", "ranks": [position] * 2}
    store = MemoryStore(dataclasses.replace(made.checkpoint, input_position=of_two))
    with DataParallelReplica("cpu") as replica:
        found = replica.latest(store)
    assert found.input_position is None
    assert found.global_step == 2
    assert "one of 2 processes, now there are 1" in caplog.text
    made = estimator()
    made._store = store
    made.train(batches([4] * 3))  # and without a strategy
    assert made.checkpoint.global_step == 5
    assert "taken 2 batches of generator, part 1 of 2, but" in caplog.text


def test_a_process_that_does_not_come(one_process, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PeerLostError, match="'WORLD_SIZE' is 2, .* within 1 seconds"):
        DataParallelReplica("cpu", timeout=1).__enter__()
    assert not dist.is_initialized()


# LocalSGD


def simulated(sync_every):
    """Train two copies of the model in this process, averaged every few steps."""
    specs = [fresh_spec() for _ in range(2)]
    specs[1].network.load_state_dict(specs[0].network.state_dict())
    parts = [list(batches(SIZES, rank)()) for rank in range(2)]
    for step in range(len(SIZES)):
        for spec, part in zip(specs, parts, strict=True):
            ids, y = map(torch.from_numpy, part[step])
            spec.optimizers[0].zero_grad()
            spec.loss(y, spec.network(ids), ids).backward()
            spec.optimizers[0].step()
        if (step + 1) % sync_every == 0 or step + 1 == len(SIZES):
            average(specs)
    return {n: v.tolist() for n, v in specs[0].network.state_dict().items()}


def fresh_spec():
    initial = Initial()
    made = estimator().train(batches(SIZES, 0), hooks=[initial], steps=1)
    spec = made.model_fn(*next(batches(SIZES)()), "train")
    spec.network.load_state_dict(initial.variables)
    return spec


class Initial(Trace):
    def begin(self, run):
        found = run.network.state_dict()
        self.variables = {n: v.clone() for n, v in found.items()}


@torch.no_grad()
def average(specs):
    one, two = (list(spec.network.parameters()) for spec in specs)
    for first, second in zip(one, two, strict=True):
        first.copy_((first + second) / 2)
        second.copy_(first)


def test_an_average_in_every_step_is_data_parallelism(results):
    found = results["sgd_every_step"][0]  # of SGD, whose step is linear in the gradient
    assert_near(found, alone())


@pytest.mark.parametrize("name", ["sgd_every_second_step", "sgd_in_graph"])
def test_processes_train_apart_between_averages(results, name):
    found = results[name][0]
    found = found[0] if isinstance(found, tuple) else found
    for variable, value in simulated(2).items():
        np.testing.assert_allclose(found[variable], value, 1e-5, 1e-6)


def test_the_chief_saves(results):
    (found, own, (steps, latest)), (_, other, _) = results["sgd_every_second_step"]
    assert own != other  # of step 5, before the last average
    assert numbers(found) != own
    assert (steps, latest) == ([0, 2, 4, 5], 5)
    assert found["step"] == 5


def test_weights_of_ftrl_stay_averaged(results):
    (own, own_next, own_last), (other, other_next, other_last) = results["sgd_of_ftrl"]
    assert torch.equal(own, other)
    assert not torch.equal(own_next, other_next)
    assert (own_next - other_next).abs().max() < 0.5  # each one step from their mean
    assert torch.equal(own_last, other_last)


def test_all_stop_at_an_average_where_the_input_of_one_ends(results):
    found, _ = results["sgd_one_ends_earlier"]
    assert found["step"] == 3
    assert found["stop_reason"] == "the input ended"


def test_one_process_is_its_own_average(one_process, tmp_path):
    made = _ranks.train(
        LocalSGDReplica(2, "cpu"), estimator(tmp_path), batches([4] * 5)
    )
    assert numbers(variables(made)) == numbers(alone([4] * 5))
    assert dist.is_initialized()  # for the next training
