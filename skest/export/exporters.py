# SPDX-License-Identifier: Apache-2.0
"""Exporters: which of the evaluated checkpoints become versions of the model."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from skest._checks import check_directory_name, check_integer
from skest._former_arguments import FormerArguments
from skest.checkpoint_export import check_format
from skest.versioned_directory import remove_old_versions

__all__ = [
    "Exportable",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
]

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


_RAW = "leave it out: an export takes raw columns by name, as the batches have them"


class Exporter(FormerArguments, ABC):
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

    _former_arguments: ClassVar[Mapping[str, str]] = {
        "as_text": "leave it out",
        "assets_extra": "use 'assets'",
        "event_file_pattern": "leave it out: a file keeps the best result",
        "serving_input_receiver_fn": _RAW,
    }

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
    format : {"onnx", "checkpoint"}, default="onnx"
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
        self._assets = _checked_assets(assets)
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
    format : {"onnx", "checkpoint"}, default="onnx"
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
        self._assets = _checked_assets(assets)
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


def _checked_assets(assets: Any) -> _Assets | None:
    if assets is not None and not isinstance(assets, Mapping):
        raise TypeError(
            "'assets' of an exporter must be a dictionary of paths by the name of the "
            f"file; got {type(assets).__name__}. If it is a serving_input_receiver_fn, "
            f"{_RAW}."
        )
    return assets
