# SPDX-License-Identifier: Apache-2.0
"""Exporters: which of the evaluated checkpoints become versions of the model."""

import inspect
import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from skest.core.checks import (
    FormerArguments,
    check_choice,
    check_directory_name,
    check_integer,
    number_of,
)
from skest.core.files import list_versions, remove_old_versions
from skest.export.writer import Assets, check_format
from skest.keys import MetricKeys

_logger = logging.getLogger("skest")

Result = dict[str, float]

# The asset of a version that says how good it is.
# TensorFlow's BestExporter looks for the best result in event files instead, and after
# a restart exports the first checkpoint whatever its result is.
_RESULT = "eval_result.json"
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
        # Of exporter.py of tf.estimator: a SavedModel may be text, and takes tf.Example.
        "as_text": "leave it out",
        "assets_extra": "use 'assets'",
        "event_file_pattern": "leave it out: each version has the result of its evaluation",
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
        estimator: Any,
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


# `_SavedModelExporter` of tf.estimator.
class _Exporting(Exporter):
    """Exports some of the checkpoints, each with its result, and keeps some versions."""

    def __init__(
        self, name: str, assets: Assets | None, format: str, exports_to_keep: int | None
    ) -> None:
        super().__init__(name)
        check_format(format)
        if assets is not None and not isinstance(assets, Mapping):
            raise TypeError(
                "'assets' of an exporter must be a dictionary of paths by the name of "
                f"the file; got {type(assets).__name__}. If it is a "
                f"serving_input_receiver_fn, {_RAW}."
            )
        if exports_to_keep is not None:
            check_integer(exports_to_keep, "exports_to_keep", f"exporter {name!r}", 1)
        self._assets = assets or {}
        self._format = format
        self._exports_to_keep = exports_to_keep

    @abstractmethod
    def _wants(self, export_path: Path, eval_result: Result, is_final: bool) -> bool:
        """Tell whether the checkpoint is to be exported."""

    def export(
        self,
        estimator: Any,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: Result,
        is_the_final_export: bool,
    ) -> Path | None:
        """Export if this is one to export, and delete what is not to be kept."""
        if not self._wants(export_path, eval_result, is_the_final_export):
            return None
        # Assets are files, which are copied when the version is written.
        with TemporaryDirectory() as folder:
            result = Path(folder, _RESULT)
            # To the json module, float32 of NumPy is no number, and an array no list.
            text = json.dumps(eval_result, default=lambda value: value.tolist())
            result.write_text(text, encoding="utf-8")
            version: Path = estimator.export(
                export_path,
                checkpoint_path=checkpoint_path,
                assets={**self._assets, _RESULT: result},
                format=self._format,
            )
        # As `_garbage_collect_exports` of tf.estimator: by their numbers, which are times.
        if self._exports_to_keep is not None:
            remove_old_versions(export_path, self._exports_to_keep)
        return version


class FinalExporter(_Exporting):
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
        self, name: str, assets: Assets | None = None, *, format: str = "onnx"
    ) -> None:
        # There is one version a training, and older trainings are none of its business.
        super().__init__(name, assets, format, exports_to_keep=None)

    def _wants(self, export_path: Path, eval_result: Result, is_final: bool) -> bool:
        return is_final


class LatestExporter(_Exporting):
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
        assets: Assets | None = None,
        exports_to_keep: int | None = 5,
        *,
        format: str = "onnx",
    ) -> None:
        super().__init__(name, assets, format, exports_to_keep)

    def _wants(self, export_path: Path, eval_result: Result, is_final: bool) -> bool:
        return True


