# SPDX-License-Identifier: Apache-2.0
"""Warm start: variables of another training as the start of a new one.

A plan says what would be done, variable by variable; the report, what was.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import is_checkpoint, read_checkpoint
from skest.checkpoints.store import DirectoryStore
from skest.checkpoints.vocab_info import VocabInfo
from skest.core.checks import as_tuple
from skest.core.console import TitledTable
from skest.core.files import list_versions
from skest.exceptions import CheckpointMismatchError, NotFittedError
from skest.optimizers.dual_ascent import DualAscent
from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import rule_of

_logger = logging.getLogger("skest")

_HEADINGS = ("variable", "from", "copied", "new", "why not")
_MOST_LISTED = 20


class VariableReport(NamedTuple):
    """What became of one variable.

    Attributes
    ----------
    name : str
        Of the variable of the new network.
    previous_name : str or None
        Of the variable in the source that it was taken from, if it was.
    n_copied, n_new : int
        Rows that come from the source, and that it does not have; columns, if only they
        have a `VocabInfo`. If the source has no column of them, no row comes from it.
    reason : str
        Why it was not warm-started, or not as a whole; of rows and columns that changed
        both, it counts the columns.
    """

    name: str
    previous_name: str | None
    n_copied: int
    n_new: int
    reason: str


@dataclass(frozen=True)
class WarmStartReport:
    """What a warm start took over; its text is a table.

    Parameters
    ----------
    source : str
        Where the variables come from.
    variables : sequence of VariableReport
        Every variable of the network.

    Examples
    --------
    >>> from skest.checkpoints.warm_start import VariableReport, WarmStartReport
    >>> report = WarmStartReport(
    ...     "run/ckpt-20",
    ...     [
    ...         VariableReport("color_weights", "color_weights", 2, 1, "not in old_vocab"),
    ...         VariableReport("bias", None, 0, 1, "not selected"),
    ...     ],
    ... )
    >>> report.warm_started
    ['color_weights']
    >>> print(report)
    Warm start from run/ckpt-20: 1 of 2 variables
    variable       from           copied  new  why not
    color_weights  color_weights  2       1    not in old_vocab
    bias           -              0       1    not selected
    """

    source: str
    variables: Sequence[VariableReport]

    @property
    def warm_started(self) -> list[str]:
        """Names of the variables that were taken over, at least in part."""
        return [v.name for v in self.variables if v.previous_name is not None]

    @property
    def not_warm_started(self) -> dict[str, str]:
        """Why variables were not taken over, by name."""
        return {v.name: v.reason for v in self.variables if v.previous_name is None}

    @property
    def summary(self) -> str:
        """The report in one line."""
        return (
            f"Warm start from {self.source}: {len(self.warm_started)} of "
            f"{len(self.variables)} variables"
        )

    def __str__(self) -> str:
        rows = [
            (v.name, v.previous_name or "-", str(v.n_copied), str(v.n_new), v.reason)
            for v in self.variables
        ]
        return TitledTable(self.summary, _HEADINGS, rows).text()


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


_NOTHING_KNOWN = KnownChanges()


def planned_transfers(
    variables: Mapping[str, Tensor],
    previous: Mapping[str, Tensor],
    settings: "WarmStartSettings",
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
    # Who gives a vocabulary means the variable; in TensorFlow it has to be selected, too.
    selected |= given.keys()
    # All problems at once: to mend one and meet the next would take as many attempts.
    problems += _unknown_names(settings, variables, selected)
    values: dict[str, Tensor] = {}
    reports: list[VariableReport] = []
    for name, variable in variables.items():
        n_rows = len(variable) if variable.ndim else 1
        old_name = previous_names.get(name, name)
        # A column that is new since the fit is no mistake of the user's.
        left_out = name in known.reasons and old_name not in previous
        if left_out or name not in selected:
            reason = known.reasons[name] if left_out else "not selected"
            reports.append(VariableReport(name, None, 0, n_rows, reason))
            continue
        try:
            value, n_copied, n_new, reason = _transfer(
                variable, previous.get(old_name), as_tuple(vocab_infos.get(name))
            )
        except ValueError as error:
            called = name if old_name == name else f"{name} (before: {old_name})"
            problems.append(f"{called}: {error}")
            continue
        values[name] = value
        # An empty variable has nothing to copy, and lacks nothing.
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
        # From the beginning of a name, as tf.train.warm_start takes patterns.
        found = {n for n in variables if re.match(pattern, n)}
        selected |= {pattern} if is_name else found
        if not found:
            problems.append(f"'vars_to_warm_start': {pattern!r} matches no variable")
    return selected, problems


def _unknown_names(
    settings: "WarmStartSettings", variables: Mapping[str, Tensor], selected: set[str]
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


def _transfer(
    variable: Tensor, old: Tensor | None, infos: Sequence[VocabInfo]
) -> tuple[Tensor, int, int, str]:
    """Return the value that a variable will have, and its part of a report.

    Raises
    ------
    ValueError
        If the old one cannot be taken over.
    """
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
        return old, len(old) if old.ndim else 1, 0, ""
    if max(axes) >= variable.ndim or len(axes) < len(infos):
        raise ValueError(
            f"the axes {[info.axis for info in infos]} of its VocabInfo are not different "
            f"ones of a variable of shape {tuple(variable.shape)}"
        )
    # As `LoadAndRemapMatrix` of TensorFlow, but along any number of axes.
    # For each axis, where elements go and where they are in the source.
    places = [np.arange(size) for size in variable.shape]
    sources = list(places)
    is_known = {}
    for info in infos:
        axis = info.axis
        rows = info.sources(variable.shape[axis], old.shape[axis])
        is_known[axis] = rows >= 0
        places[axis] = np.flatnonzero(rows >= 0)
        sources[axis] = rows[places[axis]]
    copied = old[_block(sources)]
    # Every element is written below: it is copied, or new along some axis.
    value = torch.empty(variable.shape, dtype=variable.dtype)
    value[_block(places)] = copied.to(value.dtype)
    for info in reversed(infos):  # where several axes are new, the first one counts
        new = torch.from_numpy(np.flatnonzero(~is_known[info.axis]))
        # As VocabInfo of tf.estimator: entries that are new begin at zero if nothing
        # else is said. On the CPU, where the values of the source are.
        backup = variable.detach().to("cpu", copy=True)
        with torch.no_grad():
            (info.backup_initializer or Tensor.zero_)(backup)
        value.index_copy_(info.axis, new, backup.index_select(info.axis, new))
    first = is_known[infos[0].axis]
    n_copied = int(first.sum()) if copied.numel() else 0
    reason = _what_is_new(is_known)
    n_lost = old.shape[infos[0].axis] - len(np.unique(sources[infos[0].axis]))
    if n_lost and n_copied:
        reason += f"{', ' if reason else ''}{n_lost} of the source have no place"
    return value, n_copied, len(first) - n_copied, reason


def _block(places: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
    """Return what indexes the elements at some places of each axis."""
    return tuple(map(torch.from_numpy, np.ix_(*places)))


def _what_is_new(known: Mapping[int, np.ndarray]) -> str:
    """Say which axes are not as a whole in the source; the first is in the numbers."""
    (_, first), *others = known.items()
    new = ["not in the source"] if not first.all() else []
    for axis, is_known in others:
        what = {0: "rows", 1: "columns"}.get(axis, f"axis {axis}")
        if not is_known.any():
            new.append(f"{what} not in the source")
        elif not is_known.all():
            new.append(f"{what}: {int(is_known.sum())} of {len(is_known)}")
    return ", ".join(new)


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


@dataclass(frozen=True)
class WarmStartSettings:
    """Says which variables a training starts from, and where they are.

    They are taken over before the first step of a training that has no checkpoint to go
    on from. Optimizers and the global step start anew; only slots of
    `skest.optimizers.Ftrl`, which determine its weights, are set to those that the
    weights stand for.

    Parameters
    ----------
    ckpt_to_initialize_from : str, path, Checkpoint or Estimator
        The source: a directory of a checkpoint, of checkpoints (a ``model_dir``, of which
        the latest is taken), of an export with ``format="checkpoint"`` or of its
        versions (of which the newest is taken), or a trained `skest.Estimator`.
        Estimators with ``fit`` also take a fitted one, and know then which columns and
        classes its variables stand for.
    vars_to_warm_start : str, sequence of str or None, default=".*"
        The variables: a regular expression, which must match the beginning of their names
        (`skest.Estimator.get_variable_names`), or a list of names and of such
        expressions. None is none but those of `var_name_to_vocab_info`.
    var_name_to_vocab_info : dict of str to VocabInfo, default=None
        Variables whose rows stand for the entries of a vocabulary, which may be another
        one now; a list of VocabInfo for several axes. They are warm-started in any case.
    var_name_to_prev_var_name : dict of str to str, default=None
        Names in the source of variables that had another name.

    Raises
    ------
    ValueError, TypeError
        If an argument is of the wrong type, or is no regular expression.

    Notes
    -----
    As ``tf.estimator.WarmStartSettings``, with these differences: buffers, such as the
    statistics of batch normalisation, are variables like others, so that a warm-started
    network computes what its source did; a list does not reach slots of optimizers and
    the global step; variables of `var_name_to_vocab_info` need not be selected.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import LinearRegressor, WarmStartSettings
    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> old = LinearRegressor(random_state=0).fit(X, 3 * X[:, 0])
    >>> settings = WarmStartSettings(old, vars_to_warm_start=["bias"])
    >>> new = LinearRegressor(warm_start_from=settings, max_iter=1, random_state=0)
    >>> new.fit(X, 3 * X[:, 0]).warm_start_report_.warm_started
    ['bias']
    """

    ckpt_to_initialize_from: Any
    vars_to_warm_start: str | Sequence[str] | None = ".*"
    var_name_to_vocab_info: Mapping[str, VocabInfo | Sequence[VocabInfo]] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.ckpt_to_initialize_from is None:
            raise TypeError(
                "'ckpt_to_initialize_from' must be a directory, a Checkpoint or an "
                "Estimator; got None."
            )
        _check_patterns(self.vars_to_warm_start)
        for name in ("var_name_to_vocab_info", "var_name_to_prev_var_name"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(
                    f"'{name}' must be a dictionary by names of variables, or None; got "
                    f"{type(value).__name__}."
                )
        for name, infos in (self.var_name_to_vocab_info or {}).items():
            for info in infos if isinstance(infos, list | tuple) else [infos]:
                if not isinstance(info, VocabInfo):
                    raise TypeError(
                        "'var_name_to_vocab_info' must have a VocabInfo or a list of "
                        f"them for {name!r}; got {type(info).__name__}."
                    )

    @property
    def known_changes(self) -> KnownChanges:
        """What is known of the source beside the settings."""
        return _NOTHING_KNOWN

    def __sklearn_clone__(self) -> "WarmStartSettings":
        return self  # a value: a copy of the source would only take memory


@dataclass(frozen=True)
class WarmStartFromFit(WarmStartSettings):
    """Settings for a source that tells what its variables stand for.

    Parameters
    ----------
    known_changes : KnownChanges
        What changed since.
    """

    known_changes: KnownChanges = _NOTHING_KNOWN  # in place of the property


def _check_patterns(patterns: Any) -> None:
    several = [patterns] if isinstance(patterns, str) else patterns or []
    if not isinstance(several, Sequence) or not all(
        isinstance(pattern, str) for pattern in several
    ):
        raise TypeError(
            "'vars_to_warm_start' must be a regular expression, a list of names and "
            f"regular expressions, or None; got {patterns!r}."
        )
    for pattern in several:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"'vars_to_warm_start' has {pattern!r}, which is no regular expression: "
                f"{error}."
            ) from error


def as_warm_start_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Return the settings that an argument `warm_start_from` stands for.

    Raises
    ------
    TypeError
        If it is nothing to start from.
    """
    if warm_start_from is None:
        return None
    settings = warm_start_from
    if not isinstance(settings, WarmStartSettings):
        settings = WarmStartSettings(warm_start_from)
    source = settings.ckpt_to_initialize_from
    # By its class: to get the attribute of the object would read a checkpoint from
    # disk.
    has_one = isinstance(getattr(type(source), "checkpoint", None), property)
    if has_one or isinstance(source, str | os.PathLike | Checkpoint):
        return settings
    remedy = " Give its 'estimator_'." if hasattr(source, "estimator_") else ""
    raise TypeError(
        "'warm_start_from' must be a directory, a Checkpoint, an Estimator or "
        f"WarmStartSettings of one of them; got {type(source).__name__}.{remedy}"
    )


