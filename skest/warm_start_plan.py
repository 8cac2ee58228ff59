# SPDX-License-Identifier: Apache-2.0
"""What a warm start would do, variable by variable, with all that forbids it."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from skest.exceptions import CheckpointMismatchError
from skest.vocab_info import VocabInfo
from skest.warm_start_report import VariableReport

__all__ = ["NOTHING_KNOWN", "KnownChanges", "as_list", "planned_transfers"]

_MOST_LISTED = 20


class KnownChanges(NamedTuple):
    """What is known of variables that changed since the source was trained.

    Attributes
    ----------
    vocab_infos : dict of str to list of VocabInfo
        For those that have none from the user; they are not selected by it.
    reasons : dict of str to str
        Why variables have nothing in the source, which is no error then.
    """

    vocab_infos: Mapping[str, Sequence[VocabInfo]] = MappingProxyType({})
    reasons: Mapping[str, str] = MappingProxyType({})


#: Of a source that is no more than its variables.
NOTHING_KNOWN = KnownChanges()


class _Settings(Protocol):
    """What of `skest.warm_start.WarmStartSettings` counts here."""

    @property
    def vars_to_warm_start(self) -> str | Sequence[str] | None: ...
    @property
    def var_name_to_vocab_info(
        self,
    ) -> Mapping[str, VocabInfo | Sequence[VocabInfo]] | None: ...
    @property
    def var_name_to_prev_var_name(self) -> Mapping[str, str] | None: ...
    @property
    def known_changes(self) -> "KnownChanges": ...


class _Transfer(NamedTuple):
    """The value that a variable will have, and where it is from."""

    value: Tensor
    n_copied: int
    n_new: int
    reason: str = ""


class _Part(NamedTuple):
    """What is known along one axis, and what stands where nothing is."""

    axis: int
    is_known: np.ndarray
    backup: Tensor


def planned_transfers(
    variables: Mapping[str, Tensor],
    previous: Mapping[str, Tensor],
    settings: _Settings,
    source: str,
) -> tuple[dict[str, Tensor], list[VariableReport]]:
    """Return the new values of variables, and a report about all of them.

    Parameters
    ----------
    variables, previous : dict of str to Tensor
        Those of the new network, as they are, and of the source.
    settings : WarmStartSettings
        Which are meant; what is in its source does not count.
    source : str
        What to call the source.

    Returns
    -------
    values : dict of str to Tensor
        Of those to warm-start.
    reports : list of VariableReport
        In the order of `variables`.

    Raises
    ------
    CheckpointMismatchError
        With one list of names and patterns that match nothing, variables that the source
        lacks, and shapes and vocabularies that do not fit.
    """
    previous_names = settings.var_name_to_prev_var_name or {}
    known, given = settings.known_changes, settings.var_name_to_vocab_info or {}
    vocab_infos = {**known.vocab_infos, **given}
    selected, problems = _selected(settings.vars_to_warm_start, variables)
    selected |= given.keys()
    problems += _unknown_names(settings, variables, selected)
    values: dict[str, Tensor] = {}
    reports: list[VariableReport] = []
    for name, variable in variables.items():
        n_rows = len(variable) if variable.ndim else 1
        old_name = previous_names.get(name, name)
        left_out = name in known.reasons and old_name not in previous
        if left_out or name not in selected:
            reason = known.reasons[name] if left_out else "not selected"
            reports.append(VariableReport(name, None, 0, n_rows, reason))
            continue
        try:
            transfer = _transfer(
                variable, previous.get(old_name), as_list(vocab_infos.get(name))
            )
        except ValueError as error:
            called = name if old_name == name else f"{name} (before: {old_name})"
            problems.append(f"{called}: {error}")
            continue
        values[name] = transfer.value
        _, n_copied, n_new, reason = transfer
        taken_from = old_name if n_copied or not n_new else None
        reports.append(VariableReport(name, taken_from, n_copied, n_new, reason))
    if problems:
        raise _refusal(problems, previous, source)
    return values, reports


def _selected(
    wanted: str | Sequence[str] | None, variables: Mapping[str, Tensor]
) -> tuple[set[str], list[str]]:
    """Return the names that are meant, and what is wrong with the patterns."""
    selected: set[str] = set()
    problems = []
    for pattern in [wanted] if isinstance(wanted, str) else wanted or ():
        # A name is a pattern, too, but shall not match those that only begin with it.
        is_name = not isinstance(wanted, str) and pattern in variables
        found = {n for n in variables if re.match(pattern, n)}
        selected |= {pattern} if is_name else found
        if not found:
            problems.append(f"'vars_to_warm_start': {pattern!r} matches no variable")
    return selected, problems


def _unknown_names(
    settings: _Settings, variables: Mapping[str, Tensor], selected: set[str]
) -> list[str]:
    """Return which names in the dictionaries have no use."""
    problems = []
    for parameter in ("var_name_to_vocab_info", "var_name_to_prev_var_name"):
        for name in getattr(settings, parameter) or {}:
            if name not in variables:
                problems.append(f"'{parameter}': there is no variable {name!r}")
            elif name not in selected:
                problems.append(f"'{parameter}': {name!r} is not selected")
    return problems


def as_list(infos: VocabInfo | Sequence[VocabInfo] | None) -> list[VocabInfo]:
    """Return one VocabInfo, several or none as a list."""
    if infos is None:
        return []
    return [infos] if isinstance(infos, VocabInfo) else list(infos)


def _transfer(
    variable: Tensor, old: Tensor | None, infos: Sequence[VocabInfo]
) -> _Transfer:
    """Return what becomes of a variable; raise ValueError if that is not possible."""
    if old is None:
        raise ValueError("missing in the source")
    axes = {info.axis for info in infos}
    if old.ndim != variable.ndim or any(
        new_size != old_size
        for axis, (new_size, old_size) in enumerate(
            zip(variable.shape, old.shape, strict=True)
        )
        if axis not in axes
    ):
        raise ValueError(
            f"{tuple(old.shape)} in the source, {tuple(variable.shape)} in the network"
        )
    if not infos:
        return _Transfer(old, len(old) if old.ndim else 1, 0)
    if max(axes) >= variable.ndim or len(axes) < len(infos):
        raise ValueError(
            f"the axes {[info.axis for info in infos]} of its VocabInfo are not different "
            f"ones of a variable of shape {tuple(variable.shape)}"
        )
    sources = [
        info.sources(variable.shape[info.axis], old.shape[info.axis]) for info in infos
    ]
    parts = [
        _Part(info.axis, rows >= 0, _backup(variable, info))
        for info, rows in zip(infos, sources, strict=True)
    ]
    copied = old
    for part, rows in zip(parts, sources, strict=True):
        kept = torch.from_numpy(rows[part.is_known])
        copied = copied.index_select(part.axis, kept)
    value = _placed(copied.to(variable.dtype), parts)
    n_first = len(sources[0])
    n_copied = int(parts[0].is_known.sum()) if copied.numel() else 0
    return _Transfer(value, n_copied, n_first - n_copied, _what_is_new(parts))


def _what_is_new(parts: Sequence[_Part]) -> str:
    """Say which axes are not as a whole in the source; the first is in the numbers."""
    first, *others = parts
    new = ["not in the source"] if not first.is_known.all() else []
    for axis, is_known, _ in others:
        what = {0: "rows", 1: "columns"}.get(axis, f"axis {axis}")
        if not is_known.any():
            new.append(f"{what} not in the source")
        elif not is_known.all():
            new.append(f"{what}: {int(is_known.sum())} of {len(is_known)}")
    return ", ".join(new)


def _backup(variable: Tensor, info: VocabInfo) -> Tensor:
    """Return what stands in a variable where the source has nothing for it."""
    value = variable.detach().to("cpu", copy=True)
    with torch.no_grad():
        if info.backup_initializer is None:
            value.zero_()
        else:
            info.backup_initializer(value)
    return value


def _placed(copied: Tensor, parts: Sequence[_Part]) -> Tensor:
    """Return `copied` where all axes are known, and the backup of the first that is not."""
    if not parts:
        return copied
    (axis, is_known, backup), *others = parts
    rows = torch.from_numpy(np.flatnonzero(is_known))
    inner = [o._replace(backup=o.backup.index_select(axis, rows)) for o in others]
    return backup.index_copy(axis, rows, _placed(copied, inner))


def _refusal(
    problems: Sequence[str], previous: Mapping[str, Any], source: str
) -> CheckpointMismatchError:
    names = [f"{name} {tuple(value.shape)}" for name, value in previous.items()]
    if len(names) > _MOST_LISTED:
        names = [*names[:_MOST_LISTED], f"and {len(names) - _MOST_LISTED} others"]
    listed = "\n  ".join(problems)
    return CheckpointMismatchError(
        f"The warm start from {source} is not possible:\n  {listed}\n"
        f"The source has: {', '.join(names)}. Select other variables in "
        "WarmStartSettings(vars_to_warm_start=...), or say what they were called and "
        "what their rows stand for."
    )
