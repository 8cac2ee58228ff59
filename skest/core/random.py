# SPDX-License-Identifier: Apache-2.0
"""Random numbers of one run, apart from the global generators of NumPy and torch."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Modules of torch.nn that draw from torch's global generator in training.
_DRAWING_MODULES = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
_CPU = torch.device("cpu")
_GENERATOR_OR_NONE = (torch.Generator, type(None))
_KNOWN_PACKAGES = ("torch.nn.modules.", "torch.optim.", "skest.")

# torch has one global generator per device for the whole process, so that code which
# draws from it can run in one thread at a time.
_GLOBAL_GENERATOR_LOCK = threading.RLock()


class RunRandom:
    """The generators of one run.

    Modules written for skest draw from `generator`. Code that can only draw from torch's
    global generator (initialisers and dropout of ``torch.nn``) runs inside
    `as_global`, which lends it this run's stream and gives the caller's back.

    Parameters
    ----------
    seed : int or None
        None takes a seed from the operating system.
    device : torch.device, default=cpu
        Where the numbers are needed.

    Examples
    --------
    >>> import torch
    >>> from skest.core.random import RunRandom
    >>> before = torch.get_rng_state()
    >>> with RunRandom(0).as_global():
    ...     a = torch.rand(1)
    >>> with RunRandom(0).as_global():
    ...     b = torch.rand(1)
    >>> bool(a == b), bool((before == torch.get_rng_state()).all())
    (True, True)
    """

    def __init__(self, seed: int | None, device: torch.device = _CPU) -> None:
        # Two streams: how much torch's own modules draw must not move what skest's
        # draw.
        own, lent = seed_sequence(seed).generate_state(2, np.uint64)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(int(own) >> 1)
        self._lent_seed = int(lent) >> 1
        self._lent_state: dict[str, Tensor] = {}
        self._is_lent = False

    @contextmanager
    def as_global(self) -> Iterator[None]:
        """Let torch's global generators (CPU and device) continue this run's stream."""
        devices = [self.device] if self.device.type == "cuda" else []
        # fork_rng gives back what the caller's program had, also after an error.
        with _GLOBAL_GENERATOR_LOCK, torch.random.fork_rng(devices=devices):
            self._lend()
            self._is_lent = True
            try:
                yield
            finally:
                self._take_back()
                self._is_lent = False

    def attach(self, network: nn.Module, *others: Any) -> AbstractContextManager[None]:
        """Let `network` draw from this run and return the context to train it in.

        Modules whose attribute ``generator`` is free or a generator get this run's. The
        context is `as_global` if another module, or one of the functions and optimizers
        in `others`, may draw from torch's global generator.
        """
        for module in network.modules():
            # Without the attribute it is `self`, which is none of the two.
            if isinstance(getattr(module, "generator", self), _GENERATOR_OR_NONE):
                module.generator = self.generator  # type: ignore[assignment]
        if draws_from_global_generator(network, *others):
            return self.as_global()
        return nullcontext()

    def _lend(self) -> None:
        # Goes on from where the last `as_global` of this run ended.
        if self._lent_state:
            torch.set_rng_state(self._lent_state["cpu"])
        else:
            torch.default_generator.manual_seed(self._lent_seed)
        if self.device.type == "cuda":
            if "cuda" in self._lent_state:
                torch.cuda.set_rng_state(self._lent_state["cuda"], self.device)
            else:
                with torch.cuda.device(self.device):
                    torch.cuda.manual_seed(self._lent_seed)

    def _take_back(self) -> None:
        self._lent_state = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            self._lent_state["cuda"] = torch.cuda.get_rng_state(self.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all states as uint8 tensors; those that are lent, as they are now."""
        if self._is_lent:
            self._take_back()
        state = {"generator": self.generator.get_state()}
        return state | {f"global_{k}": v for k, v in self._lent_state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state_dict` returned.

        The stream of `generator` goes on only on the kind of device that it was saved
        on: generators of CPU and CUDA have different states.
        """
        own = state["generator"].contiguous().clone()
        if own.numel() == self.generator.get_state().numel():
            self.generator.set_state(own)
        self._lent_state = {
            k.removeprefix("global_"): v.contiguous().clone()
            for k, v in state.items()
            if k != "generator"
        }


def restorer(network: nn.Module, *generators: torch.Generator) -> Callable[[], None]:
    """Return what sets the buffers and generators of a network to their present states.

    Parameters
    ----------
    network : torch.nn.Module
        Modules of skest draw from a generator of their own, the attribute ``generator``.
    *generators : torch.Generator
        Others that are to be set back.
    """
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    own = [getattr(module, "generator", None) for module in network.modules()]
    found = [g for g in (*own, *generators) if isinstance(g, torch.Generator)]
    states = [(generator, generator.get_state()) for generator in dict.fromkeys(found)]

    def restore() -> None:
        with torch.no_grad():
            for buffer, value in buffers:
                # In place: recorded steps know where buffers are.
                buffer.copy_(value)
        for generator, state in states:
            generator.set_state(state)

    return restore


def seed_sequence(seed: int | None, *spawn_key: int) -> np.random.SeedSequence:
    """Return the seed sequence of `seed`, or of one of its numbered children."""
    return np.random.SeedSequence(seed, spawn_key=spawn_key)


def child_seed(seed: int, *spawn_key: int) -> int:
    """Return the seed of a numbered child of `seed`, which torch takes as well."""
    (state,) = seed_sequence(seed, *spawn_key).generate_state(1, np.uint64)
    return int(state) >> 1


def draws_from_global_generator(network: nn.Module, *others: Any) -> bool:
    """Tell whether training may draw from torch's global generator.

    The answer is yes for code that is not known.
    """
    return any(
        isinstance(part, _DRAWING_MODULES) or not is_known_code(part)
        for part in (*network.modules(), *others)
    )


def is_known_code(part: Any) -> bool:
    """Tell whether a module, function or optimizer does nothing that skest can't know.

    The code of ``torch.nn``, ``torch.optim`` and skest is known, unless it says that it
    ``may_draw``. A module, function or optimizer of the user's may call anything.
    """
    if isinstance(part, partial):
        bound = [*part.args, *part.keywords.values()]
        # Numbers, strings and lists do nothing by themselves.
        given = [value for value in bound if type(value).__module__ != "builtins"]
        return all(map(is_known_code, (part.func, *given)))
    package = f"{getattr(part, '__module__', '')}."
    return package.startswith(_KNOWN_PACKAGES) and not getattr(part, "may_draw", False)
