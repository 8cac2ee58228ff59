# SPDX-License-Identifier: Apache-2.0
"""`SharedMemoryReplica`: processes that train the same variables without locks."""

import dataclasses
import mmap
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from skest.distributed.layout import Layout
from skest.distributed.processes import anonymous_file
from skest.engine.loop import Replica, move_to_step
from skest.hooks.base import Run
from skest.inputs.input_context import context_among
from skest.optimizers.row_sparse import RowSparse, rule_of, slots_of_zeros
from skest.optimizers.state import named_state

# A cache line of 64 bytes for each counter, so that two processes share none.
_LINE = 8


class _Group(NamedTuple):
    """Tensors of one type and shape, which are elements of one tensor."""

    names: list[str]
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedTensors:
    """Tensors in a file without a name that processes map into their memory.

    Parameters
    ----------
    file : binary file
        What `create` made, in this process or in the one that started it.
    layout : tuple
        What is in it, as `layout` of the object that `create` returned.

    Attributes
    ----------
    file, layout
        As given, for other processes.
    tensors : dict of str to Tensor
        Views of the common memory: who writes to them writes for all.
    counters : ndarray of int64
        The counters, each of which one process may write.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.shared_memory import SharedTensors
    >>> first = SharedTensors.create({"w": torch.zeros(2)}, n_counters=1)
    >>> second = SharedTensors(first.file, first.layout)  # usually in another process
    >>> _ = second.tensors["w"].fill_(3)
    >>> first.tensors["w"]
    tensor([3., 3.])
    """

    def __init__(self, file: BinaryIO, layout: tuple[int, list[_Group]]) -> None:
        self.file, self.layout = file, layout
        memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
        counters, *wholes = _places(*layout).parts(memory)
        # Number 0 asks all to stop; behind it are the steps of each process.
        self.counters = counters.numpy()[:, 0]
        self.tensors: dict[str, Tensor] = {}
        for (names, _, shape), whole in zip(layout[1], wholes, strict=True):
            # One of a single tensor is as if it had been made alone.
            parts = whole.unbind() if len(names) > 1 else [whole.view(shape)]
            self.tensors.update(zip(names, parts, strict=True))

    @classmethod
    def create(cls, tensors: Mapping[str, Tensor], n_counters: int) -> "SharedTensors":
        """Make a file with copies of tensors, and counters that are 0.

        Single numbers of the same kind, which are step counters, are elements of one
        tensor, as `skest.engine.recorded.step` wants them.

        Parameters
        ----------
        tensors : mapping of str to Tensor
            On the CPU.
        n_counters : int
            How many counters there shall be.
        """
        kinds: dict[Any, list[str]] = {}
        for name, tensor in tensors.items():
            family = name.partition(":")[0], name.rpartition("/")[2], tensor.dtype
            kinds.setdefault(name if tensor.ndim else family, []).append(name)
        groups = [
            _Group(names, tensors[names[0]].dtype, tuple(tensors[names[0]].shape))
            for names in kinds.values()
        ]
        file = anonymous_file(_places(n_counters, groups).size)
        shared = cls(file, (n_counters, groups))
        with torch.no_grad():
            for name, tensor in tensors.items():
                shared.tensors[name].copy_(tensor)
        return shared


def _places(n_counters: int, groups: list[_Group]) -> Layout:
    of_groups = [(dtype, (len(names), *shape)) for names, dtype, shape in groups]
    return Layout([(torch.int64, (n_counters, _LINE)), *of_groups])


_STOPPED = "the other processes have stopped"


