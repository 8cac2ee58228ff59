# SPDX-License-Identifier: Apache-2.0
"""Warm start: variables of another training as the start of a new one."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from skest.checkpoint_format import is_checkpoint, read_checkpoint
from skest.checkpoint_store import DirectoryStore
from skest.checkpoints import Checkpoint
from skest.dual_ascent import DualAscent
from skest.exceptions import NotFittedError
from skest.ftrl import Ftrl
from skest.row_sparse import RowSparse
from skest.versioned_directory import list_versions
from skest.vocab_info import VocabInfo
from skest.warm_start_plan import (
    NOTHING_KNOWN,
    KnownChanges,
    as_list,
    planned_transfers,
)
from skest.warm_start_report import WarmStartReport

__all__ = [
    "WarmStartFromFit",
    "WarmStartSettings",
    "as_warm_start_settings",
    "warm_start",
]

_logger = logging.getLogger("skest")


@dataclass(frozen=True)
class WarmStartSettings:
    """Says which variables a training starts from, and where they are.

    They are taken over before the first step of a training that has no checkpoint to go
    on from. Optimizers and the global step start anew; only slots of `skest.ftrl.Ftrl`,
    which determine its weights, are set to those that the weights stand for.

    Parameters
    ----------
    ckpt_to_initialize_from : str, path, Checkpoint or Estimator
        The source: a directory of a checkpoint, of checkpoints (a ``model_dir``, of which
        the latest is taken), of an export or of its versions (of which the newest is
        taken), or a trained `skest.Estimator`. Estimators with ``fit`` also take a fitted
        one, and know then which columns and classes its variables stand for.
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
        for name in ("vocab_info", "prev_var_name"):
            _check_mapping(f"var_name_to_{name}", getattr(self, f"var_name_to_{name}"))
        for name, infos in (self.var_name_to_vocab_info or {}).items():
            several = infos if isinstance(infos, list | tuple) else [infos]
            for info in several:
                if not isinstance(info, VocabInfo):
                    raise TypeError(
                        "'var_name_to_vocab_info' must have a VocabInfo or a list of "
                        f"them for {name!r}; got {type(info).__name__}."
                    )

    @property
    def known_changes(self) -> KnownChanges:
        """What is known of the source beside the settings."""
        return NOTHING_KNOWN

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

    known_changes: KnownChanges = NOTHING_KNOWN


def _check_patterns(patterns: Any) -> None:
    if patterns is None:
        return
    several = [patterns] if isinstance(patterns, str) else patterns
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


def _check_mapping(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(
            f"'{name}' must be a dictionary by names of variables, or None; got "
            f"{type(value).__name__}."
        )


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
    if isinstance(source, str | os.PathLike) or _holds_checkpoint(source):
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
    >>> from skest.checkpoints import Checkpoint
    >>> from skest.warm_start import warm_start
    >>> old, new = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> settings = WarmStartSettings(Checkpoint.capture(old, 7), ["weight"])
    >>> print(warm_start(new, [], settings))
    Warm start from the checkpoint of step 7: 1 of 2 variables
    variable  from    copied  new  why not
    weight    weight       1    0
    bias      -            0    1  not selected
    >>> bool((new.weight == old.weight).all())
    True
    """
    rules = [o.inner if isinstance(o, RowSparse) else o for o in optimizers]
    if any(isinstance(rule, DualAscent) for rule in rules):
        raise ValueError(
            "A model that LinearSDCA trains cannot be warm-started: its weights are a "
            "function of dual variables of the examples, which start at zero. Use "
            'another optimizer, such as "ftrl"; the source may be of LinearSDCA.'
        )
    source = _Source.of(settings.ckpt_to_initialize_from)
    variables = network.state_dict(keep_vars=True)
    transfers, reports = planned_transfers(
        variables,
        source.checkpoint.variables,
        settings,
        source.name,
    )
    with torch.no_grad():
        for name, value in transfers.items():
            variables[name].copy_(value)
    for rule in rules:
        if isinstance(rule, Ftrl):
            rule.keep_weights(variables[name] for name in transfers)
    report = WarmStartReport(source.name, reports)
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
        for info in as_list(infos):
            if info.doubt:
                _logger.warning(
                    "The warm start of %r took over no entry along axis %d: %s.",
                    name,
                    info.axis,
                    info.doubt,
                )


@dataclass(frozen=True)
class _Source:
    """A checkpoint, and what to call it."""

    name: str
    checkpoint: Checkpoint

    @classmethod
    def of(cls, source: Any) -> "_Source":
        if isinstance(source, Checkpoint):
            return cls(f"the checkpoint of step {source.global_step}", source)
        if isinstance(source, str | os.PathLike):
            path = _checkpoint_path(Path(source))
            return cls(str(path), read_checkpoint(path))
        checkpoint = source.checkpoint
        if checkpoint is None:
            raise NotFittedError(
                "The Estimator to warm-start from has no checkpoint. Train it first."
            )
        return cls(repr(source), checkpoint)


def _checkpoint_path(path: Path) -> Path:
    """Return the directory of the checkpoint that is meant by `path`."""
    if is_checkpoint(path):
        return path
    latest = DirectoryStore(path).latest_path()
    if latest is not None:
        return latest
    for version in reversed(list_versions(path)):
        if is_checkpoint(version):
            return version
    raise ValueError(
        f"There is no checkpoint to warm-start from at {str(path)!r}. Give the directory "
        "of a checkpoint, a model_dir with one, or what Estimator.export returned."
    )


def _holds_checkpoint(source: Any) -> bool:
    return isinstance(source, Checkpoint) or isinstance(
        getattr(type(source), "checkpoint", None), property
    )
