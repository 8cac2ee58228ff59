# SPDX-License-Identifier: Apache-2.0
"""Runs scripts where libraries are installed that skest is compared with.

A library that needs other versions than skest has an `Environment`: a virtual environment
with pinned requirements, made at the first use and kept. `run` starts a script of the
folder ``benchmarks/peers`` in it. The script finds in its working directory

- ``arguments.json``, the arguments,
- ``<name>.npy`` for every array,

and leaves ``result.json`` there. It shares no code with skest and need not be able to.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["BOOSTING", "KERAS", "PYTABKIT", "TENSORFLOW", "Environment", "run"]

SCRIPTS = Path(__file__).parent / "peers"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LINES_OF_ERRORS = 15


@dataclass(frozen=True)
class Environment:
    """A virtual environment with pinned requirements.

    Parameters
    ----------
    name : str
        Name of its folder in `environments_folder`.
    requirements : tuple of str
        What pip installs, with versions.
    python : str, default=""
        Version of Python that they need, e.g. "3.11"; any without.
    """

    name: str
    requirements: tuple[str, ...] = ()
    python: str = ""

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return environments_folder() / self.name

    def interpreter(self) -> Path:
        """Return its Python; the environment is made if it is not there yet.

        Raises
        ------
        RuntimeError
            If there is no Python of the version, or the requirements cannot be
            installed.
        """
        scripts = "Scripts" if os.name == "nt" else "bin"
        interpreter = self.folder / scripts / "python"
        recipe = "\n".join((f"python {self.python}", *self.requirements))
        made_of = self.folder / "recipe.txt"  # written last, so that it is complete
        if made_of.exists() and made_of.read_text() == recipe:
            return interpreter
        print(f"Making the environment {self.folder} ...", file=sys.stderr, flush=True)
        pip = [] if self.requirements else ["--without-pip"]
        _check_call([self._base_python(), "-m", "venv", "--clear", *pip, self.folder])
        if self.requirements:
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _check_call([interpreter, *install, *self.requirements])
        made_of.write_text(recipe)
        return interpreter

    def _base_python(self) -> str:
        major, minor = sys.version_info[:2]
        if self.python in ("", f"{major}.{minor}"):
            return sys.executable
        found = shutil.which(f"python{self.python}")
        if found is None:
            raise RuntimeError(
                f"The environment {self.name!r} needs Python {self.python}, and there is "
                f"no python{self.python} on the PATH. Install it, or leave this peer out."
            )
        return found


TENSORFLOW = Environment(
    "tensorflow-2.15", ("tensorflow-cpu==2.15.1", "numpy==1.26.4"), python="3.11"
)
KERAS = Environment("keras-3", ("keras==3.11.3", "tensorflow-cpu==2.20.0"))
BOOSTING = Environment(
    "boosting", ("lightgbm==4.7.0", "catboost==1.2.10", "scikit-learn==1.9.1")
)
PYTABKIT = Environment("pytabkit", ("pytabkit[models]==1.7.3", "torch==2.13.0"))


def environments_folder() -> Path:
    """Return ``$SKEST_BENCH_ENVS``, or ``.bench`` in the checkout."""
    checkout = Path(__file__).parents[1]
    return Path(os.environ.get("SKEST_BENCH_ENVS") or checkout / ".bench").absolute()


def run(
    environment: Environment,
    script: str | Path,
    arguments: Any = None,
    arrays: Mapping[str, np.ndarray] | None = None,
    *,
    threads: int = 1,
) -> Any:
    """Run a script in an environment and return its result.

    Parameters
    ----------
    environment : Environment
        Where to run it.
    script : str or Path
        A file of ``benchmarks/peers``, or a path.
    arguments : default=None
        Anything that JSON can hold.
    arrays : dict of str to ndarray, default=None
        Arrays of numbers by name.
    threads : int, default=1
        What the variables of OpenMP and of BLAS libraries are set to.

    Returns
    -------
    dict, list or other
        What the script has written to ``result.json``.

    Raises
    ------
    RuntimeError
        If the script fails; the message has the end of what it printed.
    """
    interpreter = environment.interpreter()
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    variables |= dict.fromkeys(_THREADS, str(threads))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "arguments.json").write_text(json.dumps(arguments))
        for key, array in (arrays or {}).items():
            np.save(folder / f"{key}.npy", array, allow_pickle=False)
        _check_call([interpreter, SCRIPTS / script], cwd=folder, env=variables)
        return json.loads((folder / "result.json").read_text())


def _check_call(command: list[Any], **options: Any) -> None:
    """Run a command quietly; if it fails, say what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    if done.returncode:
        printed = "\n".join(done.stdout.splitlines()[-_LINES_OF_ERRORS:])
        what = " ".join(map(str, command))
        raise RuntimeError(f"{what} failed with status {done.returncode}:\n{printed}")
