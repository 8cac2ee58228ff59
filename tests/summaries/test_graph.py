# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skest.networks import DNN
from skest.summaries.graph import record_graph
from tests import _control_flow as control_flow


class Branches(nn.Module):
    """Takes a dictionary, and looks at values."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(2, 1)
        self.deep = nn.ModuleDict({"a": nn.Linear(3, 1)})
        self.register_buffer("shift", torch.ones(1))

    def forward(self, features):
        wide = self.wide(features["x"])
        if wide.sum() > 1e9:
            return wide
        return wide + F.relu(self.deep["a"](features["y"])) + self.shift


FEATURES = {"x": torch.ones(4, 2), "y": torch.ones(4, 3)}


def by_name(*arguments):
    nodes = record_graph(*arguments)
    assert len({node.name for node in nodes}) == len(nodes)
    return {node.name: node for node in nodes}


def test_nodes_are_named_by_module_path_and_linked():
    nodes = by_name(Branches(), FEATURES)
    wide = nodes["wide/addmm"]
    assert set(wide.inputs) == {"features/x", "wide/weight", "wide/bias"}
    assert wide.kind == "addmm"
    assert wide.shapes == ((4, 1),)
    assert nodes["deep/a/weight"].kind == "Parameter"
    assert nodes["shift"].kind == "Buffer"
    assert nodes["features/y"].kind == "Placeholder"
    assert nodes["relu"].inputs == ("deep/a/addmm",)
    assert nodes["add"].inputs == ("wide/addmm", "relu")
    assert nodes["add_1"].inputs == ("add", "shift")


def test_every_input_of_a_node_comes_before_it():
    nodes = record_graph(
        DNN(nn.Linear(3, 4), (5, 5), 1, batch_norm=True), torch.ones(4, 3)
    )
    seen = set()
    for node in nodes:
        assert seen.issuperset(node.inputs)
        seen.add(node.name)


def test_the_loss_is_part_of_the_graph():
    def loss(labels, logits, features):
        return (logits - labels["y"]).square().mean()

    nodes = by_name(nn.Linear(2, 1), torch.ones(4, 2), {"y": torch.ones(4, 1)}, loss)
    assert nodes["loss/sub"].inputs == ("addmm", "labels/y")
    assert nodes["loss/mean"].kind == "mean"


def test_operations_in_place_are_followed():
    nodes = by_name(
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), torch.ones(4, 2)
    )
    assert nodes["1/relu"].inputs == ("0/addmm",)


def test_a_shared_module_has_one_set_of_variables():
    shared = nn.Linear(2, 2)
    nodes = by_name(nn.Sequential(shared, shared), torch.ones(4, 2))
    assert [name for name in nodes if name.endswith("weight")] == ["0/weight"]
    assert nodes["0/addmm_1"].inputs == ("0/bias", "0/addmm", "0/weight")


def test_the_network_is_left_as_it_was_even_by_an_error():
    network = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError):
        record_graph(network, torch.ones(4, 3))
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_loop_of_torch_is_one_node():
    loop, x = control_flow.Loop(), torch.ones(4, 5)
    nodes = record_graph(loop, x)
    assert [node.name for node in nodes] == ["features", "zeros", "scan", "exp"]
    assert nodes[-1].inputs == ("scan",)
    assert loop(x).shape == (4, 5)


def test_branches_of_torch_work_after_their_graph_could_not_be_recorded():
    branches, x = control_flow.Branches(), torch.ones(4, 5)
    with pytest.raises(RuntimeError, match="Unsafe side effect"):
        record_graph(branches, x)
    branches(x).sum().backward()
    assert branches.a.weight.grad is not None
