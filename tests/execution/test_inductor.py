# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest import DNNClassifier
from skest.execution import GraphStep
from skest.execution.inductor import InductorProgram
from skest.execution.program import Program
from skest.networks import Dropout
from tests.execution._steps import batches, make_spec, mlp, run_both


@pytest.fixture
def without_compiler(monkeypatch):
    """Run the graph that would be compiled: a compiler takes seconds."""
    monkeypatch.setattr(torch, "compile", lambda module, dynamic: module)


@pytest.mark.usefixtures("without_compiler")
def test_the_graph_to_compile_gives_the_same_numbers():
    step, reports = run_both(
        lambda: make_spec(mlp(torch.nn.BatchNorm1d(5))),
        batches(6),
        program=InductorProgram,
    )
    assert (step.n_replayed, reports) == (3, [])


@pytest.mark.usefixtures("without_compiler")
def test_compiled_steps_may_round_differently(monkeypatch):
    call = InductorProgram.__call__
    monkeypatch.setattr(
        InductorProgram,
        "__call__",
        lambda self, *inputs: tuple(t * (1 + 1e-5) for t in call(self, *inputs)),
    )
    step = GraphStep(
        make_spec(mlp()), eager_steps=1, report=print, program=InductorProgram
    )
    for batch in batches(6):
        step(*batch)
    assert step.n_replayed == 3


def test_without_a_compiler_steps_are_replayed_uncompiled(monkeypatch):
    def fail(*inputs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda module, dynamic: fail)
    step, reports = run_both(
        lambda: make_spec(mlp()), batches(9), program=InductorProgram
    )
    assert reports == [
        "Training steps are not compiled: a recorded step cannot be replayed: "
        "RuntimeError: no compiler."
    ]
    assert step.n_replayed > 3


@pytest.mark.usefixtures("without_compiler")
def test_other_numbers_of_a_compiler_are_not_used(monkeypatch):
    call = InductorProgram.__call__
    monkeypatch.setattr(
        InductorProgram,
        "__call__",
        lambda self, *inputs: tuple(2 * t for t in call(self, *inputs)),
    )
    step, reports = run_both(
        lambda: make_spec(mlp()), batches(9), program=InductorProgram
    )
    (report,) = reports
    assert "Training steps are not compiled: a recorded step gave other" in report
    assert step.n_replayed > 3


def own_dropout(seed=0):
    layer = Dropout(0.5)
    layer.generator = torch.Generator().manual_seed(seed)
    return layer


@pytest.mark.usefixtures("without_compiler")
def test_random_numbers_of_a_generator_are_replayed_uncompiled():
    step, reports = run_both(
        lambda: make_spec(mlp(own_dropout())), batches(9), program=InductorProgram
    )
    assert reports == [
        "Training steps are not compiled: 'aten::random_.from' draws random numbers "
        "from a generator."
    ]
    assert step.n_replayed > 3


def test_fit_with_dropout_gives_what_graph_gives(caplog):
    x = torch.randn((60, 3), generator=torch.Generator().manual_seed(0)).numpy()
    options = {"dropout": 0.3, "max_iter": 5, "batch_size": 20, "random_state": 0}
    fitted = [
        DNNClassifier((4,), **options, execution=execution).fit(x, x[:, 0] > 0)
        for execution in ("inductor", "graph")
    ]
    assert fitted[0].loss_curve_ == fitted[1].loss_curve_
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Training steps are not compiled" in caplog.text


def failing(*args, **kwargs):
    raise SyntaxError("invalid syntax")


@pytest.mark.parametrize(
    ("program", "outcome", "n_replayed"),
    [(InductorProgram, "not compiled", 5), (Program, "taken eagerly", 0)],
)
def test_a_program_that_cannot_be_built(monkeypatch, program, outcome, n_replayed):
    monkeypatch.setattr(program, "__init__", failing)
    step, reports = run_both(lambda: make_spec(mlp()), batches(9), program=program)
    assert reports == [
        f"Training steps are {outcome}: SyntaxError when a recorded step was built."
    ]
    assert step.n_replayed == n_replayed


def test_when_nothing_can_be_built_steps_are_eager(monkeypatch):
    for program in (InductorProgram, Program):
        monkeypatch.setattr(program, "__init__", failing)
    step, reports = run_both(
        lambda: make_spec(mlp()), batches(9), program=InductorProgram
    )
    assert [report.partition(":")[0] for report in reports] == [
        "Training steps are not compiled",
        "Training steps are taken eagerly",
    ]
    assert step.n_replayed == 0


def test_what_cannot_be_recorded_is_said_once():
    def loss(labels, logits, features):
        return (logits - labels).square().mean() * float(labels.sum() > 0)

    _, reports = run_both(
        lambda: make_spec(mlp(), loss=loss), batches(6), program=InductorProgram
    )
    (report,) = reports
    assert report.startswith("Training steps are taken eagerly: ")
