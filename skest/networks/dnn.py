# SPDX-License-Identifier: Apache-2.0
"""`DNN`: fully connected layers; `Combined`: beside a linear part; `Baseline`: neither.

Activations have names; `BatchNorm` and `Dropout` are as the original has them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Activations by name: functions of a tensor.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "identity": lambda x: x,
    # 0.2 is the slope of tf.nn.leaky_relu.
    "leaky_relu": partial(F.leaky_relu, negative_slope=0.2),
    "logistic": torch.sigmoid,
    "relu": torch.relu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}


def get_activation(
    activation: str | Callable[[Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Return the function for a name; a function is returned as it is.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.dnn import get_activation
    >>> get_activation("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"'activation' must be a function or one of {', '.join(ACTIVATIONS)}; "
            f"got {activation!r}."
        )
    return ACTIVATIONS[activation]


class BatchNorm(nn.Module):
    """Normalises each feature by the batch in training, by moving averages otherwise.

    It differs from ``torch.nn.BatchNorm1d`` where the original does: the moving variance
    averages the biased variances of the batches, and a batch of one row is allowed (it
    gives the bias), because the last batch of an epoch may be one.

    Parameters
    ----------
    num_features : int
        Width of the input.
    momentum : float, default=0.9
        Weight of the old value in the moving averages. TensorFlow's canned estimators
        have 0.999, which needs thousands of steps before predictions make sense.
    eps : float, default=1e-3
        Added to the variance.

    Notes
    -----
    As ``tf.keras.layers.BatchNormalization``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.dnn import BatchNorm
    >>> BatchNorm(2)(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).round()
    tensor([[-1.,  0.],
            [ 1.,  0.]], grad_fn=<RoundBackward0>)
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        # That of Keras, and of tf.estimator's networks; torch's is 1e-5.
        eps: float = 1e-3,
    ) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x` of shape (n_rows, num_features)."""
        if not self.training:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        with torch.no_grad():
            # (num_features,) each; correction=0 is the biased variance.
            variance, mean = torch.var_mean(x, dim=0, correction=0)
            self.running_mean.lerp_(mean, 1 - self.momentum)
            self.running_var.lerp_(variance, 1 - self.momentum)
        if len(x) == 1:
            # Zero, and NaN where x is; torch refuses to normalise a single row.
            return (x - x) * self.weight + self.bias
        return F.batch_norm(
            x, None, None, self.weight, self.bias, training=True, eps=self.eps
        )


# 16 bits decide about an element.
_N_VALUES, _PER_WORD = 2**16, 4


class Dropout(nn.Module):
    """Zeroes elements at random in training and scales the others up.

    ``torch.nn.Dropout`` draws from the one generator of the process; this draws from
    `generator`, which the training run sets, so that runs do not disturb each other. On a
    CPU the probability is rounded to a multiple of 2**-16.

    Parameters
    ----------
    p : float
        Probability that an element is zeroed, ``0 <= p < 1``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.dnn import Dropout
    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"'dropout' must be in [0, 1); got {p!r}.")
        self.p = p
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with elements dropped in training, `x` itself otherwise."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
            return x * kept.div_(1 - self.p)
        # Bernoulli draws would take as long as a layer; these cost a third.
        # Four elements a draw.
        words = torch.empty(-(-x.numel() // _PER_WORD), dtype=torch.int64)
        words.random_(-(2**63), None, generator=self.generator)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        # Of 2**16 values, how many keep an element: neither none nor all.
        n_kept = min(max(1, round(_N_VALUES * (1 - self.p))), _N_VALUES - 1)
        # Bits below the bound become -1, others 0; comparisons take several times as long.
        # As integers: bfloat16 rounds the bound and the number below it to the same.
        bound = n_kept - _N_VALUES // 2
        kept = bits.clamp_(bound - 1, bound).sub_(bound).to(x.dtype)
        return x * kept.mul_(-1 / (1 - self.p))

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the module's text."""
        return f"p={self.p}"

    def __deepcopy__(self, memo: dict[int, object]) -> "Dropout":
        copied = Dropout(self.p)  # generators can't be copied; the next run sets one
        return copied.train(self.training)


class DNN(nn.Module):
    """A multilayer perceptron behind an input layer.

    Each hidden layer is: linear map, activation, dropout, batch normalisation, in this
    order, as in TensorFlow's ``DNNClassifier``; the logits are a linear map of the last.
    Kernels start Glorot-uniform and biases at zero.

    Parameters
    ----------
    inputs : torch.nn.Module
        Gives the dense input; `out_features` is its width.
    hidden_units : sequence of int
        Widths of the hidden layers; may be empty.
    logits_dimension : int
        Width of the output.
    activation : str or callable, default="relu"
        See `skest.networks.ACTIVATIONS`.
    dropout : float, default=0.0
        Probability that an activation is dropped in training.
    batch_norm : bool, default=False
        Normalise after every hidden layer.
    batch_norm_momentum : float, default=0.9
        See `BatchNorm`.
    dtype : torch.dtype, default=None
        Floating type of the parameters; None is torch's default.
    generator : torch.Generator, default=None
        Draws the initial kernels; None is torch's global generator.
    initialize : bool, default=True
        Without, the parameters are left as memory was, for a checkpoint to fill.
    output : callable, default=None
        ``output(in_features, dtype=..., generator=..., initialize=...)`` makes the last
        layer, or returns None for the linear map; see `skest.heads.Head.output_layer`.
    n_members : int, default=1
        Networks in one, which share the hidden layers: each scales the input by numbers
        of its own, which start at random, and has its own last layer. They start as
        signs if the input has no parameters, else normally distributed.
    mean_logits : callable, default=None
        Logits of members of shape (n_members, n_rows, logits_dimension) to those of all,
        outside of training; None leaves them apart.

    Notes
    -----
    Members are those of TabM-mini (Gorishniy et al., ICLR 2025, arXiv 2410.24210,
    section 3.3).
    """

    def __init__(
        self,
        inputs: nn.Module,
        hidden_units: Sequence[int],
        logits_dimension: int,
        *,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
        batch_norm_momentum: float = 0.9,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        initialize: bool = True,
        output: Callable[..., nn.Module | None] | None = None,
        n_members: int = 1,
        mean_logits: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        if isinstance(activation, nn.Module):
            # Every network has variables of its own.
            activation = copy.deepcopy(activation)
        self.activation = get_activation(activation)
        # A function of the user's may draw from torch's global generator.
        self.may_draw = not isinstance(activation, str | nn.Module)
        self.n_hidden = len(hidden_units)
        n_inputs: Any = inputs.out_features
        self.mean_logits = mean_logits
        self.member_scales: nn.Parameter | None = None
        if n_members > 1:
            if batch_norm:
                raise ValueError(
                    f"'n_members' is {n_members}, and 'batch_norm' would normalise over "
                    "all of them. Set batch_norm=False or n_members=1."
                )
            scales = torch.empty(n_members, n_inputs, dtype=dtype)
            if initialize:
                sizes: Any = inputs.feature_sizes
                # One number for all outputs of a feature: its encoding is scaled as a
                # whole. As in TabM, it is a sign where no encoding is learned: one near 0
                # would hide a category (car: log loss .047, so .032).
                drawn = torch.randn(n_members, len(sizes), generator=generator)
                if next(inputs.parameters(), None) is None:
                    drawn = drawn.sign()
                scales.copy_(drawn.repeat_interleave(torch.tensor(sizes), dim=1))
            self.member_scales = nn.Parameter(scales)
        widths = [int(n_inputs), *hidden_units]
        how: Any = {"dtype": dtype, "generator": generator, "initialize": initialize}
        for i, (n_in, n_out) in enumerate(zip(widths, hidden_units, strict=False)):
            self.add_module(f"hidden_{i}", linear_layer(n_in, n_out, **how))
            if dropout:
                self.add_module(f"dropout_{i}", Dropout(dropout))
            if batch_norm:
                normalised = BatchNorm(n_out, batch_norm_momentum).to(dtype)
                self.add_module(f"batch_norm_{i}", normalised)
        last: nn.Module | None = None
        if n_members > 1:
            last = MemberLinear(n_members, widths[-1], logits_dimension, **how)
        elif output is not None:
            last = output(widths[-1], **how)
        if last is None:
            last = linear_layer(widths[-1], logits_dimension, **how)
        self.logits = last

    def forward(self, features: dict[str, Tensor]) -> Any:
        """Return logits of shape (n_rows, logits_dimension), or what `output` gives."""
        logits = self.logits(self.hidden(features))
        # Members are trained apart (`member_loss`), and speak as one later.
        if self.mean_logits is None or self.training:
            return logits
        return self.mean_logits(logits)

    def hidden(self, features: dict[str, Tensor]) -> Tensor:
        """Return the last hidden layer, of shape (n_rows, hidden_units[-1]).

        With members there is a dimension for them before.
        """
        x = self.inputs(features)
        if self.member_scales is not None:
            scales = self.member_scales
            # To the hidden layers, rows of members are rows as any.
            # (n_members, n_rows, n_inputs) to (n_members * n_rows, n_inputs).
            x = (x * scales.unsqueeze(1)).view(-1, scales.shape[1])
        # To look an attribute up in a module takes longer than in a dictionary.
        modules = self._modules
        for i in range(self.n_hidden):
            x = self.activation(modules[f"hidden_{i}"](x))  # type: ignore[misc]
            # In the order of tf.estimator's DNN: activation, dropout, batch norm.
            for kind in ("dropout", "batch_norm"):
                layer = modules.get(f"{kind}_{i}")
                x = x if layer is None else layer(x)
        if self.member_scales is not None:
            # (n_members, n_rows, hidden_units[-1])
            x = x.view(len(self.member_scales), -1, x.shape[1])
        return x


class MemberLinear(nn.Module):
    """A linear map for each member of a network.

    Parameters
    ----------
    n_members, n_in, n_out : int
        Sizes.
    dtype, generator, initialize
        See `DNN`.
    """

    def __init__(
        self,
        n_members: int,
        n_in: int,
        n_out: int,
        dtype: torch.dtype | None,
        generator: torch.Generator | None,
        initialize: bool,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_members, n_in, n_out, dtype=dtype))
        # The 1 is for the rows.
        self.bias = nn.Parameter(torch.empty(n_members, 1, n_out, dtype=dtype))
        if initialize:
            # One by one: Glorot's bounds are those of a single map.
            for weight in self.weight:
                nn.init.xavier_uniform_(weight, generator=generator)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the maps give, from (n_members, n_rows, n_in)."""
        if self.weight.shape[2] == 1:
            # On a CPU, products with single vectors take a quarter of the time this way.
            return (x * self.weight.mT).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x, self.weight)


class _Linear(nn.Linear):
    """`torch.nn.Linear` with its variables left as memory was.

    ``torch.nn.utils.skip_init`` does the same in twenty times the time.
    """

    def __init__(self, n_in: int, n_out: int, dtype: torch.dtype | None) -> None:
        # Not that of Linear, which draws.
        nn.Module.__init__(self)
        self.in_features, self.out_features = n_in, n_out
        self.weight = nn.Parameter(torch.empty(n_out, n_in, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(n_out, dtype=dtype))


def linear_layer(
    n_in: int,
    n_out: int,
    dtype: torch.dtype | None,
    generator: torch.Generator | None,
    initialize: bool,
) -> nn.Linear:
    """Make a linear map whose kernel starts Glorot-uniform and whose bias is zero.

    Parameters
    ----------
    n_in, n_out : int
        Widths.
    dtype, generator, initialize
        See `DNN`.
    """
    layer = _Linear(n_in, n_out, dtype)
    if not initialize:
        return layer
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Combined(nn.Module):
    """Wide & deep: the sum of the logits of a linear network and a DNN.

    Parameters
    ----------
    linear : torch.nn.Module or None
        Gives logits from ``features["linear"]``.
    dnn : torch.nn.Module or None
        Gives logits from ``features["dnn"]``. One of both may be missing.
    mean_logits : callable, default=None
        If the DNN has members, see `skest.networks.DNN`; each has the linear network
        beside it.

    Raises
    ------
    ValueError
        If both are missing.

    Notes
    -----
    Cheng et al., "Wide & Deep Learning for Recommender Systems" (arXiv 1606.07792).
    """

    def __init__(
        self,
        linear: nn.Module | None,
        dnn: nn.Module | None,
        mean_logits: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if linear is None and dnn is None:
            raise ValueError("A Combined network needs a linear network or a DNN.")
        self.linear = linear
        self.dnn = dnn
        self.mean_logits = mean_logits

    def forward(self, features: Mapping[str, Any]) -> Tensor:
        """Return logits of shape (n_rows, logits_dimension)."""
        parts = [
            network(features[name])
            for name, network in (("linear", self.linear), ("dnn", self.dnn))
            if network is not None
        ]
        # Broadcast: (n_members, n_rows, k) of the DNN, (n_rows, k) of the other.
        logits = sum(parts[1:], start=parts[0])
        if self.mean_logits is None or self.training:
            return logits
        return self.mean_logits(logits)


class Baseline(nn.Module):
    """One bias vector, which starts at zero; of the features only the rows count.

    Parameters
    ----------
    logits_dimension : int
        Width of the output.
    dtype : torch.dtype, default=torch.float32
        Floating type of the bias.

    Notes
    -----
    As the model of ``tf.estimator.BaselineEstimator``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.dnn import Baseline
    >>> Baseline(2)({"rows": torch.empty(3, 0)}).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self, logits_dimension: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(logits_dimension, dtype=dtype))

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return logits of shape (n_rows, logits_dimension).

        Parameters
        ----------
        features : dict of str to Tensor
            Has "rows", of shape (n_rows, ...).
        """
        return self.bias.expand(features["rows"].shape[0], -1)
