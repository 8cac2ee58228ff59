# SPDX-License-Identifier: Apache-2.0
"""The variables of a network that are not to be copied, because they lie elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from skest.distributed.variables import Variables, aliases

__all__ = ["elsewhere_of", "hidden"]


def elsewhere_of(
    variables: Variables, network: nn.Module
) -> tuple[set[str], dict[str, str]]:
    """Return what servers train.

    Returns
    -------
    names : set of str
        First names of those variables.
    others : dict of str to str
        Their other names in the ``state_dict``, each with the first.
    """
    names = {v.name for v in variables.all if v.kind != "constant"}
    others = {o: name for o, name in aliases(network).items() if name in names}
    return names, others


@contextmanager
def hidden(network: nn.Module, names: set[str]) -> Iterator[None]:
    """Leave variables out of the ``state_dict`` of a network."""

    def leave_out(
        module: nn.Module, found: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        for name in names & found.keys():
            del found[name]

    handle = network.register_state_dict_post_hook(leave_out)
    try:
        yield
    finally:
        handle.remove()