def warm_start(
    network: nn.Module, optimizers: Sequence[Optimizer], settings: WarmStartSettings
) -> WarmStartReport:
    """Give a fresh network the variables that `settings` say.

    Parameters
    ----------
    network : torch.nn.Module
        As a new training would start.
    optimizers : sequence of Optimizer
        Of its parameters; those of FTRL are prepared.
    settings : WarmStartSettings
        Of a source that `as_warm_start_settings` accepts. An initializer in it draws from
        torch's global generator.

    Returns
    -------
    WarmStartReport

    Raises
    ------
    CheckpointMismatchError
        With one list of all that does not fit; nothing has changed then.
    NotFittedError
        If the source is an Estimator without a checkpoint.
    ValueError
        If there is no checkpoint at a path, or an optimizer cannot start from weights.

    Examples
    --------
    >>> import torch
    >>> from skest import WarmStartSettings
    >>> from skest.checkpoints.checkpoint import Checkpoint
    >>> from skest.checkpoints.warm_start import warm_start
    >>> old, new = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> settings = WarmStartSettings(Checkpoint.capture(old, 7), ["weight"])
    >>> print(warm_start(new, [], settings))
    Warm start from the checkpoint of step 7: 1 of 2 variables
    variable  from    copied  new  why not
    weight    weight  1       0
    bias      -       0       1    not selected
    >>> bool((new.weight == old.weight).all())
    True
    """
    rules = list(map(rule_of, optimizers))
    if any(isinstance(rule, DualAscent) for rule in rules):
        raise ValueError(
            "A model that LinearSDCA trains cannot be warm-started: its weights are a "
            "function of dual variables of the examples, which start at zero. Use "
            'another optimizer, such as "ftrl"; the source may be of LinearSDCA.'
        )
    called, checkpoint = _source_checkpoint(settings.ckpt_to_initialize_from)
    variables = network.state_dict(keep_vars=True)
    transfers, reports = planned_transfers(
        variables, checkpoint.variables, settings, called
    )
    with torch.no_grad():
        for name, value in transfers.items():
            # In place: optimizers hold these very tensors.
            variables[name].copy_(value)
    for rule in rules:
        # Its weights are a function of its slots: the first step would lose those taken
        # over. In tf.estimator it does: a weight of 3 was 9.6e-6 after it.
        if isinstance(rule, Ftrl):
            rule.keep_weights(variables[name] for name in transfers)
    report = WarmStartReport(called, reports)
    _log(report, settings)
    return report


