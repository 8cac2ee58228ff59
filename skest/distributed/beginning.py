# SPDX-License-Identifier: Apache-2.0
"""`Beginning`: how a task gets the model that it begins to train with servers."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from skest.checkpoint_format import StoredTensor
from skest.checkpoint_store import CheckpointStore, DirectoryStore
from skest.checkpoints import Checkpoint
from skest.distributed.lazy_building import LazyBuilding
from skest.distributed.variables import unique_state

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
        self._source: CheckpointStore | None = None
        self._large: set[str] = set()

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return the newest checkpoint, with what is large on the meta device.

        One without the state of optimizers is returned as it is: these begin with what
        the network has.
        """
        found = _read(store, _described_if_large)
        if not isinstance(store, DirectoryStore):
            self.checkpoint = found
        if found is None:
            return None
        self.goes_on = bool(found.scalars.get("optimizers"))
        if not self.goes_on:
            self.checkpoint = None
            return store.latest()
        variables = _without_large(found.variables)
        self._source = store
        self._large = {name for name, tensor in variables.items() if tensor.is_meta}
        return dataclasses.replace(
            found, variables=variables, optimizer=_without_large(found.optimizer)
        )

    def load(self, network: nn.Module, names: Iterable[str]) -> None:
        """Read what is large, and stays here as it is in the checkpoint.

        Parameters
        ----------
        network : Module
            Built and settled.
        names : iterable of str
            Variables that no server changes, such as buffers.
        """
        if self._source is None or not (wanted := self._large.intersection(names)):
            return
        checkpoint = _read(self._source, _described_if_cut)
        if checkpoint is None:
            raise RuntimeError("The checkpoint that training goes on from is gone.")
        tensors = unique_state(network)
        with torch.no_grad():
            for name in wanted:
                tensors[name].copy_(checkpoint.variables[name])

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


def _read(
    store: CheckpointStore, take: Callable[[StoredTensor], Tensor]
) -> Checkpoint | None:
    return store.latest(take) if isinstance(store, DirectoryStore) else store.latest()


def _described_if_cut(stored: StoredTensor) -> Tensor:
    """Return a tensor without its values if it is a table, which servers have."""
    return stored.whole() if stored.n_rows is None else stored.described()


def _described_if_large(stored: StoredTensor) -> Tensor:
    described = stored.described()
    return described if described.nbytes >= _LARGE else stored.whole()


def _without_large(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.to("meta") if tensor.nbytes >= _LARGE else tensor
        for name, tensor in tensors.items()
    }
