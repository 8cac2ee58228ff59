# SPDX-License-Identifier: Apache-2.0
"""`Dropout` that draws from a generator of its own."""

import torch
from torch import Tensor, nn

__all__ = ["Dropout"]

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
        if x.device.type != "cpu":
            kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
            return x * kept.div_(1 - self.p)
        # Bernoulli draws would take as long as a layer; these cost a third.
        words = torch.empty(-(-x.numel() // _PER_WORD), dtype=torch.int64)
        words.random_(-(2**63), None, generator=self.generator)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        n_kept = min(max(1, round(_N_VALUES * (1 - self.p))), _N_VALUES - 1)
        # Bits below the bound become 1, others 0; comparisons take several times as long.
        bound = n_kept - _N_VALUES // 2
        kept = bits.clamp_(bound - 1, bound).to(x.dtype).sub_(bound).neg_()
        return x * kept.mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the module's text."""
        return f"p={self.p}"

    def __deepcopy__(self, memo: dict[int, object]) -> "Dropout":
        copied = Dropout(self.p)  # generators can't be copied; the next run sets one
        return copied.train(self.training)
