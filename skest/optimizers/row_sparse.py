# SPDX-License-Identifier: Apache-2.0
"""Lets any dense optimizer update only the touched rows of large tables."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as _optimizers

from skest.core.resources import inside
from skest.optimizers.ftrl import loss_of

# Where tables have fewer rows together, values are summed for all of them at once.
_ROWS_TOGETHER = 2**20


class _Loan(NamedTuple):
    """Rows of a table that the inner optimizer updates in the table's place.

    They are those of `touched` ids; or all, of which those count where it is true.
    """

    table: Tensor
    touched: Tensor
    rows: Tensor
    group: dict[str, Any]


class _Touched(NamedTuple):
    """The rows of a table that a gradient touches, and its values there."""

    ids: Tensor
    values: Tensor


class RowSparse(Optimizer):
    """Apply a dense optimizer to the rows that a batch touched, and only to those.

    A parameter whose gradient is sparse (COO, sparse in dimension 0, as
    ``nn.Embedding(sparse=True)`` makes it) is a *row table*. In every step its touched
    rows and their optimizer slots are copied into small tensors, `inner` makes one
    ordinary step over those and all dense parameters together, and the results are
    copied back. The cost of a step does not depend on the number of rows.

    Parameters
    ----------
    inner : torch.optim.Optimizer
        The optimizer that holds the parameters; its rule must be elementwise, as those
        of Adagrad, Adam, AdamW, Ftrl, RMSprop and SGD are. From now on call `step` of
        the wrapper only.

    Attributes
    ----------
    inner : torch.optim.Optimizer
        As given.
    is_recorded : bool
        Whether `step` makes new tensors for all that it does not read from an earlier
        step, as a step needs that is recorded to be repeated. Otherwise it keeps one
        integer for each row of the largest table, or 4 MiB. Initially False.
    counts_all_steps : bool
        Whether a gradient without any row counts as a step of its table, as it has to
        where the rows that it touched are in another process. Initially False.
    param_groups, state, defaults
        Those of `inner`, with slots as large as the tables: learning rate schedulers,
        ``state_dict`` and ``load_state_dict`` work as if there were no wrapper.

    Raises
    ------
    TypeError
        If `inner` is no optimizer, or is wrapped already.
    ValueError
        In `step`: if a gradient is sparse in more than dimension 0, or if `inner` keeps
        a slot that cannot be cut into rows (Adafactor does).

    Notes
    -----
    Values of a row that occurs several times in a gradient are summed first, in their
    order. It is then updated as often, from and to the same, so that the shapes of all
    tensors follow from those of the gradients, and nothing has to be sorted. Touched
    rows follow the dense rule; the others, and their slots, stay as they are: moments
    do not decay and weights are not decayed until a row is touched again (known as
    *lazy* Adam). A step counter belongs to the whole table and counts the steps that
    touched any row. For Adagrad, Ftrl, SGD with momentum and RMSprop with momentum
    this equals what TensorFlow does with ``IndexedSlices``; its Adam and its RMSprop
    without momentum decay the moments of all rows in every step.

    Slots that `inner` creates in its first step start, in rows not yet touched, from
    what one step with gradient zero makes of a row of zeros. For all of torch.optim
    this is the initial value (Adamax: up to its epsilon).

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.row_sparse import RowSparse
    >>> embedding = torch.nn.Embedding(1000, 2, sparse=True)
    >>> before = embedding.weight.detach().clone()
    >>> optimizer = RowSparse(torch.optim.Adam([embedding.weight], lr=0.1))
    >>> embedding(torch.tensor([3, 7, 3])).sum().backward()
    >>> optimizer.step()
    >>> (embedding.weight != before).any(1).nonzero().ravel()
    tensor([3, 7])
    """

    def __init__(self, inner: Optimizer) -> None:
        if not isinstance(inner, Optimizer) or isinstance(inner, RowSparse):
            raise TypeError(
                "RowSparse wraps a torch.optim.Optimizer that is not wrapped yet, got "
                f"{type(inner).__name__}; write RowSparse(torch.optim.Adagrad(params))."
            )
        self.inner = inner
        self.is_recorded = False
        self.counts_all_steps = False
        self._scratch: dict[torch.device, Tensor] = {}
        super().__init__(inner.param_groups, inner.defaults)
        # The very objects of `inner`: a scheduler or a checkpoint of either is of both.
        self.param_groups, self.state = inner.param_groups, inner.state

    def __getstate__(self) -> dict[str, Any]:
        names = ("inner", "is_recorded", "counts_all_steps")
        own = {name: getattr(self, name) for name in names}
        return {**super().__getstate__(), **own, "_scratch": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Also the last step of load_state_dict, which makes new groups and state.
        super().__setstate__(state)
        self.inner.__setstate__(
            {"param_groups": self.param_groups, "state": self.state}
        )

    def __repr__(self) -> str:
        return f"RowSparse({self.inner!r})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to `inner`, as in torch.optim."""
        # The base constructor comes here with the groups that `inner` has already.
        if not any(param_group is group for group in self.inner.param_groups):
            self.inner.add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Make one step of `inner` over dense parameters and touched rows.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients anew and returns the loss.

        Returns
        -------
        loss : float or None
            What `closure` returned.
        """
        loss = loss_of(closure)
        self._make_dense()
        whole = [group["params"] for group in self.param_groups]
        # Rows of a step that failed half-way are not copied back.
        loans: list[_Loan] = []
        try:
            touched = self._touched_rows()
            for group in self.param_groups:
                group["params"] = self._lend(group, touched, loans)
            take_step(self.inner)
            for loan in loans:
                self._take_back(loan)
        finally:
            # Also after an error: schedulers and checkpoints read these groups.
            for group, params in zip(self.param_groups, whole, strict=True):
                group["params"] = params
            for loan in loans:
                self.state.pop(loan.rows, None)
        return loss

    def _make_dense(self) -> None:
        """Make gradients dense that have no fewer rows than their table.

        A whole step costs less there, and is the same if rows without a gradient stay.
        """
        # Adagrad leaves a row of gradient zero as it is; moments of other rules would
        # decay.
        if type(self.inner) is not torch.optim.Adagrad or self.counts_all_steps:
            return
        for group, param in self._members():
            is_free = not group["weight_decay"] and self._touches_rows(param)
            if is_free and self._is_dense(param):
                param.grad = param.grad.to_dense()

    def _lend(
        self, group: dict[str, Any], touched: dict[Tensor, _Touched], loans: list[_Loan]
    ) -> list[Tensor]:
        """Parameters of a group with the touched rows in place of row tables."""
        params = []
        for param in group["params"]:
            if param.grad is None or not param.grad.is_sparse:
                params.append(param)
            # A table whose gradient has no row takes no step: its counter stays.
            elif self._touches_rows(param):
                loan = self._borrowed(param, touched.get(param), group)
                loans.append(loan)
                params.append(loan.rows)
        return params

    def _borrowed(
        self, table: Tensor, touched: _Touched | None, group: dict[str, Any]
    ) -> _Loan:
        """Copy the touched rows of a table and of its slots, or all where that is less."""
        grad: Any = table.grad
        if touched is None:
            counts = torch.zeros(len(table), dtype=torch.bool, device=table.device)
            counts = counts.index_fill(0, grad._indices()[0], True)
            which = counts.view(-1, *[1] * (table.ndim - 1))
            take, values = torch.clone, grad.to_dense()
        else:
            which, values = touched
            take = partial(torch.index_select, dim=0, index=which)
        rows = take(table)
        rows.grad = values
        if table in self.state:
            self.state[rows] = {
                name: take(slot) if _is_like(slot, table) else slot
                for name, slot in self.state[table].items()
            }
        return _Loan(table, which, rows, group)

    def _touched_rows(self) -> dict[Tensor, _Touched]:
        """Return what the gradients of row tables hold, summed for equal ids."""
        touched = {
            param: _Touched(param.grad._indices()[0], param.grad._values())
            for _, param in self._members()
            if self._touches_rows(param) and not self._is_dense(param)
        }
        # One sum for all tables of one width.
        alike: dict[Any, list[Tensor]] = defaultdict(list)
        for table, (_, values) in touched.items():
            # Coalesced, every id stands once, and there is nothing to add up.
            if not table.grad.is_coalesced():
                alike[values.shape[1:], values.dtype, values.device].append(table)
        for tables in alike.values():
            for together in _packed(tables, self._room()):
                touched.update(self._summed({t: touched[t] for t in together}))
        return touched

    def _is_dense(self, param: Tensor) -> bool:
        """Tell whether a gradient has no fewer rows than its table."""
        grad: Any = param.grad
        return len(param) <= grad._nnz() and not self.counts_all_steps

    def _members(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield all parameters, each with its group."""
        for group in self.param_groups:
            for param in group["params"]:
                yield group, param

    def _touches_rows(self, param: Tensor) -> bool:
        """Tell whether a gradient is that of rows; raise ValueError if of parts."""
        grad = param.grad
        if grad is None or not grad.is_sparse:
            return False
        if not (grad._nnz() or self.counts_all_steps):
            return False
        if grad.sparse_dim() != 1:
            raise ValueError(
                "A row table needs a gradient that is sparse in dimension 0 only, got one "
                f"sparse in {grad.sparse_dim()} dimensions for a parameter of shape "
                f"{tuple(param.shape)}."
            )
        return True

    def _summed(self, touched: dict[Tensor, _Touched]) -> dict[Tensor, _Touched]:
        """Replace every value by the sum of those of the same row of a table."""
        ids = _side_by_side(touched)
        values = _joined([rows.values for rows in touched.values()])
        # A place where each id stands, the same for equal ones. With 32 bits index_add_
        # takes four times as long.
        numbers = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
        scratch = self._integers(ids.device).index_copy_(0, ids, numbers)
        place = scratch.index_select(0, ids).long()
        # Each sum in the row of one of its ids; the other rows stay zero.
        sums = torch.zeros_like(values).index_add_(0, place, values)
        lengths = [len(rows.ids) for rows in touched.values()]
        # Back to (n_ids, dimension), with the same sum for equal ids.
        parts = sums.index_select(0, place).split(lengths)
        return {
            table: rows._replace(values=part)
            for (table, rows), part in zip(touched.items(), parts, strict=True)
        }

    def _room(self) -> int:
        """Return for how many rows there is an integer; tables share it if they fit."""
        sizes = [len(param) for _, param in self._members() if param.ndim]
        # At least the largest table: it is summed by itself if need be.
        return max(max(sizes), min(sum(sizes), _ROWS_TOGETHER))

    def _integers(self, device: torch.device) -> Tensor:
        """Return a tensor of any content with an element for each row there is room for."""
        size = self._room()
        kept = self._scratch.get(device)
        if not self.is_recorded and kept is not None and len(kept) >= size:
            return kept
        # A recording reads its inputs where they are, so that a kept tensor would be
        # one.
        made = torch.empty(size, dtype=torch.int32, device=device)
        if not self.is_recorded:
            self._scratch[device] = made
        return made

    def _take_back(self, loan: _Loan) -> None:
        """Copy updated rows and slots into the table and its slots."""
        slots = self.state.get(loan.rows, {})
        kept = self.state.get(loan.table, {})
        # In the first step of a table.
        new = {n: s for n, s in slots.items() if n not in kept}
        if new:
            kept.update(self._allocate(new, loan))
            self.state[loan.table] = kept
        _write(loan, loan.table, loan.rows)
        for name, slot in slots.items():
            if _is_like(slot, loan.rows):
                _write(loan, kept[name], slot)
            else:
                kept[name] = slot

    def _allocate(self, slots: dict[str, Any], loan: _Loan) -> dict[str, Any]:
        """Slots that `inner` has just created for some rows, for the whole table."""
        for name, slot in slots.items():
            if not _is_like(slot, loan.rows) and getattr(slot, "ndim", 0) > 0:
                raise ValueError(
                    f"{type(self.inner).__name__} cannot update single rows: its slot "
                    f"{name!r} has shape {tuple(slot.shape)} for rows of shape "
                    f"{tuple(loan.rows.shape)}. Use an elementwise optimizer "
                    "(Adagrad, Adam, Ftrl, RMSprop, SGD) or dense gradients."
                )
        if not any(_is_like(slot, loan.rows) for slot in slots.values()):
            return slots
        # (1, dimension)
        initial = slots_of_zeros(self.inner, loan.group, loan.rows[:1])
        return {
            name: initial[name].expand_as(loan.table).contiguous()
            if _is_like(slot, loan.rows)
            else slot
            for name, slot in slots.items()
        }


