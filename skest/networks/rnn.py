# SPDX-License-Identifier: Apache-2.0
"""`RNN`: recurrent layers on sequences, with a context that holds for all steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skest.core.checks import check_choice
from skest.networks.dnn import linear_layer

#: Recurrent layers by name.
CELL_TYPES: dict[str, Callable[..., nn.RNNBase]] = {
    "simple_rnn": nn.RNN,
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}


class RNN(nn.Module):
    """A recurrent network whose state after the last step gives the logits.

    The context is put beside the features of every step. Of an empty sequence the state
    is zero, so that its logits are the bias, whatever the context. The result does not
    depend on what stands behind the end of a sequence.

    Parameters
    ----------
    sequence : torch.nn.Module
        Gives steps of shape (n_rows, n_steps, out_features) and lengths of shape
        (n_rows,) from ``features["sequence"]``; see `SequenceFeatures`.
    context : torch.nn.Module or None
        Gives a vector of `out_features` numbers for each row from
        ``features["context"]``; see `DenseFeatures`.
    units : sequence of int
        Widths of the recurrent layers, of which each gets the states of the one before.
    logits_dimension : int
        Width of the output.
    cell_type : {"simple_rnn", "lstm", "gru"}, default="simple_rnn"
        Kind of the layers: `torch.nn.RNN` (tanh), `torch.nn.LSTM`, `torch.nn.GRU`.
    dtype : torch.dtype, default=None
        Floating type of the parameters; None is torch's default.
    generator : torch.Generator, default=None
        Draws the initial kernels; None is torch's global generator.
    initialize : bool, default=True
        Without, the parameters are left as memory was, for a checkpoint to fill.

    Raises
    ------
    ValueError
        If `units` is empty or `cell_type` unknown.

    Notes
    -----
    As the network of ``tf.estimator.experimental.RNNClassifier``. Initial values are
    those of Keras: input kernels Glorot-uniform and recurrent kernels orthogonal, the
    gates of a layer being one matrix; biases zero, but one for the forget gate of an
    LSTM. Layers of torch add a second bias, ``bias_hh_l0``. As in Keras it is trained in
    a GRU only, where it is no second summand of the same; in the others it stays as it
    is, which is zero unless a checkpoint brings another.
    """

    def __init__(
        self,
        sequence: nn.Module,
        context: nn.Module | None,
        units: Sequence[int],
        logits_dimension: int,
        *,
        cell_type: str = "simple_rnn",
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        check_choice(cell_type, "cell_type", "RNN", tuple(CELL_TYPES))
        if len(units) == 0:
            raise ValueError(
                "'units' of RNN must have at least one layer; got none. For a model of "
                "the context alone, use DNN."
            )
        self.sequence = sequence
        self.context = context
        inputs = [sequence] if context is None else [sequence, context]
        n_inputs: Any = sum(module.out_features for module in inputs)
        # Layers of torch have one width for all: here each is a layer of its own.
        self._layers = [f"{cell_type}_{i}" for i in range(len(units))]
        for name, n_in, n_out in zip(
            self._layers, [n_inputs, *units], units, strict=False
        ):
            layer = _layer(cell_type, n_in, n_out, dtype)
            if initialize:
                _initialize(layer, generator)
            self.add_module(name, layer)
        self.logits = linear_layer(
            units[-1], logits_dimension, dtype, generator, initialize
        )

    def forward(self, features: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """Return logits of shape (n_rows, logits_dimension)."""
        return self.logits(self.last_state(features))

    def cut_to_longest(
        self, features: Mapping[str, Mapping[str, Tensor]]
    ) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the features without steps that no sequence has.

        See `SequenceFeatures.cut_to_longest`; other modules cut them by themselves.
        """
        cut = getattr(self.sequence, "cut_to_longest", None)
        if cut is None:
            return features
        return {**features, "sequence": cut(features["sequence"])}

    def last_state(self, features: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """Return the state after the last step, of shape (n_rows, units[-1])."""
        steps, lengths = self.sequence(features["sequence"])
        if self.context is not None:
            # (n_rows, 1, n_context), beside (n_rows, n_steps, n_features).
            context = self.context(features["context"]).unsqueeze(1)
            steps = torch.cat([steps, context.expand(-1, steps.shape[1], -1)], dim=2)
        # Padding lies behind the steps, and can't change the state before it: it is
        # computed, and not looked at.
        for name in self._layers:
            steps, _ = self.get_submodule(name)(steps)
        # (n_rows, 1, units[-1]): the place of the last step, for each unit.
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, steps.shape[2])
        state = steps.gather(1, last).squeeze(1)
        # An empty sequence has the state before the first step.
        return state.masked_fill((lengths == 0).unsqueeze(1), 0)


def _layer(
    cell_type: str, n_in: int, n_out: int, dtype: torch.dtype | None
) -> nn.RNNBase:
    # By way of the device "meta", where torch's own initialisation draws nothing.
    layer = CELL_TYPES[cell_type](
        n_in, n_out, batch_first=True, device="meta", dtype=dtype
    )
    layer.to_empty(device="cpu")
    if cell_type != "gru":
        # Trained as well, it would double the steps of the sum of both.
        layer.get_parameter("bias_hh_l0").requires_grad_(False)
    return layer


def _initialize(layer: nn.RNNBase, generator: torch.Generator | None) -> None:
    """Set the parameters as Keras does."""
    for name, parameter in layer.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
    if isinstance(layer, nn.LSTM):
        # The gates are in the order: input, forget, cell, output.
        # `unit_forget_bias` of Keras: in the beginning, an LSTM keeps what it has seen.
        forget = slice(layer.hidden_size, 2 * layer.hidden_size)
        with torch.no_grad():
            layer.get_parameter("bias_ih_l0")[forget] = 1
