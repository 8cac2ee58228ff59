# SPDX-License-Identifier: Apache-2.0
"""Exporters: which of the evaluated checkpoints become versions of the model."""

import inspect
import json
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from skest._checks import check_directory_name, check_integer
from skest._files import write_file
from skest.checkpoint_export import check_format
from skest.keys import MetricKeys
from skest.versioned_directory import list_versions, remove_old_versions

__all__ = [
    "BestExporter",
    "Exportable",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "loss_smaller",
]

_logger = logging.getLogger("skest")

_BEST = "best.json"

_Assets = Mapping[str, str | os.PathLike[str]]


class Exportable(Protocol):
    """What exporters need of an `Estimator`."""

    def export(
        self,
        export_dir_base: str | os.PathLike[str],
        *,
        checkpoint_path: Path,
        assets: _Assets | None,
        format: str,
    ) -> Path:
        """Write a checkpoint as a new version of the model."""


class Exporter(ABC):
    """Decides after an evaluation whether to export; derive from it for another rule.

    As ``tf.estimator.Exporter``.

    Parameters
    ----------
    name : str
        Name of the directory of the versions, ``<model_dir>/export/<name>``.

    Raises
    ------
    TypeError
        If `name` is no string.
    ValueError
        If it is empty or more than the name of a directory.

    Examples
    --------
    >>> from skest.export import Exporter
    >>> class EveryThousandSteps(Exporter):
    ...     def export(
    ...         self, estimator, export_path, checkpoint_path, eval_result,
    ...         is_the_final_export,
    ...     ):
    ...         if eval_result["global_step"] % 1000 == 0:
    ...             return estimator.export(export_path, checkpoint_path=checkpoint_path)
    >>> exporter = EveryThousandSteps("thousands")
    """

    def __init__(self, name: str) -> None:
        check_directory_name(name, "name", "an exporter")
        self._name = name

    @property
    def name(self) -> str:
        """Name of the directory of the versions."""
        return self._name

    @abstractmethod
    def export(
        self,
        estimator: Exportable,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: dict[str, float],
        is_the_final_export: bool,
    ) -> Path | None:
        """Export, or don't.

        Parameters
        ----------
        estimator : Estimator
            The one that is trained.
        export_path : Path
            Where to write versions, for ``estimator.export``.
        checkpoint_path : Path
            The checkpoint that was evaluated.
        eval_result : dict of str to float
            What ``estimator.evaluate`` returned.
        is_the_final_export : bool
            Whether training has ended: by reaching its last step, by a hook or with its
            input. If that turns out behind an evaluation only, exporters that returned
            None are asked again.

        Returns
        -------
        Path or None
            The new version.
        """


class FinalExporter(Exporter):
    """Exports once, when training has ended.

    Parameters
    ----------
    name : str
        Name of the directory of the versions, ``<model_dir>/export/<name>``.
    assets : dict of str to path, default=None
        For ``Estimator.export``.
    format : {"onnx", "checkpoint", "pt2", "aoti"}, default="onnx"
        For ``Estimator.export``.

    Notes
    -----
    As ``tf.estimator.FinalExporter``, which exports at ``max_steps`` only; this one also
    does when a hook stops training early and when the input ends.

    Examples
    --------
    >>> from skest.export import FinalExporter
    >>> exporter = FinalExporter("final")
    """

    def __init__(
        self, name: str, assets: _Assets | None = None, *, format: str = "onnx"
    ) -> None:
        super().__init__(name)
        check_format(format)
        self._assets = assets
        self._format = format

    def export(
        self,
        estimator: Exportable,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: dict[str, float],
        is_the_final_export: bool,
    ) -> Path | None:
        """Export if training has ended."""
        if not is_the_final_export:
            return None
        return estimator.export(
            export_path,
            checkpoint_path=checkpoint_path,
            assets=self._assets,
            format=self._format,
        )


class LatestExporter(Exporter):
    """Exports after every evaluation, and keeps the newest versions.

    Parameters
    ----------
    name : str
        Name of the directory of the versions, ``<model_dir>/export/<name>``.
    assets : dict of str to path, default=None
        For ``Estimator.export``.
    exports_to_keep : int or None, default=5
        How many versions stay; None keeps all.
    format : {"onnx", "checkpoint", "pt2", "aoti"}, default="onnx"
        For ``Estimator.export``.

    Raises
    ------
    ValueError
        If `exports_to_keep` is not positive.

    Notes
    -----
    As ``tf.estimator.LatestExporter``.

    Examples
    --------
    >>> from skest.export import LatestExporter
    >>> exporter = LatestExporter("latest", exports_to_keep=2)
    """

    def __init__(
        self,
        name: str,
        assets: _Assets | None = None,
        exports_to_keep: int | None = 5,
        *,
        format: str = "onnx",
    ) -> None:
        super().__init__(name)
        if exports_to_keep is not None:
            check_integer(exports_to_keep, "exports_to_keep", f"exporter {name!r}", 1)
        check_format(format)
        self._assets = assets
        self._exports_to_keep = exports_to_keep
        self._format = format

    def export(
        self,
        estimator: Exportable,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: dict[str, float],
        is_the_final_export: bool,
    ) -> Path | None:
        """Export, and delete what is not to be kept."""
        version = estimator.export(
            export_path,
            checkpoint_path=checkpoint_path,
            assets=self._assets,
            format=self._format,
        )
        if self._exports_to_keep is not None:
            remove_old_versions(export_path, self._exports_to_keep)
        return version


