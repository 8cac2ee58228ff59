# SPDX-License-Identifier: Apache-2.0
"""Rows of large tables by id: the look-up, its sparse gradient, and the combiners."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

COMBINERS = ("mean", "sqrtn", "sum")


def row_lookup(weight: Tensor, ids: Tensor) -> Tensor:
    """Look up rows of a table by id; an id of -1 gives zeros.

    Parameters
    ----------
    weight : Tensor of shape (num_buckets, dimension)
        The table.
    ids : Tensor of int64
        Row numbers, or -1; of shape (n_rows,) or (n_rows, n_values).

    Returns
    -------
    Tensor of shape (*ids.shape, dimension)
        Its gradient with respect to `weight` is sparse (COO, not coalesced) and holds
        only the rows looked up, so that a step costs the same for every table size.

    Notes
    -----
    An example without any id counts as a look-up of row 0 with a gradient of zero, as in
    ``tf.nn.safe_embedding_lookup_sparse``. It matters for optimizers that move a row
    even then: with momentum, with weight decay, and FTRL at the first touch.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns.lookup import row_lookup
    >>> row_lookup(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, -1]))
    tensor([[3., 4.],
            [0., 0.]])
    """
    # Without a branch or a shape that depends on the ids: a recorded step must hold for
    # every batch. So a missing id looks up another row, and its zeros carry no gradient.
    missing, rows = ids < 0, ids.clamp(min=0)
    if ids.dim() == 2:
        rows = torch.where(missing, rows.amax(dim=1, keepdim=True), rows)
    # Of a program only the result counts, and torch compiles this one itself.
    is_sparse = not torch.compiler.is_exporting()
    found = F.embedding(rows, weight, sparse=is_sparse)
    return found.masked_fill(missing.unsqueeze(-1), 0)


def combined_rows(
    weight: Tensor,
    ids: Tensor,
    combiner: str,
    max_norm: float | None = None,
    factors: Tensor | None = None,
) -> Tensor:
    """Combine the table rows of each example to one vector.

    Parameters
    ----------
    weight : Tensor of shape (num_buckets, dimension)
        The table.
    ids : Tensor of int64, shape (n_rows, n_values)
        Row numbers; -1 takes no part.
    combiner : {"mean", "sqrtn", "sum"}
        The sum of the rows, divided by their number n, by √n, or by 1. With factors f,
        the sum of ``f * row``, divided by Σf, by √Σf², or by 1.
    max_norm : float, default=None
        Table rows that are longer (L2 norm) are scaled to this length first.
    factors : Tensor of shape (n_rows, n_values), default=None
        Finite weights of the ids. For "mean" and "sqrtn", an id whose factor is not
        positive takes no part.

    Returns
    -------
    Tensor of shape (n_rows, dimension)
        Zeros where an example has no id.

    Notes
    -----
    The semantics are those of ``tf.nn.safe_embedding_lookup_sparse``. Means are taken
    with factors relative to the largest of the example, so that no square overflows or
    becomes zero.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns.lookup import combined_rows
    >>> table = torch.tensor([[1.0], [3.0]])
    >>> combined_rows(table, torch.tensor([[0, 1], [1, -1], [-1, -1]]), "mean")
    tensor([[2.],
            [3.],
            [0.]])
    >>> factors = torch.tensor([[3.0, 1.0]])
    >>> combined_rows(table, torch.tensor([[0, 1]]), "mean", factors=factors)
    tensor([[1.5000]])
    """
    if factors is not None:
        return _weighted_rows(weight, ids, combiner, max_norm, factors)
    if ids.shape[1] == 1:  # all combiners agree on one value
        return clipped(row_lookup(weight, ids[:, 0]), max_norm)
    total = clipped(row_lookup(weight, ids), max_norm).sum(dim=1)
    if combiner == "sum":
        return total
    count = (ids >= 0).sum(dim=1, keepdim=True).clamp(min=1).to(total.dtype)
    return total / (count.sqrt() if combiner == "sqrtn" else count)


def _weighted_rows(
    weight: Tensor, ids: Tensor, combiner: str, max_norm: float | None, factors: Tensor
) -> Tensor:
    factors = factors.to(weight.dtype)
    if combiner != "sum":
        # tf.nn.safe_embedding_lookup_sparse prunes such ids, too, unless it sums.
        ids = ids.masked_fill(factors <= 0, -1)
        factors = factors.masked_fill(ids < 0, 0)
        # A mean has no scale: relative to the largest weight, no square is out of
        # range.
        largest = factors.amax(dim=1, keepdim=True)
        factors = factors / torch.where(largest > 0, largest, 1)
    # In this order in embedding_lookup_sparse of TensorFlow: clip, then weigh, then
    # sum.
    rows = clipped(row_lookup(weight, ids), max_norm)
    total = (rows * factors.unsqueeze(-1)).sum(dim=1)
    if combiner == "sum":
        return total
    if combiner == "sqrtn":
        divisor = factors.square().sum(dim=1, keepdim=True).sqrt()
    else:
        divisor = factors.sum(dim=1, keepdim=True)
    return total / divisor.clamp(min=1)  # it is 1 or more, or there is no id


def looked_up_often(weight: Tensor, n: int) -> tuple[Tensor, ...]:
    """Return a table as often as it is looked up in a step.

    Autograd adds sparse gradients by a merge of their entries, as if those were sorted:
    how many are left depends on the ids, and so does the order of the sums. Of the
    tables returned here the gradients are put one behind the other instead, as with
    ``IndexedSlices`` of TensorFlow, and the step can be recorded.

    Parameters
    ----------
    weight : Tensor of shape (num_buckets, dimension)
        The table.
    n : int
        How often it is looked up by `row_lookup` or `combined_rows`, at least 1.

    Returns
    -------
    tuple of n Tensor
        The same table, each to be looked up once.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns.lookup import looked_up_often, row_lookup
    >>> table = torch.zeros(9, 1, requires_grad=True)
    >>> first, second = looked_up_often(table, 2)
    >>> ids = torch.tensor([7, 2])
    >>> (row_lookup(first, ids) + row_lookup(second, ids)).sum().backward()
    >>> table.grad._indices()
    tensor([[7, 2, 7, 2]])
    """
    if n == 1 or not (torch.is_grad_enabled() and weight.requires_grad):
        return (weight,) * n
    found: tuple[Tensor, ...] = _OneForEachLookup.apply(weight, n)
    return found


class _OneForEachLookup(torch.autograd.Function):
    """The same table several times; sparse gradients are put one behind the other."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, n: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(weight.view_as(weight) for _ in range(n))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        found = [gradient for gradient in gradients if gradient is not None]
        # Of a table that one of its look-ups did not use: nothing is to be joined.
        if len(found) < 2:
            return (found[0] if found else None), None
        ids = torch.cat([gradient._indices() for gradient in found], dim=1)
        values = torch.cat([gradient._values() for gradient in found])
        joined = torch.sparse_coo_tensor(
            ids, values, found[0].shape, is_coalesced=False, check_invariants=False
        )
        return joined, None