def loss_smaller(
    best_eval_result: Mapping[str, float], current_eval_result: Mapping[str, float]
) -> bool:
    """Tell whether the present loss is smaller than the best one; any is than NaN.

    The default rule of `BestExporter`.
    """
    # `_loss_smaller` of tf.estimator, where nothing is ever better than a first NaN.
    return _is_better(MetricKeys.LOSS, "min", best_eval_result, current_eval_result)


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
    format : {"onnx", "checkpoint"}, default="onnx"
        For ``Estimator.export``.
    metric : str, default=None
        The metric to compare, in place of a `compare_fn`. None is the loss.
    mode : {"min", "max"}, default="min"
        Whether a smaller or a larger `metric` is better.

    Raises
    ------
    ValueError
        If `compare_fn` is None or does not take both arguments, or is given together with
        `metric`; if `mode` is unknown; or if `exports_to_keep` is not positive.
    TypeError
        If `compare_fn` is no function, or `metric` no string.

    Notes
    -----
    As ``tf.estimator.BestExporter``, with these differences. It goes on where it was when
    training goes on in another process, wherever the last one was stopped: each version
    holds its result, the asset ``eval_result.json``. If the versions are gone, the next
    result is the first one. And a model whose metric is NaN is never exported, not even
    as the first one; a `compare_fn` of your own sees to that itself.

    Examples
    --------
    >>> from skest.export import BestExporter
    >>> exporter = BestExporter("best_auc", metric="auc", mode="max", exports_to_keep=1)
    """

    def __init__(
        self,
        name: str = "best_exporter",
        compare_fn: Callable[..., bool] = loss_smaller,
        assets: Assets | None = None,
        exports_to_keep: int | None = 5,
        *,
        format: str = "onnx",
        metric: str | None = None,
        mode: str = "min",
    ) -> None:
        super().__init__(name, assets, exports_to_keep, format=format)
        try:
            # Told when it is made: the first evaluation may be hours away.
            found = inspect.signature(compare_fn)
            found.bind(best_eval_result={}, current_eval_result={})
        except (TypeError, ValueError) as error:  # of a builtin there is no signature
            is_none = compare_fn is None  # a ValueError in TensorFlow
            kind = ValueError if is_none or callable(compare_fn) else TypeError
            raise kind(
                "'compare_fn' of a BestExporter must be a function of 'best_eval_result' "
                f"and 'current_eval_result', called by name; got {compare_fn!r}: {error}. "
                "Leave it out to compare the loss."
            ) from error
        if metric is not None and not isinstance(metric, str):
            raise TypeError(
                "'metric' of a BestExporter must be the name of a metric; got "
                f"{metric!r}."
            )
        check_choice(mode, "mode", "a BestExporter", ("min", "max"))
        if compare_fn is not loss_smaller and (metric is not None or mode != "min"):
            raise ValueError(
                "A BestExporter takes either 'compare_fn' or 'metric' and 'mode'; got "
                "both. Leave one of them out."
            )
        self._compare_fn = compare_fn
        self._metric = metric
        self._mode = mode

    def _wants(self, export_path: Path, eval_result: Result, is_final: bool) -> bool:
        # Read from the versions each time: no state that a restart could lose.
        best = _best_result(export_path)
        if self._compare_fn is not loss_smaller:
            return best is None or self._compare_fn(
                best_eval_result=best, current_eval_result=eval_result
            )
        metric = self._metric or MetricKeys.LOSS
        # Any number is better than NaN, the first one, too.
        best = {metric: math.nan} if best is None else best
        return _is_better(metric, self._mode, best, eval_result)


def _is_better(
    metric: str, mode: str, best: Mapping[str, float], current: Mapping[str, float]
) -> bool:
    # What the present result lacks is told first: an older one may be of another program.
    owner, remedy = "BestExporter", "'metric' or 'compare_fn'"
    new, old = (number_of(r, metric, owner, remedy) for r in (current, best))
    is_better = new < old if mode == "min" else new > old
    # No comparison with NaN holds: without this, a first NaN would stay the best.
    return is_better or (math.isnan(old) and not math.isnan(new))


def _best_result(base: Path) -> Result | None:
    """Return the result of the newest version; None if there is none."""
    # Each was better than the one before, so that the newest is the best.
    for version in list_versions(base)[-1:]:
        path = version / "assets" / _RESULT
        if path.is_file():
            found: Result = json.loads(path.read_bytes())
            return found
        _logger.warning(
            "%s has no %s, so that what was exported as the best is not known. The "
            "present result counts as the best one.",
            *(version, _RESULT),
        )
    return None
