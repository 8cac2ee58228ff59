# SPDX-License-Identifier: Apache-2.0
"""The results of evaluations: a file for each, ``<global step>.json``.

It is in the evaluation directory, and holds ``{"global_step": 10, "loss": 0.5, ...}`` and a
checksum: a digit that changed would choose another best checkpoint. If a step is evaluated
again, its file is replaced. NaN and infinities are written as Python's `json` does.
"""

import json
import os
import zlib
from collections.abc import Hashable, Mapping
from pathlib import Path

from skest.core.checks import check_directory_name
from skest.core.files import write_file
from skest.keys import MetricKeys

_CHECKSUM = "crc32"


def eval_dir_of(model_dir: Path, name: str | None) -> Path:
    """Return the directory of the evaluations with a name, or of those without.

    Raises
    ------
    ValueError
        If `name` is a path.
    """
    if name:
        check_directory_name(name, "name", "an evaluation")
    return model_dir / (f"eval_{name}" if name else "eval")


def write_eval_result(eval_dir: Path, metrics: Mapping[str, float]) -> None:
    """Write the result of an evaluation into `eval_dir`, which is made if need be.

    Parameters
    ----------
    eval_dir : Path
        As ``Estimator.eval_dir`` returns it.
    metrics : dict of str to float
        As ``Estimator.evaluate`` returns them.
    """
    eval_dir.mkdir(parents=True, exist_ok=True)
    path = eval_dir / f"{metrics[MetricKeys.GLOBAL_STEP]}.json"
    write_file(path, json.dumps({**metrics, _CHECKSUM: _checksum(metrics)}).encode())


def read_eval_results(
    eval_dir: str | os.PathLike[str],
) -> dict[int, dict[str, float]]:
    """Read the results of the evaluations in a directory.

    Parameters
    ----------
    eval_dir : str or path
        As ``Estimator.eval_dir`` returns it.

    Returns
    -------
    dict of int to dict of str to float
        Metrics by global step, in the order of the steps; empty if there are none.

    Raises
    ------
    ValueError
        If a file is not what an evaluation has written: it is damaged.

    Examples
    --------
    >>> from skest.checkpoints.results import read_eval_results
    >>> read_eval_results("model/eval")
    {}
    """
    return {step: _read(path, step) for step, path in sorted(_files(eval_dir).items())}


def version_of_eval_results(eval_dir: str | os.PathLike[str]) -> Hashable:
    """Return what differs whenever the results differ, without reading them."""
    states = [(path.name, path.stat()) for path in _files(eval_dir).values()]
    return frozenset((name, s.st_mtime_ns, s.st_ino) for name, s in states)


def _files(eval_dir: str | os.PathLike[str]) -> dict[int, Path]:
    found = Path(eval_dir).glob("*.json")
    return {int(path.stem): path for path in found if path.stem.isdecimal()}


def _read(path: Path, step: int) -> dict[str, float]:
    content = path.read_bytes()
    try:
        metrics: dict[str, float] = json.loads(content)
        if metrics.pop(_CHECKSUM) != _checksum(metrics):
            raise ValueError("its checksum is another one")
        if metrics[MetricKeys.GLOBAL_STEP] != step:
            raise ValueError("its global step is another one")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} is not the result of an evaluation, or is damaged: "
            f"{content[:80].decode(errors='replace')!r}. Delete it."
        ) from error
    return metrics


def _checksum(metrics: Mapping[str, float]) -> int:
    return zlib.crc32(json.dumps(dict(metrics)).encode())
