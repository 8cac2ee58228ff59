# SPDX-License-Identifier: Apache-2.0
"""`Beginning`: how a task gets the model that it begins to train with servers."""

import dataclasses
from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from skest.checkpoint_format import StoredTensor
from skest.checkpoint_store import CheckpointStore, DirectoryStore
from skest.checkpoints import Checkpoint
from skest.distributed.lazy_building import LazyBuilding

__all__ = ["Beginning"]

_LARGE = 1 << 20  # bytes


class Beginning:
    """Builds a model whose tables will be in servers, and what it goes on from.

    Servers read the checkpoint themselves, or are sent it from where it is. This process
    compares what is large with its model, and does not read it.

    Attributes
    ----------
    goes_on : bool
        Whether servers are to begin with the newest checkpoint.
    checkpoint : Checkpoint or None
        All of it, if it is in memory.
    """

    def __init__(self) -> None:
        self.goes_on = False
        self.checkpoint: Checkpoint | None = None
        self._lazy: LazyBuilding | None = None

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return the newest checkpoint, with what is large on the meta device.

        One without the state of optimizers is returned as it is: these begin with what
        the network has.
        """
        if isinstance(store, DirectoryStore):
            found = store.latest(_described_if_large)
        else:
            found = self.checkpoint = store.latest()
        if found is None:
            return None
        self.goes_on = bool(found.scalars.get("optimizers"))
        if not self.goes_on:
            self.checkpoint = None
            return store.latest()
        return dataclasses.replace(
            found,
            variables=_without_large(found.variables),
            optimizer=_without_large(found.optimizer),
        )

    def building(self, *, draws: bool = True) -> LazyBuilding:
        """Return what is entered while the model is built.

        Parameters
        ----------
        draws : bool, default=True
            Whether the random values of tables are wanted, if there is no checkpoint.
        """
        self._lazy = LazyBuilding(keeps_draws=draws and not self.goes_on)
        return self._lazy

    def built(self, optimizers: Iterable[Optimizer]) -> None:
        """Tell slots of optimizers from other constants of the model."""
        if self._lazy is not None:
            self._lazy.built(optimizers)

    def settle(self, network: nn.Module) -> None:
        """Give what was built its values, but for what servers will have."""
        if self._lazy is not None:
            self._lazy.settle(network.parameters())


def _described_if_large(stored: StoredTensor) -> Tensor:
    described = stored.described()
    return described if described.nbytes >= _LARGE else stored.whole()


def _without_large(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.to("meta") if tensor.nbytes >= _LARGE else tensor
        for name, tensor in tensors.items()
    }
