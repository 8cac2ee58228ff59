# SPDX-License-Identifier: Apache-2.0
"""The way of X: which files of skest run from `DNNClassifier.fit` to the first update.

``python -m benchmarks.way_of_x`` prints the files in the order in which they are entered,
how many they are, and how many modules `skest.adapters.dnn` loads. Run on files, not on
functions, because a file is what a reader opens.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

PACKAGE = Path(__file__).parents[1] / "skest"


class _FirstUpdateError(Exception):
    """Ends the training where its first step has been taken."""


def files_of_fit(execution: str) -> list[str]:
    """Return the files that `fit` enters until the first update is done."""
    from skest import DNNClassifier
    from skest.hooks import Hook

    class Stop(Hook):
        def after_step(self, run: Any, loss: Any) -> None:
            raise _FirstUpdateError

    X = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    y = (X.sum(axis=1) > 0).astype(int)
    model = DNNClassifier((8,), execution=execution, hooks=[Stop()], random_state=0)
    prefix = str(PACKAGE)
    seen: dict[str, None] = {}

    def entered(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(prefix):
            seen.setdefault(file, None)

    for profile in (None, entered):  # at first all is imported
        sys.setprofile(profile)
        try:
            model.fit(X, y)
        except _FirstUpdateError:
            pass
        finally:
            sys.setprofile(None)
    return [str(Path(file).relative_to(PACKAGE.parent)) for file in seen]


def modules_of(name: str) -> int:
    """Return how many modules of skest a process has loaded that imports one."""
    script = (
        f"import sys, {name}\n"
        "print(sum(n.partition('.')[0] == 'skest' for n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main() -> None:
    """Print the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execution", default="eager", choices=["eager", "graph"])
    files = files_of_fit(parser.parse_args().execution)
    print(*files, sep="\n")
    print(f"{len(files)} files from fit to the first update")
    print(f"{modules_of('skest.adapters.dnn')} modules loaded by skest.adapters.dnn")


if __name__ == "__main__":
    main()
