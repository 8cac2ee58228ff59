# SPDX-License-Identifier: Apache-2.0
"""`Inference`: what a fixed model makes of batches, recorded once and replayed."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as _modules

from skest.engine.recorded.program import Program
from skest.engine.recorded.recording import (
    Call,
    NotRecordableError,
    Recorder,
    Value,
    batch_tensors,
    kind_of_rows,
    map_leaves,
    values_in,
)
from skest.engine.recorded.simplify import Storages, rewritten, simplified

_logger = logging.getLogger("skest")

_MOST_KINDS = 64
# What differs between recordings of so many rows belongs to the number of rows. They are
# primes that no other size is likely to be.
_N_ROWS, _OTHER_N_ROWS = 251, 257


class Inference:
    """Computes a function of batches, from a recording when it was called often enough.

    One recording serves batches of any number of rows, and several threads at once. What
    cannot be recorded is computed by the function, call after call.

    Parameters
    ----------
    function : callable
        ``function(data, option)`` returns a nest of tensors without gradients. It is
        given a nest of tensors with as many rows each; what it does beside operations on
        tensors is done once. Nothing that it reads may change.
    eager_calls : int
        Calls of the function, with data of one kind, before the recording.
    refusal : callable, default=None
        Called before the first recording; returns the reason why there must be none, or
        None.

    Attributes
    ----------
    n_replayed : int
        Calls that were replayed, as far as threads do not count at the same time.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.inference import Inference
    >>> network = torch.nn.Linear(2, 1).requires_grad_(False)
    >>> infer = Inference(lambda x, option: network(x).exp(), eager_calls=1)
    >>> results = [infer(torch.ones(n, 2)) for n in (3, 5, 1, 8)]
    >>> [len(result) for result in results], infer.n_replayed
    ([3, 5, 1, 8], 2)
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        *,
        eager_calls: int,
        refusal: Callable[[], str | None] | None = None,
    ) -> None:
        self.n_replayed = 0
        self._function = function
        self._eager_calls = eager_calls
        self._refusal = refusal
        self._is_eager = False
        self._seen: Counter[Hashable] = Counter()
        self._programs: dict[Hashable, _RowProgram | None] = {}

    def __call__(self, data: Any, option: Sequence[Any] | None = None) -> Any:
        """Return what the function returns.

        Parameters
        ----------
        data : tensors
            A nest of dictionaries, tuples and lists.
        option : sequence of hashable, default=None
            Passed on; each one has a recording of its own.
        """
        # A profiler may register such hooks at any time, and a replay would not call
        # them.
        if not self._is_eager and not has_hooks_of_all_modules():
            try:
                tensors, kind = batch_tensors(data, kind_of_rows)
            except TypeError as error:
                self._stay_eager(str(error))
            else:
                options = None if option is None else tuple(option)
                # Autocast changes what the operations are, and no tensor tells.
                key = (kind, options, _autocast_to(tensors))
                program = self._programs.get(key)
                # None stands for a kind that cannot be recorded.
                if program is not None and program.takes(tensors):
                    self.n_replayed += 1
                    return program(tensors)
                if key not in self._programs:
                    return self._prepare(key, tensors, data, option)
        return self._function(data, option)

    def _prepare(
        self, key: Hashable, tensors: list[Tensor], data: Any, option: Any
    ) -> Any:
        """Compute a result, and come closer to replaying calls of its kind."""
        result = self._function(data, option)
        self._seen[key] += 1
        if len(self._seen) > _MOST_KINDS:
            self._stay_eager("the shapes of the batches keep changing")
        elif self._seen[key] > self._eager_calls:
            # Asked late: it walks through all code of the model.
            reason = self._refusal() if self._refusal and not self._programs else None
            if reason is not None:
                self._stay_eager(reason)
            else:
                # Threads that record one kind at once waste time, no more.
                self._programs[key] = self._recorded(tensors, data, option, result)
        return result

    def _recorded(
        self, tensors: list[Tensor], data: Any, option: Any, result: Any
    ) -> "_RowProgram | None":
        """Return a program that gives the same result, or None if there is none."""
        try:
            program = _row_program(self._function, tensors, data, option)
            # The result of the function is at hand: the proof costs no more than one
            # replay.
            if program.takes(tensors) and not _are_equal(program(tensors), result):
                raise NotRecordableError("a replay gave other numbers")
        except Exception as error:  # of whatever the function is made of; it did work
            _logger.debug("Not replayed: %s: %s.", type(error).__name__, error)
            return None
        return program

    def _stay_eager(self, reason: str) -> None:
        _logger.debug("Not replayed: %s.", reason)
        # In this order, or another thread would prepare what is forgotten below.
        self._is_eager = True
        self._programs = {}


