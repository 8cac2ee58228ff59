# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest.execution import GraphStep
from skest.execution.inductor import InductorProgram
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
        "Training steps are not compiled: RuntimeError when a recorded step was replayed."
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
