# SPDX-License-Identifier: Apache-2.0
"""`nn.EmbeddingBag` as operations that exported graphs may have."""

import torch
from torch import Tensor, nn

from skest.exceptions import ExportError

__all__ = ["replace_embedding_bags"]


class _GatheredBag(nn.Module):
    """An `nn.EmbeddingBag` for ids of shape (n_rows, n_values), without a loop."""

    def __init__(self, bag: nn.EmbeddingBag, path: str) -> None:
        super().__init__()
        self.weight = bag.weight
        self._mode, self._padding, self._path = bag.mode, bag.padding_idx, path

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Combine the rows of each example."""
        if ids.ndim != 2 or offsets is not None:
            raise ExportError(
                f"The nn.EmbeddingBag {self._path!r} takes its ids with offsets, which "
                "an exported graph cannot do. Give it ids of shape (n_rows, n_values) "
                "and a padding_idx."
            )
        rows = self.weight[ids]
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if self._padding is None:
            present = torch.ones_like(ids, dtype=torch.bool)
        else:
            present = ids != self._padding
        mask = present.unsqueeze(-1)
        if self._mode == "max":
            lowest = torch.where(mask, rows, torch.finfo(rows.dtype).min)
            return torch.where(mask.any(1), lowest.amax(1), 0)
        total = torch.where(mask, rows, 0).sum(1)
        if self._mode == "sum":
            return total
        return total / mask.sum(1).clamp(min=1).to(total.dtype)


def replace_embedding_bags(network: nn.Module) -> nn.Module:
    """Replace every `nn.EmbeddingBag` in a network, which changes.

    torch writes it as a loop over the rows, which no exported graph may have.

    Parameters
    ----------
    network : torch.nn.Module
        A copy that nobody else uses.

    Returns
    -------
    torch.nn.Module
        The same network; what replaces it if it is an `nn.EmbeddingBag` itself.

    Raises
    ------
    ExportError
        If one scales its vectors to a `max_norm`; in a call of the network, if one takes
        offsets.

    Examples
    --------
    >>> import torch
    >>> from skest.export.embedding_bags import replace_embedding_bags
    >>> bag = torch.nn.EmbeddingBag(3, 2, mode="sum")
    >>> ids = torch.tensor([[0, 2], [1, 1]])
    >>> torch.equal(replace_embedding_bags(bag)(ids), bag(ids))
    True
    """
    for path, module in list(network.named_modules()):
        if not isinstance(module, nn.EmbeddingBag):
            continue
        if module.max_norm is not None:
            raise ExportError(
                f"The nn.EmbeddingBag {path!r} has a max_norm, which changes its table "
                "while it predicts. Scale the table after training instead."
            )
        if path == "":
            return _GatheredBag(module, path)
        network.set_submodule(path, _GatheredBag(module, path))
    return network
