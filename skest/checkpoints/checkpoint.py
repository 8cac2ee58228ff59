# SPDX-License-Identifier: Apache-2.0
"""`Checkpoint`: the state of a training run, and what a person is told of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.core.console import TitledTable
from skest.core.random import RunRandom
from skest.core.resources import bytes_in_words
from skest.exceptions import CheckpointMismatchError
from skest.optimizers.dual_ascent import DualAscent
from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import is_row_table, rule_of
from skest.optimizers.schedules import FunctionLR, is_scheduler_of
from skest.optimizers.state import from_json, load_named_state, named_state, to_json

_ALIGNMENT = 64  # bytes, of all memory that torch allocates


# Compared and hashed by identity, which tells `MemoryStore.version` that it is another
# one: tensors have no truth value to compare by.
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that training needs to go on as if it had not stopped.

    Parameters
    ----------
    global_step : int
        Training steps taken.
    variables : dict of str to Tensor
        The network's ``state_dict``, on the CPU.
    optimizer : dict of str to Tensor
        Optimizer slots and the state of random generators, on the CPU. Values of slots
        and variables on the meta device are elsewhere: `restore` compares their shapes,
        and leaves those of the model as they are.
    scalars : dict
        Options of optimizers and schedulers; JSON holds it.
    input_position : dict, default=None
        Where the input of an unfinished run was, see `skest.inputs.batches.Source`; JSON
        holds it. None if the run was finished.
    """

    global_step: int
    variables: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    input_position: Mapping[str, Any] | None = None

    @classmethod
    def capture(
        cls,
        network: nn.Module,
        global_step: int,
        optimizers: Sequence[Optimizer] = (),
        lr_schedulers: Sequence[Any] = (),
        random: RunRandom | None = None,
        input_position: Mapping[str, Any] | None = None,
    ) -> "Checkpoint":
        """Copy the state of a run to the CPU."""
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {
            "optimizers": [],
            "lr_schedulers": [_scheduler_state(s) for s in _stateful(lr_schedulers)],
        }
        for i, optimizer in enumerate(optimizers):
            # A number before the name: a variable has slots of the same name in each
            # optimizer.
            slots, options = named_state(optimizer, network.named_parameters())
            tensors |= {f"{i}:{name}": slot for name, slot in slots.items()}
            scalars["optimizers"].append(options)
        if random is not None:
            tensors |= {f"random:{k}": v for k, v in random.state_dict().items()}
        return cls(
            global_step,
            # Copies: training goes on while a listener, or a search, looks at them.
            {name: _copy(value) for name, value in network.state_dict().items()},
            {name: _copy(value) for name, value in tensors.items()},
            scalars,
            input_position,
        )

    def restore(
        self,
        network: nn.Module,
        optimizers: Sequence[Optimizer] = (),
        lr_schedulers: Sequence[Any] = (),
        random: RunRandom | None = None,
    ) -> None:
        """Load this state into a fresh network, its optimizers and generators.

        Options of the optimizers, such as the learning rate, are what the model function
        says now, and a rate that is a function is that of the global step. Other
        schedulers go on, and options of their optimizers are what they were, if they are
        of the kinds that were saved; if not, they start anew.

        Raises
        ------
        CheckpointMismatchError
            If names or shapes differ; the network must not be used then.
        """
        saved = self.scalars.get("optimizers", [])
        if optimizers and saved and len(saved) != len(optimizers):
            raise CheckpointMismatchError(
                f"The checkpoint of step {self.global_step} holds {len(saved)} "
                f"optimizer(s), but the model has {len(optimizers)}. Use those that it "
                "was trained with, or take only its variables, by warm_start_from=."
            )
        # All or nothing: it compares names and shapes before it copies the first.
        load_variables(network, self.variables)
        if not saved and self.global_step:  # those of step 0 are an initialization
            _begin_anew(optimizers, network)
        states = self._continued(lr_schedulers)
        for i, (optimizer, options) in enumerate(zip(optimizers, saved, strict=False)):
            slots = with_prefix(self.optimizer, f"{i}:")
            # Before they are overwritten by those that were saved.
            now = [{**group} for group in optimizer.param_groups]
            load_named_state(optimizer, network.named_parameters(), slots, options)
            # Options of this run count, as a rate that was changed; but a scheduler
            # that goes on builds on those that were saved.
            if not any(is_scheduler_of(s, optimizer) for s, _ in states):
                for group, given in zip(optimizer.param_groups, now, strict=True):
                    group.update(given)
        for scheduler, state in states:
            # Behind the optimizers, whose rates it builds on.
            scheduler.load_state_dict(from_json(state, scheduler.state_dict()))
        for scheduler in lr_schedulers:
            if isinstance(scheduler, FunctionLR):
                # A function of the step has no other state, and may be another function
                # than before.
                scheduler.move_to(self.global_step)
        generators = with_prefix(self.optimizer, "random:")
        if random is not None and generators:
            random.load_state_dict(generators)

    def _continued(self, lr_schedulers: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return the schedulers that go on, with their states."""
        saved, now = self.scalars.get("lr_schedulers", []), _stateful(lr_schedulers)
        # States of other schedules would set attributes that mean something else: they
        # begin anew.
        if [state["kind"] for state in saved] != [_kind(s) for s in now]:
            return []
        return [(s, state["state"]) for s, state in zip(now, saved, strict=True)]


def load_variables(
    network: nn.Module, variables: Mapping[str, Tensor], *, share: bool = False
) -> None:
    """Copy `variables` into `network` after comparing names and shapes.

    With `share`, the network uses their memory if the types are the same, and copies only
    what would give it other numbers where it lies. Where a variable is on the meta
    device, the network keeps what it has.

    Raises
    ------
    CheckpointMismatchError
        With one list of everything that differs; nothing is loaded then.
    """
    wanted = network.state_dict(keep_vars=True)
    # Shapes, too: where `hidden_units` had changed, tf.estimator went on with the old
    # width without a word.
    differences = [
        f"  {name}: {_shape(variables.get(name))} in the checkpoint, "
        f"{_shape(wanted.get(name))} in the network"
        for name in sorted(wanted.keys() | variables.keys())
        if _shape(variables.get(name)) != _shape(wanted.get(name))
    ]
    if differences:
        listed = "\n".join(differences)
        raise CheckpointMismatchError(
            "The checkpoint was made by another network than the one that should load "
            f"it. These variables differ:\n{listed}\nBuild the network as it was, or "
            "train it anew: in a new model_dir, or by fit with warm_start=False."
        )
    with torch.no_grad():
        for name, value in wanted.items():
            # Its values are in parameter servers, which have them from the files.
            if variables[name].is_meta:
                continue
            # To convert a type is to copy, so that nothing would be shared.
            if share and value.dtype == variables[name].dtype:
                value.data = _lent(variables[name], value)
            else:
                value.copy_(variables[name])


def _lent(variable: Tensor, parameter: Tensor) -> Tensor:
    """Return a variable where it is, or a copy if it must not be used there.

    How the sums of a matrix product are rounded depends on where its operands lie: in a
    file that is mapped anywhere, in torch's own memory always alike. Rows of tables are
    copied out before anything is computed with them, so large tables stay mapped.
    """
    is_looked_up = is_row_table(parameter) and not getattr(
        parameter, "is_multiplied", False
    )
    if is_looked_up or variable.data_ptr() % _ALIGNMENT == 0:
        return variable
    return variable.clone()


def _begin_anew(optimizers: Sequence[Optimizer], network: nn.Module) -> None:
    """Let optimizers whose slots were not saved begin at the network's variables."""
    for optimizer in optimizers:
        rule = rule_of(optimizer)
        if isinstance(rule, DualAscent):
            raise ValueError(
                "The checkpoint has no state of LinearSDCA, whose weights are a function "
                "of dual variables of the examples. Train on with another optimizer, or "
                "from a checkpoint in a model_dir."
            )
        if isinstance(rule, Ftrl):  # it computes weights from its slots
            rule.keep_weights(network.parameters())


def _stateful(lr_schedulers: Sequence[Any]) -> list[Any]:
    """Return the schedulers whose state is more than the global step."""
    return [s for s in lr_schedulers if not isinstance(s, FunctionLR)]


def _kind(scheduler: Any) -> str:
    """Return the class of a scheduler, with those of which it is made up."""
    # SequentialLR and ChainedScheduler hold others, whose states only fit the same ones.
    parts = ", ".join(map(_kind, getattr(scheduler, "_schedulers", ())))
    return type(scheduler).__name__ + (f"({parts})" if parts else "")


def _scheduler_state(scheduler: Any) -> dict[str, Any]:
    what = f"A part of the state of {type(scheduler).__name__}"
    return {"kind": _kind(scheduler), "state": to_json(scheduler.state_dict(), what)}


def with_prefix(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return what is stored under names that begin so, by the rest of the name."""
    return {
        k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
    }


def _copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU that shares no memory."""
    if tensor.is_sparse:  # as SGD makes its momentum of gradients of few rows
        tensor = tensor.to_dense()
    # `contiguous` alone would return a tensor of the CPU itself.
    return tensor.detach().to("cpu", copy=True).contiguous()


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))


_MOST_SHAPES = 3


def layers_of(checkpoint: Checkpoint) -> TitledTable:
    """Return a line about each module that has variables of its own."""
    modules: dict[str, list[Any]] = {}
    for name, variable in checkpoint.variables.items():
        modules.setdefault(name.rpartition(".")[0], []).append(variable)
    rows = []
    for name, tensors in modules.items():
        shapes = [" x ".join(map(str, v.shape)) or "1" for v in tensors]
        if len(shapes) > _MOST_SHAPES:
            shapes = [f"{len(shapes)} tensors"]
        n_values = sum(v.numel() for v in tensors)
        rows.append((name or "(itself)", ", ".join(shapes), f"{n_values:,}"))
    n_values = sum(v.numel() for v in checkpoint.variables.values())
    title = (
        f"Layers: {n_values:,} parameter{'s' * (n_values != 1)}, "
        f"{_memory(checkpoint.variables)}, and {_memory(checkpoint.optimizer)} of the "
        "optimizer"
    )
    return TitledTable(title, ("layer", "shapes", "parameters"), rows)


def _memory(tensors: Mapping[str, Tensor]) -> str:
    return bytes_in_words(sum(v.nbytes for v in tensors.values()))