def loss_smaller(
    best_eval_result: Mapping[str, float], current_eval_result: Mapping[str, float]
) -> bool:
    """Tell whether the present loss is smaller than the best one; any is than NaN.

    The default rule of `BestExporter`.
    """
    for result in (best_eval_result, current_eval_result):
        if MetricKeys.LOSS not in result:
            raise ValueError(
                "BestExporter compares the 'loss' of evaluations, but there is only "
                f"{', '.join(map(repr, result))}. Pass another 'compare_fn'."
            )
    best = best_eval_result[MetricKeys.LOSS]
    current = current_eval_result[MetricKeys.LOSS]
    return current < best or (math.isnan(best) and not math.isnan(current))


class BestExporter(LatestExporter):
    """Exports when an evaluation is better than all before, and keeps the best versions.

    Parameters
    ----------
    name : str, default="best_exporter"
        Name of the directory of the versions, ``<model_dir>/export/<name>``.
    compare_fn : callable, default=loss_smaller
        ``compare_fn(best_eval_result, current_eval_result) -> bool``, called by name;
        True means that the present result is better. The first result always is.
    assets : dict of str to path, default=None
        For ``Estimator.export``.
    exports_to_keep : int or None, default=5
        How many versions stay, the best ones; None keeps all.
    format : {"onnx", "checkpoint", "pt2", "aoti"}, default="onnx"
        For ``Estimator.export``.

    Raises
    ------
    ValueError
        If `compare_fn` is None or does not take both arguments, or `exports_to_keep` is
        not positive.
    TypeError
        If `compare_fn` is no function.

    Notes
    -----
    As ``tf.estimator.BestExporter``, but it goes on where it was when training goes on in
    another process: the best result is in the file ``best.json`` beside the versions. If
    they are gone, or the file can't be understood, the next result is the first one.

    Examples
    --------
    >>> from skest.export import BestExporter
    >>> def auc_larger(best_eval_result, current_eval_result):
    ...     return current_eval_result["auc"] > best_eval_result["auc"]
    >>> exporter = BestExporter("best_auc", auc_larger, exports_to_keep=1)
    """

    def __init__(
        self,
        name: str = "best_exporter",
        compare_fn: Callable[..., bool] = loss_smaller,
        assets: _Assets | None = None,
        exports_to_keep: int | None = 5,
        *,
        format: str = "onnx",
    ) -> None:
        super().__init__(name, assets, exports_to_keep, format=format)
        _check_compare_fn(compare_fn)
        self._compare_fn = compare_fn

    def export(
        self,
        estimator: Exportable,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: dict[str, float],
        is_the_final_export: bool,
    ) -> Path | None:
        """Export if the result is the best one."""
        path = export_path / _BEST
        best = _read_result(path) if list_versions(export_path) else None
        if best is not None and not self._compare_fn(
            best_eval_result=best, current_eval_result=eval_result
        ):
            return None
        version = super().export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )
        write_file(path, json.dumps(eval_result).encode())
        return version


def _read_result(path: Path) -> dict[str, float] | None:
    """Return the result of an evaluation that is in a file; None if there is none."""
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        result = None
    if isinstance(result, dict) and MetricKeys.GLOBAL_STEP in result:
        return result
    _logger.warning(
        "%s holds no result of an evaluation, so that what was exported as the best is "
        "not known. The present result counts as the best one, and replaces the file.",
        path,
    )
    return None


def _check_compare_fn(compare_fn: Callable[..., bool]) -> None:
    if compare_fn is None:
        raise ValueError(
            "'compare_fn' of a BestExporter must be a function; got None. Leave it out "
            "to compare the loss."
        )
    if not callable(compare_fn):
        raise TypeError(
            f"'compare_fn' of a BestExporter must be a function; got {compare_fn!r}."
        )
    try:
        inspect.signature(compare_fn).bind(
            best_eval_result=None, current_eval_result=None
        )
    except TypeError as error:
        raise ValueError(
            "'compare_fn' of a BestExporter must take the arguments 'best_eval_result' "
            f"and 'current_eval_result' by name: {error}."
        ) from error
