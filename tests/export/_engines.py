# SPDX-License-Identifier: Apache-2.0
"""Engines that run exported models: an old version, and those of JavaScript."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peers

ROOT = Path(__file__).parents[2]
NODE = ROOT / "tests" / "node"
# The oldest one that the manifest of an export names.
OLDEST = peers.Environment(
    "onnxruntime-1.17", ("onnxruntime==1.17.3", "numpy==1.26.4"), python="3.11"
)
_OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT")


def in_the_oldest(cases):
    """Load versions and run them on raw columns, in an environment without torch.

    Parameters
    ----------
    cases : list of (path of the version, dict of lists)

    Returns
    -------
    dict
        What `tests.export._in_runtime.answers` returns.
    """
    try:
        OLDEST.interpreter()
    except RuntimeError as error:
        pytest.skip(f"there is no ONNX Runtime 1.17: {error}")
    arguments = {
        "cases": [(str(version), columns) for version, columns in cases],
        "checkout": str(ROOT),
    }
    return peers.run(OLDEST, Path(__file__).parent / "_in_runtime.py", arguments)


def in_node(engine, cases, tmp_path):
    """Run graphs by a package of npm in Node.

    Parameters
    ----------
    engine : {"onnxruntime-node", "onnxruntime-web"}
        Native, or compiled to WebAssembly as in a browser.
    cases : list of (path of the version, dict of arrays)
        What each graph is fed.

    Returns
    -------
    list of dict of str to ndarray
        All outputs of each graph.
    """
    install_packages()
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(list(map(_document, cases))), encoding="utf-8")
    command = ["node", NODE / "run.mjs", engine, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [
        {name: _array(tensor) for name, tensor in answer.items()}
        for answer in json.loads(done.stdout)
    ]


def install_packages():
    """Install what package-lock.json says, unless it is there."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("Node and npm are not installed")
    wanted, there = NODE / "package-lock.json", NODE / "node_modules" / "made-of.json"
    if there.exists() and there.read_text() == wanted.read_text():
        return
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True)
    if done.returncode and any(code in done.stderr for code in _OFFLINE):
        pytest.skip(f"npm does not reach its registry: {done.stderr}")
    assert done.returncode == 0, done.stderr
    shutil.copyfile(wanted, there)  # last, so that it is complete


def _document(case):
    version, feeds = case
    return {
        "model": str(version / "model.onnx"),
        "feeds": {name: _tensor(array) for name, array in feeds.items()},
    }


def _tensor(array):
    is_text = array.dtype == object
    cells = array.ravel().tolist()
    return {
        "type": "string" if is_text else str(array.dtype),
        "dims": list(array.shape),
        "data": cells if is_text else ["NaN" if c != c else str(c) for c in cells],
    }


def _array(tensor):
    data, kind = tensor["data"], tensor["type"]
    dtype = {"string": object, "bool": np.uint8}.get(kind, kind)
    found = np.array(data, dtype).reshape(tensor["dims"])
    return found.astype(bool) if kind == "bool" else found