class _RowProgram:
    """A recorded function of any number of rows."""

    def __init__(self, program: Program, returned: Any) -> None:
        self._program = program
        self._returned = returned  # with a value in place of each tensor

    def takes(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether tensors of the right kinds have rows, and as many of them."""
        # The kind of a batch leaves the number of rows out.
        shape = tensors[0].shape[:1]
        return bool(shape.numel()) and all([t.shape[:1] == shape for t in tensors])

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Return what the function returns."""
        results = self._program(*tensors, tensors[0].shape[0])
        left = iter(results)
        return map_leaves(self._returned, Value, lambda _: next(left))


def _row_program(
    function: Callable[[Any, Any], Any], tensors: list[Tensor], data: Any, option: Any
) -> _RowProgram:
    """Record a function with several numbers of rows, whose programs must be the same.

    Raises
    ------
    NotRecordableError
        If it cannot be repeated from a recording, or not with other numbers of rows.
    """
    if not all([t.ndim and len(t) and t.is_contiguous() for t in tensors]):
        raise NotRecordableError("not all tensors have rows, one behind the other")

    def record(n_rows: int) -> tuple[Recorder, Any]:
        # The rows of the batch over and over: made-up ones might hold ids that no table
        # has.
        index = torch.arange(n_rows, device=tensors[0].device) % len(tensors[0])
        samples = {id(tensor): tensor.index_select(0, index) for tensor in tensors}
        recorder = Recorder(list(samples.values()))
        sample = map_leaves(data, Tensor, lambda tensor: samples[id(tensor)])
        with recorder:
            returned = function(sample, option)
        batch_tensors(returned)  # raises TypeError if it has something else in it
        return recorder, map_leaves(returned, Tensor, recorder.value_of)

    # A single row is the one case in which layouts mean something else.
    single, _ = record(1)
    recorder, returned = record(_N_ROWS)
    other, other_returned = record(_OTHER_N_ROWS)
    functions, of_single = (
        [call.function for call in r.calls] for r in (recorder, single)
    )
    program = _program(recorder, values_in(returned), _N_ROWS)
    of_other = _program(other, values_in(other_returned), _OTHER_N_ROWS)
    if functions != of_single or not _are_same(program, of_other):
        raise NotRecordableError("what is computed depends on the number of rows")
    return _RowProgram(program, returned)


def _program(recorder: Recorder, outputs: list[Value], n_rows: int) -> Program:
    """Return the recorded operations as a program of the tensors and `n_rows`."""
    if recorder.obstacle is not None:
        raise NotRecordableError(recorder.obstacle)
    size = Value(torch.empty(0), "input")  # the number of rows, wherever it occurs
    calls = []
    for call in rewritten(recorder.calls):
        # A size made of it, as rows times columns, stays a number: the programs differ.
        args, kwargs = map_leaves(
            (call.args, call.kwargs), int, lambda i: size if i == n_rows else i
        )
        calls.append(Call(call.function, args, kwargs, call.returned))
    storages = Storages(calls)
    # Of tables that nobody trains any more, a sum over rows is taken once.
    calls, outputs = simplified(calls, outputs, storages, is_training=False)
    _check_repeatable(calls, outputs, storages)
    inputs = [*recorder.inputs, size]
    return Program(inputs, calls, outputs, [], storages, reserve=False)


def _check_repeatable(
    calls: Sequence[Call], outputs: Sequence[Value], storages: Storages
) -> None:
    for call in calls:
        changed = [v for v in call.written if storages.root(v).kind != "result"]
        if call.is_random or changed:
            raise NotRecordableError(f"'{call.function.name()}' has a lasting effect")
    # The caller owns what it gets, and may write to it.
    # Two results in one memory would change together.
    roots = {storages.root(value) for value in outputs}
    if len(roots) < len(outputs) or any(root.kind != "result" for root in roots):
        raise NotRecordableError("results share memory, with others or the variables")


def _are_same(first: Program, second: Program) -> bool:
    return first.source == second.source and _are_equal(
        first.constants, second.constants
    )


def _are_equal(first: Any, second: Any) -> bool:
    """Compare nests of tensors, and of what there is beside them."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            [_are_equal(first[key], second[key]) for key in first]
        )
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        # Results of other strides are equal, but what the caller does next may not be.
        return _layout(first) == _layout(second) and (
            first.data_ptr() == second.data_ptr() or torch.equal(first, second)
        )
    # 1 and True are equal, but not as arguments of an operation.
    return type(first) is type(second) and bool(first == second)


def _autocast_to(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """Return the type of numbers that the caller wants to compute with, or None."""
    device = tensors[0].device.type if tensors else "cpu"
    is_on = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_on else None


def _layout(tensor: Tensor) -> Hashable:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def has_hooks_of_all_modules() -> bool:
    """Tell whether hooks are registered that are called for every module there is."""
    return bool(
        _modules._global_forward_hooks
        or _modules._global_forward_pre_hooks
        or _modules._global_backward_hooks
        or _modules._global_backward_pre_hooks
    )
