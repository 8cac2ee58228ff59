# SPDX-License-Identifier: Apache-2.0
"""Which parameter server holds which variable, and which rows of the tables."""

from collections.abc import Mapping

from torch import Tensor

__all__ = ["n_rows_of", "place", "rows_of"]


def place(sizes: Mapping[str, int], num_ps: int) -> dict[str, int]:
    """Spread variables over parameter servers by their size.

    Parameters
    ----------
    sizes : dict of str to int
        Bytes of each variable.
    num_ps : int
        Number of parameter servers, at least 1.

    Returns
    -------
    dict of str to int
        The number of a server for each name. It depends on nothing but the names and
        sizes: every process comes to the same.

    Notes
    -----
    The largest variable goes first, each to the server that has the fewest bytes so far,
    as with ``GreedyLoadBalancingStrategy`` of TensorFlow.

    Examples
    --------
    >>> from skest.distributed.placement import place
    >>> place({"a": 10, "b": 30, "c": 20}, 2)
    {'a': 1, 'b': 0, 'c': 1}
    """
    load = [0] * num_ps
    chosen = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        # Even an empty variable takes part in a request.
        ps = min(range(num_ps), key=lambda ps: (load[ps], ps))
        load[ps] += sizes[name]
        chosen[name] = ps
    return {name: chosen[name] for name in sorted(chosen)}


def rows_of(table: Tensor, ps: int, num_ps: int) -> Tensor:
    """Return the rows of a table that one server holds: every `num_ps`-th from `ps` on.

    Row ``r`` is row ``r // num_ps`` of server ``r % num_ps``. Ids that are sorted by how
    frequent they are are spread evenly so.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.placement import rows_of
    >>> rows_of(torch.arange(5), 1, 2)
    tensor([1, 3])
    """
    return table[ps::num_ps]


def n_rows_of(n_rows: int, ps: int, num_ps: int) -> int:
    """Return how many of the rows of a table `rows_of` gives to a server."""
    return len(range(ps, n_rows, num_ps))
