# SPDX-License-Identifier: Apache-2.0
"""Quicker ways to call an operation do the same as the operation."""

import pytest
import torch
from torch import nn

from skest.execution import kernels
from tests.execution._steps import batches, make_spec, mlp, run_both

_aten = torch.ops.aten
# These are written as numbers in the declarations of PyTorch, and taken over from there.
# A default with a name, such as that of a reduction, is another one in Python.
DEFAULTS = {"alpha": 1, "beta": 1, "value": 1, "dim": [-1, []], "padding_idx": -1}


@pytest.mark.parametrize("base", sorted(kernels._SAME_IN_TORCH))
def test_functions_of_torch_have_the_defaults_of_the_operation(base):
    packets = [getattr(_aten, name, None) for name in (base, f"{base}_")]
    operations = [getattr(p, name) for p in packets if p for name in p.overloads()]
    for operation in operations:
        for argument in operation._schema.arguments:
            default = argument.default_value
            if argument.has_default_value() and default not in (None, False):
                known = DEFAULTS[argument.name]
                assert default == known or default in known


def binary_labels(labels):
    return (labels > 0).float()


LOSSES = {
    nn.BCELoss: lambda loss, y, z: loss(z.sigmoid(), binary_labels(y)),
    nn.BCEWithLogitsLoss: lambda loss, y, z: loss(z, binary_labels(y)),
    nn.CrossEntropyLoss: lambda loss, y, z: loss(z, (y[:, 0] > 0).long()),
    nn.HuberLoss: lambda loss, y, z: loss(z, y),
    nn.KLDivLoss: lambda loss, y, z: loss(z.log_softmax(1), y.abs()),
    nn.L1Loss: lambda loss, y, z: loss(z, y),
    nn.MSELoss: lambda loss, y, z: loss(z, y),
    nn.NLLLoss: lambda loss, y, z: loss(z.log_softmax(1), (y[:, 0] > 0).long()),
    nn.PoissonNLLLoss: lambda loss, y, z: loss(z, y.abs()),
    nn.SmoothL1Loss: lambda loss, y, z: loss(z, y),
    nn.SoftMarginLoss: lambda loss, y, z: loss(z, y.sign()),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_of_torch_are_replayed(kind, reduction):
    loss = kind(reduction=reduction)

    def compute(labels, logits, features):
        labels = labels.expand(-1, 2)
        value = LOSSES[kind](loss, labels, logits)
        return value if reduction != "none" else value.mean()

    def make():
        return make_spec(nn.Sequential(mlp(), nn.Linear(1, 2)), loss=compute)

    step, reports = run_both(make, batches(6))
    assert (step.n_replayed, reports) == (3, [])


def test_weighted_losses_of_torch_are_replayed():
    loss = nn.BCEWithLogitsLoss(torch.tensor([0.5]), pos_weight=torch.tensor([2.0]))

    def make():
        network = mlp()
        return make_spec(network, loss=lambda y, z, x: loss(z, binary_labels(y)))

    step, reports = run_both(make, batches(6))
    assert (step.n_replayed, reports) == (3, [])


def test_operations_of_others_are_not_taken_for_those_of_torch():
    with torch.library._scoped_library("skest_kernels", "DEF") as library:
        library.define("add(Tensor x, Tensor y) -> Tensor")
        library.define("add.out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl("add.out", lambda x, y, out: out.copy_(x), "CPU")
        operations = torch.ops.skest_kernels.add
        operation = operations.default
        assert kernels.function_for(operation) is operation
        assert kernels.out_variant(operation, "cpu") == (operations.out, ("out",))


@pytest.mark.parametrize("n_rows", [1, 7, 64])
def test_gradients_of_relu_are_written_over(n_rows):
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0]
    outputs, gradients = torch.cartesian_prod(*[torch.tensor(special)] * 2).T
    outputs, gradients = outputs.repeat(n_rows), gradients.repeat(n_rows)
    operation = _aten.threshold_backward.default
    expected = operation(gradients, outputs, 0)
    place = gradients.data_ptr()
    written = kernels.in_place_variant(operation, "cpu")(gradients, outputs, 0)
    assert written is gradients and written.data_ptr() == place
    # The very bits: 0.0 and -0.0 are equal, NaN is not.
    assert torch.equal(written.view(torch.int32), expected.view(torch.int32))
    assert kernels.in_place_variant(operation, "cuda") is None
