# SPDX-License-Identifier: Apache-2.0
"""The results of evaluations, in a file of the evaluation directory.

``results.jsonl`` has one line for every evaluation, oldest first:
``{"time": 1700000000.0, "metrics": {"global_step": 10, "loss": 0.5, ...}, "crc32": 1}``.
``crc32`` is that of the line without it, so that no damage passes for a result; only
lines of earlier releases, which come before all others, have none. A file that lost whole
lines reads as if their evaluations had not been. A step may be evaluated again; its last
line counts. NaN and infinities are written as Python's `json` does. Several processes may
add lines at once. A last line without its end is of a process that was killed, or is just
being written: it is not read, and the next one takes its place, unless it is whole but
for its end. Empty lines are skipped.
"""

import json
import os
import re
import time
import zlib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from skest._checks import check_directory_name
from skest._line_files import append_line, is_part_of_object
from skest.keys import MetricKeys

__all__ = [
    "append_eval_result",
    "eval_dir_of",
    "read_eval_results",
    "version_of_eval_results",
]

_RESULTS = "results.jsonl"
_CHECKED = re.compile(rb'(.*), "crc32": ([0-9]{1,10})\}')


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


def append_eval_result(eval_dir: Path, metrics: Mapping[str, float]) -> None:
    """Add the result of an evaluation to those in `eval_dir`, which is made if need be.

    Parameters
    ----------
    eval_dir : Path
        As ``Estimator.eval_dir`` returns it.
    metrics : dict of str to float
        As ``Estimator.evaluate`` returns them.
    """
    eval_dir.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": time.time(), "metrics": dict(metrics)}).encode()
    checked = b'%s, "crc32": %d}' % (line[:-1], zlib.crc32(line))
    append_line(eval_dir / _RESULTS, checked)


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
        If a line of the file is not what an evaluation has written: it is damaged.

    Examples
    --------
    >>> from skest.eval_results import read_eval_results
    >>> read_eval_results("model/eval")
    {}
    """
    path = Path(eval_dir) / _RESULTS
    if not path.exists():
        return {}
    results: dict[int, dict[str, float]] = {}
    must_check = False
    *lines, rest = path.read_bytes().split(b"\n")
    if not is_part_of_object(rest):
        lines.append(rest)
    for number, line in enumerate(map(bytes.strip, lines), start=1):
        if not line:
            continue
        try:
            metrics, is_checked = _metrics_of(line)
            if must_check and not is_checked:
                raise ValueError("it has no checksum, and lines before it do")
            must_check = is_checked
            results[metrics[MetricKeys.GLOBAL_STEP]] = metrics
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {str(path)!r} is not the result of an evaluation, or "
                f"is damaged: {line[:80].decode(errors='replace')!r}. Delete it."
            ) from error
    return dict(sorted(results.items()))


def _metrics_of(line: bytes) -> tuple[Any, bool]:
    """Return the metrics of a line, and whether it has a checksum."""
    checked = _CHECKED.fullmatch(line)
    if checked:
        line = checked[1] + b"}"
        if zlib.crc32(line) != int(checked[2]):
            raise ValueError("its checksum differs")
    # Bytes that are no UTF-8 would be taken for that of which they remind `json`.
    entry = json.loads(line.decode())
    unknown = set(entry) - {"time", "metrics"}
    if unknown or not isinstance(entry["metrics"], dict):
        raise ValueError(f"it has {sorted(unknown)} or no mapping 'metrics'")
    return entry["metrics"], checked is not None


def version_of_eval_results(eval_dir: str | os.PathLike[str]) -> Hashable:
    """Return what differs whenever the results differ, without reading them."""
    try:
        status = os.stat(Path(eval_dir) / _RESULTS)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
