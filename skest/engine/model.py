# SPDX-License-Identifier: Apache-2.0
"""`ModelFn` calls a model function; `ModelBuilder` begins every call of an Estimator."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from skest.checkpoints.checkpoint import Checkpoint
from skest.config.run_config import RunConfig, SharedMemory, Strategy
from skest.core.random import RunRandom
from skest.core.resources import explained_out_of_memory, resolve_device
from skest.engine.recorded.recording import map_leaves
from skest.inputs.array_dataset import count_rows
from skest.inputs.batches import Source, tensor_batches
from skest.inputs.input_context import InputContext
from skest.inputs.sharding import call_sharded
from skest.keys import ModeKeys
from skest.optimizers.state import check_members, follow_parameters
from skest.spec import EstimatorSpec

_F = TypeVar("_F", bound=Callable[..., EstimatorSpec])

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")


class ModelFn:
    """Builds models with a user's function.

    Parameters
    ----------
    model_fn : callable
        See `skest.Estimator`.
    params : dict or None
        Hyperparameters; copied here and for every call, so that no call can change them
        for another.

    Raises
    ------
    ValueError, TypeError
        As `model_fn_arguments`.
    """

    def __init__(
        self, model_fn: Callable[..., EstimatorSpec], params: dict[str, Any] | None
    ) -> None:
        self._arguments = model_fn_arguments(model_fn, params)
        self._function = model_fn
        #: Whether the function, and another one bound to it, are `pure_model_fn`.
        self.is_pure = _is_pure(model_fn)
        # As in tf.estimator: neither caller nor model_fn changes what the other one
        # sees.
        self._params = copy.deepcopy(params) if params is not None else {}

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the hyperparameters."""
        # Asked for in every call: most models have none, and a deep copy is not free.
        return copy.deepcopy(self._params) if self._params else {}

    def __call__(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        """Call the function with those arguments that it names.

        Raises
        ------
        TypeError
            If the function returns no EstimatorSpec.
        ValueError
            If there are labels, but the function takes none; or the specification has
            another mode.
        """
        if labels is not None and "labels" not in self._arguments:
            raise ValueError(
                "input_fn returns labels, but model_fn does not take 'labels'. Add the "
                "argument, or return features only."
            )
        # By name, as tf.estimator calls a model_fn: it declares what it wants.
        values = {
            "features": features,
            "labels": labels,
            "mode": mode,
            "params": self.params,
            "config": config,
        }
        spec = self._function(**{name: values[name] for name in self._arguments})
        if not isinstance(spec, EstimatorSpec):
            raise TypeError(
                f"model_fn must return an EstimatorSpec; got {type(spec).__name__}."
            )
        if spec.mode != mode:
            raise ValueError(
                f"model_fn was called with mode '{mode}', but returned an EstimatorSpec "
                f"of mode '{spec.mode}'. Pass on the mode that it is called with."
            )
        return spec

    def with_default_config(self, config: RunConfig) -> Callable[..., EstimatorSpec]:
        """Return ``model_fn(features, labels=None, mode="train", config=config)``."""
        return functools.partial(_call, self, config)


def model_fn_arguments(
    model_fn: Callable[..., Any], params: dict[str, Any] | None
) -> tuple[str, ...]:
    """Return the names of the arguments that `model_fn` wants.

    Parameters
    ----------
    model_fn : callable
        Arguments bound with ``functools.partial`` do not count, nor do keyword-only ones
        with a default.
    params : dict or None
        Hyperparameters that will be passed.

    Returns
    -------
    tuple of str
        Some of "features", "labels", "mode", "params" and "config".

    Raises
    ------
    ValueError
        If a mandatory argument is missing, one is unknown, or `params` has no place.
    TypeError
        If `model_fn` is no function or `params` is no dict.

    Examples
    --------
    >>> from skest.engine.model import model_fn_arguments
    >>> model_fn_arguments(lambda features, mode: None, None)
    ('features', 'mode')
    """
    if not callable(model_fn):
        raise TypeError(
            f"'model_fn' must be a function; got {type(model_fn).__name__}."
        )
    # Modules and their classes can be called, too, and skorch takes them.
    kind = model_fn if isinstance(model_fn, type) else type(model_fn)
    if issubclass(kind, torch.nn.Module):
        raise TypeError(
            "'model_fn' must be a function that makes the network; got the module "
            f"{kind.__name__}. Make it in the function, so that every training has its "
            "own, and return it in an EstimatorSpec, with a loss and an optimizer; a "
            "head has the loss: head.create_estimator_spec(features, mode, network, "
            "labels, optimizer)."
        )
    bound = model_fn.keywords if isinstance(model_fn, functools.partial) else {}
    _check_bound(model_fn)
    names = [
        name
        for name, parameter in inspect.signature(model_fn).parameters.items()
        # Positional arguments of a partial function are no longer in its signature.
        if name not in bound and not _is_option(parameter)
    ]
    unknown = [name for name in names if name not in _MODEL_FN_ARGUMENTS]
    if unknown:
        raise ValueError(
            f"model_fn has the argument(s) {', '.join(map(repr, unknown))}, but only "
            f"{', '.join(_MODEL_FN_ARGUMENTS)} are passed, by name. Bind others with "
            "functools.partial or hand them over in 'params'."
        )
    for name in ("features", "mode"):
        if name not in names:
            raise ValueError(f"model_fn must take the argument '{name}'.")
    if params is not None and not isinstance(params, dict):
        raise TypeError(f"'params' must be a dict; got {type(params).__name__}.")
    if params and "params" not in names:
        raise ValueError(
            "'params' are given, but model_fn does not take the argument 'params'."
        )
    return tuple(names)


def _check_bound(model_fn: Callable[..., Any]) -> None:
    """Name arguments that functools.partial binds and the function does not have."""
    while isinstance(model_fn, functools.partial):
        arguments = inspect.signature(model_fn.func).parameters
        takes_any = any(a.kind is a.VAR_KEYWORD for a in arguments.values())
        for name in () if takes_any else model_fn.keywords:
            if name not in arguments:
                own = [a for a in arguments if a not in _MODEL_FN_ARGUMENTS]
                called = getattr(model_fn.func, "__name__", "model_fn")
                raise TypeError(
                    f"{called} has no argument {name!r}; it has "
                    f"{', '.join(own) or 'none of its own'}."
                )
        model_fn = model_fn.func


# Settings of canned model functions, which partial may bind or leave as they are.
def _is_option(parameter: inspect.Parameter) -> bool:
    return (
        parameter.kind is parameter.KEYWORD_ONLY
        and parameter.default is not parameter.empty
        and parameter.name not in _MODEL_FN_ARGUMENTS
    )


def pure_model_fn(model_fn: _F) -> _F:
    """Mark a model function whose models for EVAL and PREDICT are always the same.

    It draws random numbers in mode TRAIN only: other models need not wait for torch's
    global generator, and leave variables that a checkpoint will fill as they are. Nor
    do its models depend on the first batch, so that one may serve several calls.
    """
    model_fn.is_pure = True  # type: ignore[attr-defined]
    return model_fn


def _is_pure(model_fn: Callable[..., Any]) -> bool:
    inner = None
    while isinstance(model_fn, functools.partial):
        # `scaled_target_model_fn`, say, calls another one, which is bound to it.
        inner = model_fn.keywords.get("model_fn", inner)
        model_fn = model_fn.func
    marked = getattr(model_fn, "is_pure", False)
    return marked and (inner is None or _is_pure(inner))


def _call(
    model_fn: ModelFn,
    default_config: RunConfig,
    features: Any,
    labels: Any = None,
    mode: str = ModeKeys.TRAIN,
    config: RunConfig | None = None,
) -> EstimatorSpec:
    return model_fn(features, labels, mode, config or default_config)


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
        # Without, every call of train begins its input anew, as that of tf.estimator.
        if resumed is None or not self.config.resume_input:
            return Source(data)
        return Source(data, resumed.input_position)

    def build(
        self, features: Any, labels: Any, mode: str, random: RunRandom
    ) -> EstimatorSpec:
        """Build a fresh model on the device of `random`; errors are those of a call."""
        if not self.model_fn.is_pure:  # it may change in place what is the caller's
            kinds: Any = np.ndarray | Tensor
            features, labels = map_leaves((features, labels), kinds, copy.deepcopy)
        # The lock on torch's global generator would make predictions wait for
        # trainings.
        draws = mode == ModeKeys.TRAIN or not self.model_fn.is_pure
        with random.as_global() if draws else nullcontext():
            spec = self.model_fn(features, labels, mode, self.config)
        if mode == ModeKeys.TRAIN:
            for optimizer in spec.optimizers:
                # A model_fn that makes its optimizer of another network would train
                # nothing, untold.
                check_members(optimizer, spec.network)
            _check_state(spec.network)
        if random.device.type != "cpu":
            n_rows = count_rows(features, "features")
            with explained_out_of_memory(n_rows, random.device, spec.network):
                # Built on the CPU: a seed draws the same variables for every device.
                spec.network.to(random.device)
            for optimizer in spec.optimizers:
                # Some have slots from construction on, as Adagrad.
                follow_parameters(optimizer)
        return spec


def _check_state(network: nn.Module) -> None:
    """Refuse what no checkpoint holds before a training that could not be saved."""
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"The network's state has {name!r}, a {type(value).__name__}, and "
                "checkpoints hold tensors only. Let get_extra_state return a tensor, or "
                "register a buffer."
            )


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
    if checkpoint is None:
        return
    # Evaluation draws nothing and updates nothing.
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
    leave it to `skest.core.resources.resolve_device`.
    """
    # Hogwild of several processes works on memory that all of them see.
    if device == "auto" and isinstance(strategy, SharedMemory):
        return torch.device("cpu")
    return resolve_device(device)
