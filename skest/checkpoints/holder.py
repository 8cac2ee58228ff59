# SPDX-License-Identifier: Apache-2.0
"""`CheckpointHolder`: what is known of a model from its checkpoints alone."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import (
    CheckpointStore,
    DirectoryStore,
    MemoryStore,
    eval_dir_of,
)
from skest.config.run_config import KeepBest, RunConfig
from skest.exceptions import NotFittedError


class CheckpointHolder:
    """Holds the checkpoints of a model, in memory or in a directory, and no model.

    `skest.Estimator` is one that can also make them.

    Parameters
    ----------
    config : RunConfig
        Says where they are, and how many are kept.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._store = self._new_store()

    @property
    def model_dir(self) -> Path | None:
        """Directory of checkpoints; None if the checkpoint is in memory."""
        directory = self._config.model_dir
        return None if directory is None else Path(directory)

    @property
    def config(self) -> RunConfig:
        """The settings of the run."""
        return self._config

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint, or None. Setting it makes another one the latest.

        One that was set belongs to no run: training from it starts its input anew.
        """
        return self._store.latest()

    @checkpoint.setter
    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self._store.save(dataclasses.replace(checkpoint, input_position=None))

    def latest_checkpoint(self) -> Path | None:
        """Return the directory of the latest checkpoint.

        Returns
        -------
        Path or None
            None if there is none, or it is in memory.
        """
        if isinstance(self._store, DirectoryStore):
            return self._store.latest_path()
        return None

    def best_checkpoint(self, rule: KeepBest | None = None) -> Path | None:
        """Return the directory of the checkpoint with the best evaluation.

        Parameters
        ----------
        rule : KeepBest, default=None
            What is best; None is ``keep_best`` of the configuration, or without that the
            lowest loss.

        Returns
        -------
        Path or None
            For `evaluate`, `predict` and `export`. It is one of those that are still
            there: ``RunConfig(keep_best=...)`` keeps the best of all. None if no checkpoint
            was evaluated, or they are in memory.

        Raises
        ------
        ValueError
            If the evaluation has no such metric.
        """
        if not isinstance(self._store, DirectoryStore):
            return None
        rule = rule or self._config.keep_best or KeepBest()
        return self._store.best_path(rule)

    @property
    def stop_reason(self) -> str | None:
        """Why training ended at the latest checkpoint.

        Such as "the input ended", or what a hook gave as its reason. None if there was no
        training, or if the checkpoint is of one that goes on at present or was killed.
        """
        return self._store.stop_reason()

    def eval_dir(self, name: str | None = None) -> Path | None:
        """Return the directory for results of an evaluation; None without model_dir.

        `skest.checkpoints.store.read_eval_results` reads what is there.
        """
        if self.model_dir is None:
            return None
        return eval_dir_of(self.model_dir, name)

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables, optimizer slots and the global step.

        Raises
        ------
        NotFittedError
            If there is no checkpoint.
        """
        return sorted(self._variables())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value of a variable.

        Parameters
        ----------
        name : str
            One of `get_variable_names`.

        Returns
        -------
        ndarray
            A copy of the value in the latest checkpoint.

        Raises
        ------
        NotFittedError
            If there is no checkpoint.
        ValueError
            If there is no such variable.
        """
        variables = self._variables()
        if name not in variables:
            raise ValueError(
                f"There is no variable {name!r}; there are {', '.join(sorted(variables))}."
            )
        return np.array(np.asarray(variables[name]))

    def _variables(self) -> dict[str, Any]:
        checkpoint = self._checkpoint(None)
        slots = {
            name.partition(":")[2]: slot
            for name, slot in checkpoint.optimizer.items()
            if not name.startswith("random:")
        }
        step = {"global_step": np.asarray(checkpoint.global_step)}
        return {**slots, **checkpoint.variables, **step}

    def _checkpoint(
        self, path: str | os.PathLike[str] | Checkpoint | None
    ) -> Checkpoint:
        if isinstance(path, Checkpoint):
            return path
        if path is not None:
            return read_checkpoint(path)
        checkpoint = self._store.latest()
        if checkpoint is None:
            where = advice = ""
            if self.model_dir is not None:
                where = f" in {str(self.model_dir)!r}"
                if not self.model_dir.exists():
                    where += ", which does not exist"
                    advice = (
                        "; if it was deleted after a fit, fit again, or load a pickle "
                        "from before"
                    )
            reason = self._store.stop_reason()
            why = f"; the last training ended without one: {reason}" if reason else ""
            raise NotFittedError(
                f"This Estimator has no checkpoint{where}{why}. Call train first"
                f"{advice}."
            )
        return checkpoint

    def _new_store(self) -> CheckpointStore:
        if self.model_dir is None:
            return MemoryStore()
        return DirectoryStore(
            self.model_dir,
            self._config.keep_checkpoint_max,
            self._config.keep_checkpoint_every_n_hours,
            self._config.keep_best,
        )
