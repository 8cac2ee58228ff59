# SPDX-License-Identifier: Apache-2.0
"""The rows of remote tables that a step needs, and the gradients of those rows."""

import functools
import math
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from skest.distributed.ps.variables import Variables
from skest.feature_columns.lookup import own_values
from skest.optimizers.row_sparse import is_row_table


class LazyZeros:
    """A tensor of zeros whose pages, on the CPU, come into being when they are written to.

    Of a table in parameter servers a worker needs the rows that it reads, at the places
    that they have in the table: so the table may be larger than the memory.

    Parameters
    ----------
    shape, dtype, device
        Of the tensor.

    Attributes
    ----------
    tensor : Tensor
        The tensor.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.ps.rows import LazyZeros
    >>> large = LazyZeros((10**9, 16), torch.float32)
    >>> large.tensor[123_456_789] = 1
    >>> float(large.tensor[123_456_789].sum())
    16.0
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        n_bytes = math.prod(shape) * dtype.itemsize
        if torch.device(device).type != "cpu" or not n_bytes:
            self.tensor = torch.zeros(shape, dtype=dtype, device=device)
            self._memory = None
            return
        options = {}
        if hasattr(mmap, "MAP_PRIVATE"):
            # Anonymous pages are zeros, and take memory from the first write on.
            options["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOT_RESERVED
        self._memory = mmap.mmap(-1, n_bytes, **options)
        # The tensor holds the map, which lives as long as it does.
        flat = torch.frombuffer(self._memory, dtype=dtype)
        self.tensor = flat.view(tuple(shape))

    def forget(self) -> None:
        """Give the memory back, if that can be; the tensor is all zeros again."""
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self.tensor.zero_()


# Of Linux; Python has the name from 3.13 on. Without it, a table larger than the memory
# is refused by the kernel.
_NOT_RESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class TablesElsewhere(TorchFunctionMode):
    """Lets a model be built whose tables of feature columns get their values elsewhere.

    They are zeros that need no memory, and of their slots, which some optimizers make at
    once, there is but the description. What other code makes is what it always is.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.ps.rows import TablesElsewhere
    >>> from skest.feature_columns.lookup import row_table
    >>> table = row_table(torch.empty(10**6, 16))
    >>> with TablesElsewhere():
    ...     adagrad = torch.optim.Adagrad([table], initial_accumulator_value=0.1)
    >>> adagrad.state[table]["sum"].device
    device(type='meta')
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is own_values:
            return LazyZeros(args[0].shape, args[0].dtype, args[0].device).tensor
        if func in (torch.full_like, torch.zeros_like) and is_row_table(args[0]):
            # On this device a tensor has a shape and a type, and no memory.
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