class SharedMemoryReplica(Replica):
    """One of several processes whose variables are in the same memory.

    Parameters of the network and slots of the optimizers are common. Buffers (as those
    of batch normalization) begin alike; then they belong to each process, as learning
    rates do. Nobody waits for
    anybody: an update may be computed from variables that another process is changing,
    and of two updates of the same number at the same time one may be lost.

    Parameters
    ----------
    index : int
        Which of the processes this is; 0 is the chief, which makes the memory.
    num_workers : int
        How many there are.
    memory : SharedTensors, default=None
        What the chief has made, see `memory`; None for the chief.

    Notes
    -----
    The global step is the sum of the steps of all processes; each counts its own. Who
    sees that the last step is reached stops: others are in the midst of a step then, so
    that up to ``num_workers - 1`` more may be taken than were asked for. All are counted.

    The method is Hogwild (Niu, Recht, Re and Wright, 2011, arXiv 1106.5730).
    """

    def __init__(
        self, index: int, num_workers: int, memory: SharedTensors | None = None
    ) -> None:
        self.is_chief = index == 0
        self.input_context = context_among(num_workers, index)
        self._index = index
        self._num_workers = num_workers
        self.memory: Any = memory  # of the chief, from `begin` on

    @property
    def global_step(self) -> int:
        """Steps taken by all processes."""
        return int(self._steps.sum())

    def begin(self, run: Run) -> None:
        """Move the variables into the common memory, or take those that are there."""
        if self.memory is None:
            self.memory = _share(run, self._num_workers)
            # The chief's counter has the steps of earlier trainings: the sum goes on
            # from there.
            self._steps[self._index] = run.global_step
        _use(run, self.memory.tensors)
        move_to_step(run, self.global_step)
        self._stop_if_asked(run)

    def steps_taken(self, run: Run) -> int:
        """Count a step, and return how many all have taken."""
        # Each process writes its own counter only, so that none is lost without locks.
        self._steps[self._index] += 1
        self._stop_if_asked(run)
        return self.global_step

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint of the common variables as they are at the moment.

        It knows no position in the input, of which there is one for each process: a
        training that goes on from it starts its input anew.
        """
        checkpoint = capture(run)
        if self._num_workers == 1:
            return checkpoint
        return dataclasses.replace(checkpoint, input_position=None)

    def close(self) -> None:
        """Give no other process the memory any more."""
        if self.memory is not None:
            self.memory.file.close()

    def stop_others(self) -> None:
        """Ask all processes to stop after the step that they are in."""
        self.memory.counters[0] = 1

    def _stop_if_asked(self, run: Run) -> None:
        if self.memory.counters[0]:
            run.request_stop(_STOPPED)

    @property
    def _steps(self) -> Any:
        return self.memory.counters[1:]


def _share(run: Run, num_workers: int) -> SharedTensors:
    """Return the memory with the variables and slots of a run, and slots to come."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in run.network.named_parameters():
        if parameter.device.type != "cpu":
            raise ValueError(
                f"SharedMemory trains on the CPU; the variable {name!r} is on "
                f"{parameter.device}. Set device='cpu'."
            )
        tensors[f"variable:{name}"] = parameter.detach()
    tensors |= {f"buffer:{name}": b for name, b in _buffers(run)}
    for i, optimizer in enumerate(run.spec.optimizers):
        _make_slots(optimizer)
        slots, options = named_state(optimizer, run.network.named_parameters())
        # What is in Python objects is copied into each process, and would part there.
        if options["values"] or getattr(optimizer, "free_slots", ()):
            raise ValueError(
                f"SharedMemory can't train with {options['class']}, whose state is more "
                "than tensors of its variables. Use Adagrad, Adam, Ftrl, RMSprop or SGD."
            )
        tensors |= {f"{i}:{name}": slot for name, slot in slots.items()}
    return SharedTensors.create(tensors, n_counters=1 + num_workers)


def _use(run: Run, tensors: dict[str, Tensor]) -> None:
    """Let the network and the optimizers of a run work on shared tensors."""
    parameters = dict(run.network.named_parameters())
    for name, parameter in parameters.items():
        shared = tensors.get(f"variable:{name}")
        if shared is None or shared.shape != parameter.shape:
            found = "none" if shared is None else tuple(shared.shape)
            raise ValueError(
                f"The variable {name!r} has the shape {tuple(parameter.shape)} in this "
                f"process and {found} in the calling one. 'model_fn' must build the same "
                "network whatever part of the input it is shown."
            )
        # In place of a copy: the optimizers hold these very parameters.
        parameter.data = shared
    for name, buffer in _buffers(run):
        shared = tensors.get(f"buffer:{name}")
        # One that follows from the batches that a process is shown is its own.
        if shared is not None and shared.shape == buffer.shape:
            # One that nobody may write to, such as an expanded one, is equal as a rule.
            if not torch.equal(buffer, shared):
                buffer.copy_(shared)
    for key, shared in tensors.items():
        scope, _, name = key.partition(":")
        if scope not in ("variable", "buffer"):
            of, _, slot = name.rpartition("/")
            run.spec.optimizers[int(scope)].state[parameters[of]][slot] = shared


def _buffers(run: Run) -> list[tuple[str, Tensor]]:
    """Return what processes begin with; sparse matrices are not drawn at random."""
    named = run.network.named_buffers()
    return [(name, b) for name, b in named if b.layout == torch.strided]


def _make_slots(optimizer: Optimizer) -> None:
    """Make the slots that an optimizer would make in its first step.

    They are what a step with gradient zero makes of variables that are zero, with no step
    counted; see `skest.optimizers.RowSparse`.
    """
    has_rows = isinstance(optimizer, RowSparse)  # each of which is like the others
    rule = rule_of(optimizer)
    for group in rule.param_groups:
        for parameter in group["params"]:
            if rule.state.get(parameter):
                continue
            part = parameter[:1] if has_rows and parameter.ndim else parameter
            for name, slot in slots_of_zeros(rule, group, part).items():
                if name == "step" and isinstance(slot, Tensor):
                    slot.zero_()  # the only slot that such a step changes
                elif not isinstance(slot, Tensor) or slot.ndim == 0:
                    raise ValueError(
                        f"SharedMemory can't begin with {type(rule).__name__}: its slot "
                        f"{name!r} is a number that changes in every step. Use Adagrad, "
                        "Adam, Ftrl, RMSprop or SGD."
                    )
                if slot.shape == part.shape:
                    # It takes no memory before it is copied into the common one.
                    slot = slot.expand_as(parameter)
                rule.state[parameter][name] = slot