def own_values(empty: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return the values of a table that nobody else's random numbers depend on.

    A ``TorchFunctionMode`` that handles this function may leave them out: where the rows
    of a model are elsewhere, `skest.distributed.ps.worker` does.

    Parameters
    ----------
    empty : Tensor
        As the table shall be, without values.
    make : callable
        Returns the values.
    """
    if has_torch_function_unary(empty):
        values: Tensor = handle_torch_function(own_values, (empty,), empty, make)
        return values
    return make()


def bring_rows(table: Tensor, ids: Tensor) -> None:
    """Have rows of a table here before they are looked up.

    It does nothing, unless the rows are in parameter servers: there modules of feature
    columns and ``nn.Embedding`` ask for what they look up, and all others must.

    Parameters
    ----------
    table : Parameter
        Of which `row_lookup`, or ``torch.nn.functional.embedding``, will read rows.
    ids : Tensor of int64
        Row numbers, or -1.
    """
    bring = getattr(table, "bring_rows", None)
    if bring is not None:
        bring(ids)


def row_table(values: Tensor, *, trainable: bool = True) -> nn.Parameter:
    """Make a parameter whose rows are looked up by id, with ``is_row_table`` set.

    Optimizers update only the rows that a batch touched, see `skest.optimizers.row_sparse`.
    """
    parameter = nn.Parameter(values, requires_grad=trainable)
    parameter.is_row_table = True  # type: ignore[attr-defined]
    return parameter


def clipped(rows: Tensor, max_norm: float | None) -> Tensor:
    """Scale rows that are longer (L2 norm) than `max_norm` to this length."""
    if max_norm is None:
        return rows
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (max_norm / norms.clamp(min=max_norm))


class Lookup(NamedTuple):
    """What to look up; see `skest.feature_columns.lookup.combined_rows`."""

    weight: Tensor
    ids: Tensor
    combiner: str
    max_norm: float | None = None
    factors: Tensor | None = None


def looked_up(lookups: Sequence[Lookup]) -> list[Tensor]:
    """Return for each look-up what `combined_rows` does, bit for bit.

    Cells with one id are looked up together in tables of equal width: their ids are
    searched for missing ones at once, and so are zeros set.

    Parameters
    ----------
    lookups : sequence of Lookup
        All with the same number of rows.

    Returns
    -------
    list of Tensor
        Of shape (n_rows, dimension).

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns.lookup import Lookup, looked_up
    >>> first, second = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])
    >>> ids = torch.tensor([[1], [-1]])
    >>> rows = looked_up([Lookup(first, ids, "sum"), Lookup(second, -1 - ids * 0, "sum")])
    >>> [found.tolist() for found in rows]
    [[[2.0], [0.0]], [[0.0], [0.0]]]
    """
    # Few operations for many: of 20 tables, the look-ups of a step with 256 rows take
    # 1.1 ms so in place of 1.5, those of a single row half of the time.
    found: dict[int, Tensor] = {}
    # By width and type, for only equal ones can be stacked.
    plain: dict[Any, list[int]] = defaultdict(list)
    for i, lookup in enumerate(lookups):
        if lookup.factors is None and lookup.ids.shape[1] == 1:
            plain[lookup.weight.shape[1], lookup.weight.dtype].append(i)
        else:
            found[i] = combined_rows(*lookup)
    for together in plain.values():
        chosen = [lookups[i] for i in together]
        for i, lookup, values in zip(together, chosen, _rows(chosen), strict=True):
            found[i] = clipped(values, lookup.max_norm)
    return [found[i] for i in range(len(lookups))]


def _rows(lookups: Sequence[Lookup]) -> Sequence[Tensor]:
    """Return for look-ups of one id, in tables of one width, what `row_lookup` does."""
    if len(lookups) == 1:
        return [row_lookup(lookups[0].weight, lookups[0].ids[:, 0])]
    ids = torch.cat([lookup.ids for lookup in lookups]).view(len(lookups), -1)
    rows = zip(ids.clamp(min=0).unbind(), lookups, strict=True)
    # Each table is looked up by itself, and has a sparse gradient of its own.
    found = [F.embedding(own, lookup.weight, sparse=True) for own, lookup in rows]
    missing = (ids < 0).unsqueeze(-1)
    return torch.stack(found).masked_fill(missing, 0).unbind()
