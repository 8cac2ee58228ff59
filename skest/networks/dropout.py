# SPDX-License-Identifier: Apache-2.0
"""`Dropout` that draws from a generator of its own."""

import torch
from torch import Tensor, nn

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """Zeroes elements at random in training and scales the others up.

    ``torch.nn.Dropout`` draws from the one generator of the process; this draws from
    `generator`, which the training run sets, so that runs do not disturb each other.

    Parameters
    ----------
    p : float
        Probability that an element is zeroed, ``0 <= p < 1``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.dropout import Dropout
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
        kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept.div_(1 - self.p)

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the module's text."""
        return f"p={self.p}"

    def __deepcopy__(self, memo: dict[int, object]) -> "Dropout":
        copied = Dropout(self.p)  # generators can't be copied; the next run sets one
        return copied.train(self.training)