class Distinct(NamedTuple):
    """Rows of some tables, each once.

    Parameters
    ----------
    through : Tensor of int64, shape (n,)
        All ids that were given, see `counted_through`.
    places : Tensor of int64, shape (n,)
        Where each of them is among the rows of all tables together.
    ids : dict of int to Tensor
        The rows of each table, ascending.
    """

    through: Tensor
    places: Tensor
    ids: dict[int, Tensor]

    def summed(self, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return for each table the sums of the values of equal ids, in their order.

        Parameters
        ----------
        values : dict of int to Tensor
            Of the same tables, one value for each id that was given.
        """
        found: dict[int, Tensor] = {}
        start = first = 0
        # Neighbours whose values can be one tensor are summed in one step.
        for _, alike in groupby(
            values, lambda n: (values[n].shape[1:], values[n].dtype)
        ):
            numbers = list(alike)
            together = torch.cat([values[n] for n in numbers])
            counts = [len(self.ids[n]) for n in numbers]
            places = self.places[start : start + len(together)] - first
            sums = together.new_zeros((sum(counts), *together.shape[1:]))
            # It adds in the order of the values, as one process does: bit for bit the same.
            sums.index_add_(0, places, together)
            found.update(zip(numbers, sums.split(counts), strict=True))
            start, first = start + len(together), first + sum(counts)
        return found


def counted_through(ids: Mapping[int, Tensor], starts: Sequence[int]) -> Tensor:
    """Return ids of tables, by their numbers, as if the tables were one.

    Parameters
    ----------
    ids : dict of int to Tensor of int64, shape (n,)
        By the numbers of tables, which ascend.
    starts : sequence of int
        Where the rows of each table begin, and where the last one ends.
    """
    return torch.cat([of_table + starts[n] for n, of_table in ids.items()])


def distinct_rows(
    ids: Mapping[int, Tensor], starts: Sequence[int], known: Distinct | None = None
) -> Distinct:
    """Find every row once.

    Parameters
    ----------
    ids, starts
        As for `counted_through`; all ids are rows of their tables.
    known : Distinct, default=None
        What was found before, which is returned again if it is of the same ids.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.ps.rows import distinct_rows
    >>> ids = {0: torch.tensor([4, 1, 4]), 1: torch.tensor([1])}
    >>> found = distinct_rows(ids, [0, 5, 10])
    >>> found.ids
    {0: tensor([1, 4]), 1: tensor([1])}
    >>> found.summed({0: torch.tensor([1.0, 2.0, 3.0]), 1: torch.tensor([7.0])})
    {0: tensor([2., 4.]), 1: tensor([7.])}
    """
    through = counted_through(ids, starts)
    if known is not None and torch.equal(known.through, through):
        return known
    # Of all tables at once: for each alone it would take longer than the exchange.
    rows, places = through.unique(return_inverse=True)
    ends = torch.tensor(starts, device=rows.device)
    parts = rows.split(torch.searchsorted(rows, ends).diff().tolist())
    return Distinct(through, places, {n: parts[n] - starts[n] for n in ids})


#: ``fetch({number of the table: unique ids})`` brings rows and calls `RemoteRows.put`.
Fetch = Callable[[dict[int, Tensor]], None]

# Of rows that came; beyond, a step begins with none, for it needs no others than its
# own.
_KEPT_BYTES = 1 << 30
_BRING = "bring_rows"  # as `skest.feature_columns.lookup.bring_rows` looks for it


_Lookup = tuple[int, int, int, bool]


def _lookup(number: int, ids: Tensor, with_first: bool) -> _Lookup:
    """Return what tells one look-up in a table from others of a step.

    As long as nobody writes into the ids: their version is in it.
    """
    version = 0 if ids.is_inference() else ids._version
    return number, id(ids), version, with_first


# Rows travel, not tables: 1.39 MB a step, where all of a table of a million rows of 16
# numbers took 126 MB (1,024 examples with 8 ids each).
class RemoteRows:
    """The row tables of a network whose rows are in parameter servers.

    Parameters
    ----------
    network : nn.Module
        Its tables become empty; a look-up of rows calls `fetch` from now on.
    variables : Variables
        Of the network; its tables have numbers in this order.
    fetch : callable
        Brings rows that are missing.

    Raises
    ------
    ValueError
        If an embedding would change its rows in the forward pass (``max_norm``).
    """

    def __init__(self, network: nn.Module, variables: Variables, fetch: Fetch) -> None:
        parameters = dict(network.named_parameters())
        names = [v.name for v in variables.of_kind("table")]
        self._starts = list(
            accumulate((parameters[n].shape[0] for n in names), initial=0)
        )
        device = parameters[names[0]].device if names else torch.device("cpu")
        # In which step rows came, of all tables, one table behind the other.
        self._marks = LazyZeros((self._starts[-1],), torch.int32, device)
        self._brought_at = self._marks.tensor
        self._tables = [
            _Table(name, parameters[name], self._brought_at[start:])
            for name, start in zip(names, self._starts, strict=False)
        ]
        self._numbers = {id(t.parameter): i for i, t in enumerate(self._tables)}
        self._fetch = fetch
        self._step = 0
        self._known: dict[int, tuple[str, ...]] = {}
        # What was looked up so far, in the order in which it was met.
        self._plan: dict[tuple[int, tuple[str, ...], bool], None] = {}
        # What is looked up in this step, and what was brought before it.
        self._features: Any = None
        self._lookups: dict[_Lookup, Tensor] = {}
        self._brought: Distinct | None = None
        self._handles: list[Any] = []
        self._watch(network)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    def begin_step(self, features: Any) -> dict[int, Tensor]:
        """Forget all rows, and return the ids of those to `put` before the step.

        Parameters
        ----------
        features : tensor or dictionary
            The encoded batch. Where the last steps found ids in it, this one will. What
            else is read is fetched when it is read.

        Returns
        -------
        dict of int to Tensor
            Unique ids by the number of the table.
        """
        # Rows are marked with it, so that no mark has to be taken off.
        self._step += 1
        if sum(table.bytes_held() for table in self._tables) > _KEPT_BYTES:
            self._marks.forget()
            for table in self._tables:
                table.forget()
        lookups: dict[_Lookup, Tensor] = {}
        found: dict[int, list[Tensor]] = {}
        for number, path, with_first in self._plan:
            ids = _at(features, path)
            if ids is not None:
                lookups[_lookup(number, ids, with_first)] = ids
                found.setdefault(number, []).append(_rows(ids, with_first))
        asked = {n: torch.cat(found[n]) for n in sorted(found)}
        self._lookups = lookups
        self._brought = self._distinct(asked) if asked else None
        # Identities hold as long as the tensors live, so they are kept.
        self._features = features
        self._known = {id(ids): path for path, ids in _tensors_in(features)}
        return {} if self._brought is None else self._brought.ids

    def put(self, number: int, ids: Tensor, rows: Tensor) -> None:
        """Write rows of a table that came."""
        self._tables[number].put(ids, rows, self._step)

    def row_shape(self, number: int) -> tuple[torch.Size, torch.dtype]:
        """Return shape and type of a row of a table."""
        values = self._tables[number].values
        return values.shape[1:], values.dtype

    def gradients(self) -> list[tuple[Tensor, Tensor] | None]:
        """Return the unique ids and the gradients of their rows, for every table.

        Raises
        ------
        ValueError
            If a gradient is dense, or rows have one that were not brought.
        """
        gradients = {
            n: gradient
            for n, table in enumerate(self._tables)
            if (gradient := table.gradient()) is not None
        }
        found = {n: (g._indices()[0], g._values()) for n, g in gradients.items()}
        if found:
            self._check_brought({n: ids for n, (ids, _) in found.items()})
        several = [n for n, g in gradients.items() if not g.is_coalesced() and g._nnz()]
        if several:
            ids, known = {n: found[n][0] for n in several}, self._brought
            distinct = distinct_rows(ids, self._starts, known)  # known most often
            sums = distinct.summed({n: found[n][1] for n in several})
            found |= {n: (distinct.ids[n], sums[n]) for n in several}
        return [found.get(n) for n in range(len(self))]

    def close(self) -> None:
        """Let go of the network."""
        for handle in self._handles:
            handle.remove()
        for table in self._tables:
            # The network may be used on, as for an evaluation, when the servers are
            # gone.
            delattr(table.parameter, _BRING)

    def _check_brought(self, ids: dict[int, Tensor]) -> None:
        """Raise ValueError unless all rows came: of others, zeros were computed with."""
        through, known = counted_through(ids, self._starts), self._brought
        if known is not None and torch.equal(known.through, through):
            return  # all of them were brought before the step
        if (self._brought_at.index_select(0, through) != self._step).any():
            names = [
                self._tables[n].name
                for n, found in ids.items()
                if len(self._tables[n].missing(found, self._step))
            ]
            raise ValueError(
                f"Rows of the tables {names} in parameter servers were looked up where "
                "that is not seen. Look them up with a torch.nn.Embedding that is called "
                "in Python, or call skest.feature_columns.lookup.bring_rows(table, ids) "
                "before."
            )

    def _watch(self, network: nn.Module) -> None:
        """Fetch what modules look up, and what `bring_rows` asks for."""
        for number, table in enumerate(self._tables):
            setattr(table.parameter, _BRING, functools.partial(self._need, number))
        for module in network.modules():
            if hasattr(module, "row_lookups"):
                self._watch_columns(module)
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
                self._watch_embedding(module)

    # Hooks are functions and no partials: what these hold is looked at where steps are
    # recorded.

    def _watch_columns(self, module: Any) -> None:
        lookups = [
            (self._numbers[id(table)], key, with_first)
            for table, key, with_first in module.row_lookups()
            if id(table) in self._numbers
        ]

        def before(module: nn.Module, args: Any) -> None:
            for number, key, with_first in lookups:
                self._need(number, args[0][key], with_first)

        self._handles.append(module.register_forward_pre_hook(before))

    def _watch_embedding(self, module: nn.Embedding | nn.EmbeddingBag) -> None:
        number = self._numbers.get(id(module.weight))
        if number is None:
            return
        if module.max_norm is not None:
            raise ValueError(
                "An embedding with 'max_norm' changes its rows in the forward pass, "
                "which parameter servers do not see. Use embedding_column, whose "
                "'max_norm' does not, or an embedding without it."
            )

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._need(number, args[0] if args else kwargs["input"])

        handle = module.register_forward_pre_hook(before, with_kwargs=True)
        self._handles.append(handle)

    def _distinct(self, ids: dict[int, Tensor]) -> Distinct:
        """Return every id of each table once; raise IndexError if one is no row of it."""
        # What is no row of its table may be one of the next.
        ends = torch.tensor([self._starts[n + 1] for n in ids])
        limits = ends.repeat_interleave(torch.tensor([*map(len, ids.values())]))
        through = counted_through(ids, self._starts)
        if (through >= limits.to(through.device)).any():
            beyond = [
                f"{int(own.max())} in {table.name!r}, of {len(table.values)} rows"
                for n, own in ids.items()
                if len(own) and own.max() >= len((table := self._tables[n]).values)
            ]
            raise IndexError(
                "Ids that are looked up must be less than the number of rows; got "
                f"{', '.join(beyond)}."
            )
        return distinct_rows(ids, self._starts)

    def _need(self, number: int, ids: Tensor, with_first: bool = False) -> None:
        """Fetch the rows that a look-up will read, unless they are there."""
        lookup = _lookup(number, ids, with_first)
        if lookup in self._lookups:
            return
        path = self._known.get(id(ids))
        if path is not None:
            self._plan[number, path, with_first] = None
        table = self._tables[number]
        missing = table.missing(_rows(ids, with_first), self._step)
        # An exchange of its own: this look-up was not known before the step.
        if len(missing):
            self._fetch(self._distinct({number: missing}).ids)
        self._lookups[lookup] = ids


class _Table:
    """One table: its values as far as they are there."""

    def __init__(self, name: str, parameter: nn.Parameter, brought_at: Tensor) -> None:
        self.name, self.parameter = name, parameter
        self._memory = LazyZeros(parameter.shape, parameter.dtype, parameter.device)
        self.values = self._memory.tensor
        self._brought_at = brought_at[: len(self.values)]
        self._n_brought = 0
        # The optimizer and the modules hold this very parameter, at its full shape.
        parameter.data = self.values

    def bytes_held(self) -> int:
        """Return how much memory the values take at most."""
        # At worst every row that came lies on a page of its own.
        return min(self._n_brought * mmap.PAGESIZE, self.values.nbytes)

    def forget(self) -> None:
        self._n_brought = 0
        self._memory.forget()

    def missing(self, ids: Tensor, step: int) -> Tensor:
        """Return the ids of the rows that did not come in this step."""
        return ids[self._brought_at.index_select(0, ids) != step]

    def put(self, ids: Tensor, rows: Tensor, step: int) -> None:
        self._n_brought += len(ids)
        self.values.index_copy_(0, ids, rows.to(self.values.device))
        self._brought_at.index_fill_(0, ids, step)

    def gradient(self) -> Tensor | None:
        """Return the gradient, which is one of rows, or None."""
        grad = self.parameter.grad
        if grad is not None and not grad.is_sparse:
            raise ValueError(
                f"The variable {self.name!r} is a table whose rows are in parameter "
                "servers, but its gradient is dense: something reads all of it, such as "
                "a penalty on its values. Read rows with torch.nn.functional.embedding("
                "..., sparse=True), or make it no row table."
            )
        return grad


def _rows(ids: Tensor, with_first: bool) -> Tensor:
    """Return the rows that a look-up of ids may read; missing ids read the first."""
    rows = ids.reshape(-1).long().clamp(min=0)
    return torch.cat([rows, rows.new_zeros(1)]) if with_first else rows


def _tensors_in(
    features: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the tensors in nested dictionaries, each with its keys."""
    if isinstance(features, Tensor):
        yield path, features
    elif isinstance(features, Mapping):
        for key, value in features.items():
            yield from _tensors_in(value, (*path, key))


def _at(features: Any, path: tuple[str, ...]) -> Tensor | None:
    """Return the tensor at a path, None if there is none."""
    for key in path:
        if not isinstance(features, Mapping) or key not in features:
            return None
        features = features[key]
    return features if isinstance(features, Tensor) else None
