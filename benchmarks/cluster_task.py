# SPDX-License-Identifier: Apache-2.0
"""What every process of `benchmarks.distributed` does: train, and measure the rate.

The argument is a folder. ``work.json`` in it describes the work, ``<name>.npy`` are the
columns of its table. The chief leaves ``result.json`` there: examples in a second of all
processes together, after all of them have taken some steps.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import skest
from skest import distributed
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.heads import BinaryClassHead
from skest.hooks import Hook
from skest.hooks.base import Run
from skest.inputs import ArrayDataset

_OWN_STEPS_BEFORE = 5
_SECONDS_TO_START = 300.0


class StartTogether(Hook):
    """Waits after some steps of this process until all processes have taken so many.

    Parameters
    ----------
    folder : Path
        Where each of them makes a file.
    n_workers : int
        How many there are.
    pause : float, default=0.0
        Seconds that this process sleeps before every step.
    """

    def __init__(self, folder: Path, n_workers: int, pause: float = 0.0) -> None:
        self._folder, self._n_workers, self._pause = folder, n_workers, pause
        self._n_own = 0

    def before_step(self, run: Run) -> None:
        if self._pause:
            time.sleep(self._pause)
        self._n_own += 1
        if self._n_own != _OWN_STEPS_BEFORE:
            return
        (self._folder / f"{os.getpid()}.ready").touch()
        end = time.monotonic() + _SECONDS_TO_START
        while len(list(self._folder.glob("*.ready"))) < self._n_workers:
            if time.monotonic() > end:
                raise TimeoutError("Another process has not begun to train.")
            time.sleep(0.005)


class Clock(Hook):
    """Writes how many steps a second all took together, behind the start of all.

    Parameters
    ----------
    path : Path
        The file to write.
    examples_per_step : int
        That of all processes which take a global step.
    share_before : float
        Part of the training that is not measured.
    max_steps : int
        Where it ends.
    """

    def __init__(
        self, path: Path, examples_per_step: int, share_before: float, max_steps: int
    ) -> None:
        self._path, self._examples = path, examples_per_step
        self._first = share_before * max_steps
        self._seen: list[tuple[int, float]] = []
        self._n_own = 0

    def after_step(self, run: Run, loss: Any) -> None:
        self._n_own += 1
        if self._n_own >= 2 * _OWN_STEPS_BEFORE and run.global_step >= self._first:
            self._seen.append((run.global_step, time.perf_counter()))

    def end(self, run: Run) -> None:
        if len(self._seen) < 2:
            raise RuntimeError(
                "The other processes took all steps that are measured; take more of them."
            )
        (first, begin), (last, end) = self._seen[0], self._seen[-1]
        rate = (last - first) * self._examples / (end - begin)
        self._path.write_text(json.dumps({"rate": rate, "steps": last - first}))


def model_fn(
    features: Any, labels: Any, mode: str, params: dict[str, Any], config: Any
) -> skest.EstimatorSpec:
    """Return the network of the work, with the hooks that measure it."""
    work, folder = params["work"], Path(params["folder"])
    numbers = fc.numeric_column("x", shape=(work["n_numbers"],))
    columns: list[Any] = [numbers]
    for i in range(work["n_ids"]):
        ids = fc.categorical_column_with_identity(f"id{i}", work["n_rows"])
        columns.append(fc.embedding_column(ids, work["width"]))
    spec = dnn_model_fn(
        features,
        labels,
        mode,
        head=BinaryClassHead(),
        columns=fc.FeatureColumns(columns).fit(features),
        hidden_units=work["hidden"],
        optimizer="sgd",
        learning_rate=work["rate"],
    )
    pause = 0.0 if config.is_chief else work["pause"]
    n_together = work["n_workers"] if work["is_synchronous"] else 1
    clock = Clock(
        folder / "result.json",
        work["batch_size"] * n_together,
        work["share_before"],
        work["max_steps"],
    )
    return dataclasses.replace(
        spec,
        training_hooks=[StartTogether(folder, work["n_workers"], pause)],
        training_chief_hooks=[clock],
    )


def environment() -> dict[str, str]:
    """Return the variables of a process that runs this script: it has one thread."""
    root = Path(__file__).parents[1]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}


def prepare(
    folder: Path, work: Mapping[str, Any], table: Mapping[str, np.ndarray]
) -> None:
    """Leave in a folder what `main` reads there."""
    (folder / "work.json").write_text(json.dumps(work))
    for name, column in table.items():
        np.save(folder / f"{name}.npy", column, allow_pickle=False)


def main(folder: Path) -> None:
    """Train in the role that the environment says."""
    work = json.loads((folder / "work.json").read_text())
    names = ["x", *(f"id{i}" for i in range(work["n_ids"]))]
    features = {name: np.load(folder / f"{name}.npy") for name in names}
    labels = np.load(folder / "y.npy")
    strategy = None
    if work["strategy"] is not None:
        strategy = getattr(distributed, work["strategy"])(**work["options"])
    config = skest.RunConfig(
        random_seed=0,
        log_step_count_steps=None,
        train_distribute=strategy,
        execution=work["execution"],
        device="cpu",
        num_threads=1,
    )

    def input_fn() -> ArrayDataset:
        return ArrayDataset(
            features,
            labels,
            batch_size=work["batch_size"],
            shuffle=True,
            num_epochs=None,
            seed=0,
        )

    params = {"work": work, "folder": str(folder)}
    skest.Estimator(model_fn, config=config, params=params).train(
        input_fn, max_steps=work["max_steps"]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
