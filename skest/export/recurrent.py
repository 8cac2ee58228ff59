# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers for programs of torch: one step in a loop, not a step after the other.

torch traces `nn.RNN`, `nn.LSTM` and `nn.GRU` for the number of steps that an example has.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

__all__ = ["with_scanned_layers"]


class _Scanned(nn.Module):
    """A recurrent layer that runs its cell over the steps."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, steps: Tensor) -> tuple[Tensor, Any]:
        """Return the states after all steps of shape (n_rows, n_steps, n), and the last."""
        layer = self.layer
        weights = [*layer.all_weights[0], *([None, None] if not layer.bias else [])]
        # A loop takes no tensors twice, and no others than contiguous ones.
        first = tuple(
            steps.new_zeros(steps.shape[0], layer.hidden_size)
            for _ in range(2 if isinstance(layer, nn.LSTM) else 1)
        )

        def step(state: tuple[Tensor, ...], x: Tensor) -> tuple[Any, Tensor]:
            new = _next_state(layer, x, state, weights)
            return new, new[0].clone()

        last, found = scan(step, first, steps.transpose(0, 1).contiguous())
        return found.transpose(0, 1), last


def _next_state(
    layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], weights: Any
) -> tuple[Tensor, ...]:
    if isinstance(layer, nn.LSTM):
        return torch.lstm_cell(x, state, *weights)
    if isinstance(layer, nn.GRU):
        return (torch.gru_cell(x, state[0], *weights),)
    is_tanh = layer.nonlinearity == "tanh"
    cell = torch.rnn_tanh_cell if is_tanh else torch.rnn_relu_cell
    return (cell(x, state[0], *weights),)


def with_scanned_layers(network: nn.Module) -> nn.Module:
    """Return a network whose recurrent layers take any number of steps when traced.

    Parameters
    ----------
    network : torch.nn.Module
        It stays as it is.

    Returns
    -------
    torch.nn.Module
        A copy with the same parameters; `network` itself if there is nothing to replace.
        Layers in it that are bidirectional, have several layers or a projection, or have
        the rows in their second axis, stay.

    Examples
    --------
    >>> import torch
    >>> from skest.export.recurrent import with_scanned_layers
    >>> layer, steps = torch.nn.GRU(2, 3, batch_first=True), torch.ones(4, 5, 2)
    >>> with torch.no_grad():
    ...     program = torch.export.export(
    ...         with_scanned_layers(layer), (steps,),
    ...         dynamic_shapes=({1: torch.export.Dim.DYNAMIC},),
    ...     )
    >>> torch.allclose(program.module()(steps[:, :3])[0], layer(steps[:, :3])[0])
    True
    """
    paths = [path for path, module in network.named_modules() if _is_plain(module)]
    if not paths:
        return network
    own = copy.deepcopy(network, {id(p): p for p in network.parameters()})
    for path in paths:
        layer: Any = own.get_submodule(path)
        if path == "":
            return _Scanned(layer)
        own.set_submodule(path, _Scanned(layer))
    return own


def _is_plain(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.RNNBase)
        and type(module) in (nn.RNN, nn.LSTM, nn.GRU)
        and module.num_layers == 1
        and module.batch_first is True
        and not module.bidirectional
        and not module.proj_size
    )
