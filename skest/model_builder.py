# SPDX-License-Identifier: Apache-2.0
"""`ModelBuilder`: what every call of an `Estimator` begins with."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from skest._random import RunRandom
from skest._resources import resolve_device
from skest.checkpoints import Checkpoint
from skest.inputs.batches import Source, tensor_batches
from skest.inputs.input_context import InputContext
from skest.inputs.sharding import call_sharded
from skest.keys import ModeKeys
from skest.model_fn import ModelFn
from skest.run_config import RunConfig
from skest.spec import EstimatorSpec
from skest.strategies import SharedMemory, Strategy

__all__ = ["ModelBuilder", "device_with", "encoded_batches", "restore"]


@dataclasses.dataclass(frozen=True)
class ModelBuilder:
    """Opens the input of a call, and builds a fresh model for it.

    Parameters
    ----------
    model_fn : ModelFn
        The model function and its hyperparameters.
    config : RunConfig
        Settings of the run.
    model_dir : Path or None
        Directory of checkpoints; None if they are in memory.
    remember : callable
        ``remember(features)`` is told the features of the first batch of every call.
    """

    model_fn: ModelFn
    config: RunConfig
    model_dir: Path | None
    remember: Callable[[Any], None]

    @property
    def device(self) -> torch.device:
        """Where models are built; raises ValueError if it is not there."""
        return device_with(self.config.train_distribute, self.config.device)

    def open_source(
        self,
        input_fn: Callable[..., Any],
        mode: str,
        resumed: Checkpoint | None = None,
        input_context: InputContext | None = None,
    ) -> Source:
        """Return the input of a call.

        Parameters
        ----------
        input_fn : callable
            See `skest.Estimator.train`.
        mode : str
            One of `ModeKeys`.
        resumed : Checkpoint, default=None
            Whose training the input goes on with, if the configuration says so.
        input_context : InputContext, default=None
            Which part of the input this process reads; None is all of it.
        """
        data = call_sharded(
            input_fn,
            input_context,
            mode=mode,
            params=self.model_fn.params,
            config=self.config,
        )
        if resumed is None or not self.config.resume_input:
            return Source(data)
        return Source(data, resumed.input_position)

    def build(
        self, features: Any, labels: Any, mode: str, random: RunRandom
    ) -> EstimatorSpec:
        """Build a fresh model on the device of `random`."""
        return self.model_fn.build(features, labels, mode, self.config, random)


def restore(
    spec: EstimatorSpec,
    checkpoint: Checkpoint | None,
    random: RunRandom | None = None,
) -> None:
    """Give a model the variables of a checkpoint, and in training all of its state.

    Parameters
    ----------
    spec : EstimatorSpec
        The model.
    checkpoint : Checkpoint or None
        None leaves the model as it is.
    random : RunRandom, default=None
        Takes the state of the random numbers.

    Raises
    ------
    CheckpointMismatchError
        If the checkpoint belongs to another network.
    """
    if checkpoint is None or spec.network is None:
        return
    training = spec.mode == ModeKeys.TRAIN
    checkpoint.restore(
        spec.network,
        spec.optimizers if training else (),
        spec.lr_schedulers if training else (),
        random,
    )


def encoded_batches(
    source: Source, spec: EstimatorSpec, device: torch.device, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of a source as a model takes them.

    Parameters
    ----------
    source : Source
        Raw batches.
    spec : EstimatorSpec
        Encodes them.
    device : torch.device
        Where the network is.
    **options
        Those of `skest.inputs.batches.tensor_batches`.
    """
    encoders = (spec.encode, spec.encode_labels)
    return tensor_batches(source, *encoders, device, spec.dtype, **options)


def device_with(strategy: Strategy | None, device: Any) -> torch.device:
    """Return what `device` of a `RunConfig` names beside its ``train_distribute``.

    With `SharedMemory`, "auto" is the CPU, whose memory it is. Other strategies, and None,
    leave it to `skest._resources.resolve_device`.
    """
    is_auto = isinstance(device, str) and device == "auto"
    if is_auto and isinstance(strategy, SharedMemory):
        return torch.device("cpu")
    return resolve_device(device)