def _log(report: WarmStartReport, settings: WarmStartSettings) -> None:
    """Tell what was taken over, and warn of what can hardly be meant."""
    if report.warm_started:
        _logger.info("%s.", report.summary)
    else:
        _logger.warning(
            "The warm start took nothing over; training starts anew. %s", report
        )
    for name, infos in (settings.var_name_to_vocab_info or {}).items():
        for info in as_tuple(infos):
            if info.doubt:
                _logger.warning(
                    "The warm start of %r took over no entry along axis %d: %s.",
                    name,
                    info.axis,
                    info.doubt,
                )


def _source_checkpoint(source: Any) -> tuple[str, Checkpoint]:
    """Return a checkpoint, and what to call it."""
    if isinstance(source, Checkpoint):
        return f"the checkpoint of step {source.global_step}", source
    if isinstance(source, str | os.PathLike):
        path = _checkpoint_path(Path(source))
        return str(path), read_checkpoint(path)
    if source.checkpoint is None:
        raise NotFittedError(
            "The Estimator to warm-start from has no checkpoint. Train it first."
        )
    return repr(source), source.checkpoint


def _checkpoint_path(path: Path) -> Path:
    """Return the directory of the checkpoint that is meant by `path`."""
    if is_checkpoint(path):
        return path
    # As tf.train.warm_start: a directory stands for its latest checkpoint.
    latest = DirectoryStore(path).latest_path()
    if latest is not None:
        return latest
    # What `Estimator.export` has written with format="checkpoint".
    for version in reversed(list_versions(path)):
        if is_checkpoint(version):
            return version
    raise ValueError(
        f"There is no checkpoint to warm-start from at {str(path)!r}. Give the directory "
        "of a checkpoint, a model_dir with one, or what "
        "Estimator.export(..., format='checkpoint') returned."
    )