def _write(loan: _Loan, whole: Tensor, rows: Tensor) -> None:
    """Copy rows of a loan into a table or a slot."""
    if loan.touched.dtype == torch.bool:
        whole.copy_(torch.where(loan.touched, rows, whole))
    else:
        # Equal ids bring equal rows, so that the order of writing does not matter.
        whole.index_copy_(0, loan.touched, rows)


def slots_of_zeros(
    rule: Optimizer, group: dict[str, Any], like: Tensor
) -> dict[str, Any]:
    """Return the state of zeros after one step of a rule with gradient zero."""
    probe = torch.zeros_like(like, requires_grad=True)
    probe.grad = torch.zeros_like(probe)
    groups = rule.param_groups
    # The rule itself, since nobody knows what its constructor took.
    rule.param_groups = [{**group, "params": [probe]}]
    try:
        rule.step()
    finally:
        rule.param_groups = groups
    return rule.state.pop(probe, {})


def rule_of(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose rule a step follows: inside of `RowSparse`, its own."""
    return optimizer.inner if isinstance(optimizer, RowSparse) else optimizer


def is_row_table(parameter: Tensor) -> bool:
    """Tell whether a parameter is made to be read by row."""
    return bool(getattr(parameter, "is_row_table", False))


def row_tables(network: nn.Module) -> list[Tensor]:
    """Return the parameters whose gradients are those of single rows."""
    found: list[Tensor] = [*filter(is_row_table, network.parameters())]
    for module in network.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            found.append(module.weight)
    return list(dict.fromkeys(found))


def _packed(tables: Sequence[Tensor], room: int) -> Iterator[list[Tensor]]:
    """Yield groups of tables that have no more rows than there is room for."""
    together: list[Tensor] = []
    for table in tables:
        if together and sum(map(len, together)) + len(table) > room:
            yield together
            together = []
        together.append(table)
    yield together


def _side_by_side(touched: dict[Tensor, _Touched]) -> Tensor:
    """Return the touched rows as if each table began where the one before ends."""
    ids = [rows.ids for rows in touched.values()]
    if len(ids) == 1:
        return ids[0]
    ends = accumulate(map(len, touched), initial=0)
    starts = [torch.full_like(i, start) for i, start in zip(ids, ends, strict=False)]
    return torch.cat(ids) + torch.cat(starts)


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def _is_like(slot: Any, parameter: Tensor) -> bool:
    """Whether a slot holds one value for every element of a parameter."""
    return isinstance(slot, Tensor) and slot.shape == parameter.shape


# What Optimizer makes of the `step` of every class: it calls hooks, and marks the step
# for a profiler.
_MARKING = Optimizer.profile_hook_step(Optimizer.step).__code__
# What the classes of torch make of their own `step`: it switches autograd off.
_SWITCHING = _optimizers._use_grad_for_differentiable(Optimizer.step).__code__


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Tell whether somebody wants to be called when an optimizer takes a step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its own hooks count, those of all optimizers, and a `step` that was replaced.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.row_sparse import has_step_hooks
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    >>> has_step_hooks(optimizer)
    False
    >>> handle = optimizer.register_step_post_hook(lambda *arguments: None)
    >>> has_step_hooks(optimizer)
    True
    """
    return bool(
        _optimizers._global_optimizer_pre_hooks
        or _optimizers._global_optimizer_post_hooks
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or "step" in vars(optimizer)  # by a wrapper that does more
    )


def take_step(optimizer: Optimizer) -> None:
    """Do what ``optimizer.step()`` does, without a mark where nobody profiles.

    The mark takes as long as a small layer; the first step of a process would import
    ``torch._dynamo``. Hooks are called as ever.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Has the gradients in its parameters.

    Raises
    ------
    RuntimeError
        As ``optimizer.step()``; where it takes no sparse gradients, with what to do.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.row_sparse import take_step
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.sum().backward()
    >>> take_step(torch.optim.SGD([weight], lr=0.5))
    >>> weight.data
    tensor([-0.5000, -0.5000])
    """
    # Of the class: torch wraps it when the first optimizer of a class is made.
    step = type(optimizer).step
    # Others may have wrapped the function of the class once more.
    is_marking = getattr(step, "__code__", None) is _MARKING
    try:
        if (
            not is_marking
            or torch.autograd._profiler_enabled()
            or has_step_hooks(optimizer)
        ):
            optimizer.step()
        else:
            _step_unmarked(optimizer, step.__wrapped__)  # type: ignore[attr-defined]
    except RuntimeError as error:
        if "sparse gradients" not in str(error):
            raise
        name = type(optimizer).__name__
        raise RuntimeError(
            f"{error}. Tables of feature columns have such gradients. Wrap the optimizer, "
            f"skest.optimizers.RowSparse({name}(...)): then it updates the rows that a "
            "batch touches."
        ) from error


def _step_unmarked(optimizer: Optimizer, step: Callable[..., Any]) -> None:
    plain = inside(step, _SWITCHING)
    if plain is step:
        step(optimizer)
    else:
        # As the layer that is left out does it, also for `differentiable`.
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            plain(optimizer)
