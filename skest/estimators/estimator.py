# SPDX-License-Identifier: Apache-2.0
"""`Estimator`: trains, evaluates and predicts with a model function."""

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.lock import training_lock
from skest.checkpoints.store import (
    CheckpointStore,
    DirectoryStore,
    MemoryStore,
    eval_dir_of,
)
from skest.checkpoints.warm_start import (
    WarmStartReport,
    WarmStartSettings,
    as_warm_start_settings,
    warm_start,
)
from skest.config.run_config import KeepBest, RunConfig, check_config, is_alone
from skest.core.checks import Several, check_all, check_integer
from skest.core.random import RunRandom
from skest.core.resources import resolve_device
from skest.engine.evaluation import run_evaluation
from skest.engine.loop import Replica
from skest.engine.model import ModelBuilder, ModelFn
from skest.engine.prediction import (
    GetModel,
    PredictionModel,
    joined,
    new_prediction_model,
    run_prediction,
)
from skest.engine.training import TrainingOrder, run_training
from skest.exceptions import NotFittedError
from skest.hooks.base import Hook
from skest.hooks.steps import CheckpointListener
from skest.inputs.array_dataset import ArrayDataset
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")


class Estimator:
    """Trains, evaluates and predicts with a model that a function describes.

    Every call builds the model anew, restores its variables from the latest checkpoint,
    runs, and lets go of it. An Estimator holds checkpoints and no network in training, so
    it can be pickled, shared between threads, and occupies no device between calls.

    Parameters
    ----------
    model_fn : callable
        ``model_fn(features, labels, mode, params, config) -> EstimatorSpec``. Arguments
        are passed by name; only ``features`` and ``mode`` are mandatory. `features` and
        `labels` are the first raw batch, to read shapes and types from.
    model_dir : str or path, default=None
        Directory of checkpoints; training goes on from the latest one in it. None takes
        that of `config`; if that is None too, the checkpoint stays in memory.
    config : RunConfig, default=None
        Settings of the run; None is ``RunConfig()``.
    params : dict, default=None
        Hyperparameters for `model_fn`. They are copied here and for every call.
    warm_start_from : str, path, Checkpoint, Estimator or WarmStartSettings, default=None
        Where the variables of a training without a checkpoint come from; see
        `skest.WarmStartSettings`.

    Raises
    ------
    ValueError
        If `model_fn` lacks a mandatory argument or has an unknown one, takes no
        ``params`` although some are given, or two different directories are given.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    The semantics are those of ``tf.estimator.Estimator``, with these differences:
    evaluation and prediction without a checkpoint raise `NotFittedError`; an interrupted
    training saves a last checkpoint; a checkpoint is loaded only if names and shapes of
    all variables agree.

    Examples
    --------
    >>> import numpy as np, torch
    >>> import skest
    >>> def model_fn(features, labels, mode, params):
    ...     network = torch.nn.Linear(features.shape[1], 1)
    ...     return skest.EstimatorSpec(
    ...         mode,
    ...         network=network,
    ...         loss=lambda y, z, x: ((z[:, 0] - y) ** 2).mean(),
    ...         predictions=lambda z: {"y": z[:, 0]},
    ...         optimizer=torch.optim.SGD(network.parameters(), lr=params["lr"]),
    ...     )
    >>> X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(-1, 1)
    >>> input_fn = skest.inputs.numpy_input_fn(X, 3 * X[:, 0], num_epochs=200, shuffle=True)
    >>> est = skest.Estimator(
    ...     model_fn, params={"lr": 0.1}, config=skest.RunConfig(random_seed=0)
    ... )
    >>> est = est.train(input_fn)
    >>> predict_fn = skest.inputs.numpy_input_fn(X[-1:], shuffle=False)
    >>> print(round(float(next(est.predict(predict_fn))["y"]), 3))
    3.0
    """

    # On the class, because a pickle comes without them.
    _kept: PredictionModel | None = None
    _example: Any = None
    _warm_start_from: WarmStartSettings | None = None
    _warm_start_report: WarmStartReport | None = None

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        self._model_fn = ModelFn(model_fn, params)
        self._config = check_config(config, model_dir)
        self._store = self._new_store()
        self._warm_start_from = as_warm_start_settings(warm_start_from)

    def __repr__(self) -> str:
        where = f", model_dir={str(self.model_dir)!r}" if self.model_dir else ""
        return f"Estimator(global_step={self._store.latest_step() or 0}{where})"

    def __getstate__(self) -> dict[str, Any]:
        # A module and rows of the user's data: neither belongs into a pickle.
        left_out = ("_kept", "_example")
        state = {n: value for n, value in vars(self).items() if n not in left_out}
        # Where the checkpoint goes into the pickle, the source would only be ballast.
        if isinstance(self._store, MemoryStore) and self._store.latest() is not None:
            state["_warm_start_from"] = None  # its work is done
        return state

    # What an Estimator is made of

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the hyperparameters."""
        return self._model_fn.params

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model function of ``(features, labels, mode, config)``, params bound."""
        return self._model_fn.with_default_config(self._config)

    # What is known from checkpoints alone

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
        # How far another training was in its input says nothing about the next one
        # here.
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
        # Copied: the checkpoint must not change with what the caller does.
        return np.array(np.asarray(variables[name]))

    def _variables(self) -> dict[str, Any]:
        checkpoint = self._checkpoint(None)
        slots = {
            # Without the number of the optimizer in front.
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

    # Training, evaluation and prediction

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Several[Hook] = (),
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Several[CheckpointListener] = (),
    ) -> "Estimator":
        """Train the model, going on from the latest checkpoint if there is one.

        Ctrl-C ends training after the step that it falls into: a checkpoint is saved and
        the call returns. `stop_reason` tells why it ended.

        Parameters
        ----------
        input_fn : callable
            Returns an `ArrayDataset` or an iterable of ``(features, labels)`` batches.
            It may name ``mode``, ``params``, ``config`` and ``input_context``.
        hooks : Hook or iterable of Hook, default=()
            Run around every step.
        steps : int, default=None
            Steps to take in this call.
        max_steps : int, default=None
            Global step to stop at. If a checkpoint has reached it, nothing happens.
            With neither, training ends with the input.
        saving_listeners : CheckpointListener or iterable of them, default=()
            Called around every checkpoint.

        Returns
        -------
        Estimator
            This object.

        Raises
        ------
        ValueError
            If both `steps` and `max_steps` are given or one is not positive.
        CheckpointMismatchError
            If the checkpoint, or what to warm-start from, belongs to another network.
        NanLossDuringTrainingError
            If the loss becomes NaN, or the variables of a checkpoint that is due.
        ModelDirInUseError
            If another training is at work in ``model_dir``, or may be because the file of
            the lock was deleted.

        Notes
        -----
        Every call starts its input anew, as in TensorFlow, unless the call before was
        interrupted (Ctrl-C, an exception, or the process was killed): then the latest
        checkpoint knows how many batches the variables have seen, and the input goes on
        behind them. If it gives the same batches again, the result is that of a run
        which was never interrupted, bit for bit. The orders of `ArrayDataset` and
        `skest.inputs.Pipeline` are restored, with or without seeds of their own, and so
        is that of a shuffled ``DataLoader`` (one that has a ``generator`` needs a new one
        in every call of `input_fn`); other iterables are skipped through. An input of
        another kind or size, with a warning, and any input with
        ``RunConfig(resume_input=False)``, starts anew.
        """
        for name, number in (("steps", steps), ("max_steps", max_steps)):
            if number is not None:
                check_integer(number, name, "train", 1)
        if steps is not None and max_steps is not None:
            raise ValueError(
                "Only one of 'steps' and 'max_steps' can be given; got "
                f"{steps} and {max_steps}."
            )
        hooks = check_all(hooks, Hook, "hooks")
        listeners = check_all(saving_listeners, CheckpointListener, "saving_listeners")
        # As tf.estimator: who starts a script again that is done does not pay for its
        # input.
        start = self._store.latest_step() or 0
        if max_steps is not None and start >= max_steps:
            _logger.info("Training skipped: step %d has reached max_steps.", start)
            return self
        if not is_alone(self._config):
            # Imported where several processes need it: that takes a fifth of a second.
            from skest.distributed.replicas import serve_if_ps

            if serve_if_ps(self._config):
                return self
        order = TrainingOrder(
            input_fn, hooks, listeners, steps, max_steps, self._warm_start
        )
        with (
            self._replica(input_fn, steps, max_steps) as replica,
            self._training_lock(replica) as check_lock,
        ):
            # Beside the chief nobody saves, and what a worker has in the end is let go of.
            store = self._store if replica.is_chief else MemoryStore()
            run = run_training(self._builder, order, replica, store, check_lock)
            if run is not None and replica.result is not None:
                # The chief's directory is not to be seen from here: what it saved was
                # sent.
                self._config = self._config.replace(model_dir=None)
                self._store = MemoryStore(replica.result)
                self._store.note_stop(str(run.stop_reason))
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Several[Hook] = (),
        checkpoint_path: str | os.PathLike[str] | Checkpoint | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint, and record the result in `eval_dir` if there is one.

        Parameters
        ----------
        input_fn : callable
            As for `train`.
        steps : int, default=None
            Batches to evaluate; None takes all.
        hooks : Hook or iterable of Hook, default=()
            Run around every step.
        checkpoint_path : str, path or Checkpoint, default=None
            The checkpoint to evaluate, or its directory; None is the latest.
        name : str, default=None
            Names this evaluation where several are kept apart (see `eval_dir`).

        Returns
        -------
        dict of str to float, or to ndarray where a metric computes several numbers
            Metrics, "loss" (mean over batches) and "global_step". Arrays are returned,
            but not recorded.

        Raises
        ------
        NotFittedError
            If there is no checkpoint.
        ValueError
            If `steps` is not positive, `checkpoint_path` is no checkpoint or the input
            is empty.
        """
        if steps is not None:
            check_integer(steps, "steps", "evaluate", 1)
        hooks = check_all(hooks, Hook, "hooks")
        checkpoint = self._checkpoint(checkpoint_path)
        builder = self._builder
        # An input may hold files, threads and processes.
        with contextlib.closing(builder.open_source(input_fn, ModeKeys.EVAL)) as source:
            return run_evaluation(
                builder, source, checkpoint, hooks, steps, name, self.eval_dir(name)
            )

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Several[Hook] = (),
        checkpoint_path: str | os.PathLike[str] | Checkpoint | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yield predictions.

        Parameters
        ----------
        input_fn : callable
            As for `train`; labels are ignored.
        predict_keys : str or sequence of str, default=None
            The predictions wanted; None is all.
        hooks : Hook or iterable of Hook, default=()
            Run around every step.
        checkpoint_path : str, path or Checkpoint, default=None
            The checkpoint to use, or its directory; None is the latest.
        yield_single_examples : bool, default=True
            Yield row by row; otherwise batch by batch.

        Yields
        ------
        dict of str to ndarray
            Predictions of a row, or of a batch.

        Raises
        ------
        NotFittedError
            If there is no checkpoint. It is raised here, not by the first ``next``.
        ValueError
            If a key is not among the predictions.
        """
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        hooks = check_all(hooks, Hook, "hooks")
        # To build and restore a model takes longer than to predict a few rows (in
        # tf.estimator, 0.41 s of each call for one row), so the last one stays for as
        # long as its checkpoint is the latest. Hooks may change it: it is built anew.
        version = self._store.version() if checkpoint_path is None else None
        kept = self._kept
        if not hooks and version is not None and kept and kept.version == version:
            get_model: GetModel = kept.itself
        else:
            checkpoint = self._checkpoint(checkpoint_path)
            version = None if hooks else version
            get_model = functools.partial(self._prediction_model, checkpoint, version)
        return run_prediction(
            self._builder, input_fn, keys, hooks, get_model, yield_single_examples
        )

    @torch.inference_mode(False)  # what is kept of it serves other modes, too
    def predict_table(
        self,
        features: Any,
        predict_keys: Sequence[str] | None = None,
        *,
        batch_size: int = 4096,
    ) -> dict[str, Any]:
        """Return the predictions for all rows of a table in memory.

        The same as those of `predict` for an `ArrayDataset`, but in one piece and, of few
        rows, much sooner.

        Parameters
        ----------
        features : dict of arrays, DataFrame or array
            Rows along the first dimension.
        predict_keys : sequence of str, default=None
            The predictions wanted; None is all.
        batch_size : int, default=4096
            Rows that go through the network at once.

        Returns
        -------
        dict of str to ndarray
            Rows along the first dimension.

        Raises
        ------
        NotFittedError
            If there is no checkpoint.
        ValueError
            If a key is not among the predictions.
        """
        kept = self._kept
        resolve_device(self._config.device)  # refuses one that is not there
        # A fit elsewhere in the same model_dir is seen, too.
        if kept is not None and kept.version == self._store.version():
            threads = self._config.num_threads
            # None: more rows than a batch, or nothing that encodes them.
            found = kept.predict_table(features, predict_keys, batch_size, threads)
            if found is not None:
                return found
        data = ArrayDataset(features, batch_size=batch_size)
        batches = self.predict(lambda: data, predict_keys, yield_single_examples=False)
        return joined(batches, data.n_rows)

    def export(
        self,
        export_dir_base: str | os.PathLike[str],
        *,
        checkpoint_path: str | os.PathLike[str] | Checkpoint | None = None,
        assets: Mapping[str, str | os.PathLike[str]] | None = None,
        verify: bool = True,
        example: Any = None,
        format: str = "onnx",
        atol: float = 1e-5,
    ) -> Path:
        """Write the model of a checkpoint as a new version that runs without Python.

        A version is a directory ``<export_dir_base>/<unix seconds>``, which appears when
        it is complete and tested. It holds ``model.onnx``, ``warmup.json``, ``assets/``,
        ``manifest.json`` and, for large weights, ``weights.bin``;
        `skest.export.load` runs it. The model takes the raw columns of
        ``encode=FeatureColumns.encode``, or without ``encode`` the tensors that the
        features are. Networks of your own may need onnxscript.

        Parameters
        ----------
        export_dir_base : str or path
            Directory of the versions; it is made if need be.
        checkpoint_path : str, path or Checkpoint, default=None
            The checkpoint to export, or its directory; None is the latest.
        assets : dict of str to path, default=None
            Files to copy into ``assets/``, by their names there.
        verify : bool, default=True
            Test what was written before the version appears: run it and compare it with
            the model, or read the variables back.
        example : raw features, default=None
            Rows to test the graph with, which are written into the version. None makes
            rows up; names, types and shapes are then those of the first batch that this
            object was given in `train`, `evaluate` or `predict`.
        format : {"onnx", "checkpoint"}, default="onnx"
            "checkpoint" writes no graph, but the checkpoint without the state of the
            optimizers, which `skest.checkpoints.format.read_checkpoint` reads.
        atol : float, default=1e-5
            How far numbers of the graph may differ, as a part of them where they are
            above 1; at most 0.01.

        Returns
        -------
        Path
            The directory of the version.

        Raises
        ------
        NotFittedError
            If there is no checkpoint.
        ExportError
            If a part of the model cannot be written, what was written does not predict
            what the model does, or it is not known what features are like. No version
            appears then.
        ImportError
            If onnx, onnxruntime or onnxscript is needed and missing.
        ValueError
            If `checkpoint_path` is no checkpoint, or an asset is no file or has a name
            that leads out of ``assets/``.
        """
        # Here, because training needs none of it.
        from skest.export.writer import export_estimator

        return export_estimator(
            self._builder,
            functools.partial(self._checkpoint, checkpoint_path),
            self._example,
            export_dir_base,
            example=example,
            assets=assets or {},
            format=format,
            verify=verify,
            atol=atol,
        )

    # What a trained Estimator knows

    @property
    def warm_start_report(self) -> WarmStartReport | None:
        """What the warm start of this object took over; None if there was none."""
        return self._warm_start_report

    # Parts of a call

    @property
    def _builder(self) -> ModelBuilder:
        return ModelBuilder(
            self._model_fn, self._config, self.model_dir, self._remember
        )

    def _remember(self, features: Any) -> None:
        """Keep a few rows to build a model for, when it is exported."""
        # Column names, types and shapes are all that an export needs of them.
        if self._example is None:
            self._example = first_rows(features)

    def _replica(
        self, input_fn: Callable[..., Any], steps: int | None, max_steps: int | None
    ) -> Replica:
        if is_alone(self._config):
            return Replica()
        from skest.distributed.replicas import replica_for

        return replica_for(self.model_fn, input_fn, self._config, steps, max_steps)

    def _training_lock(
        self, replica: Replica
    ) -> contextlib.AbstractContextManager[Callable[[], None]]:
        if self.model_dir is None or not replica.is_chief:
            # In memory nobody else can train, and beside the chief nobody writes.
            return contextlib.nullcontext(lambda: None)
        return training_lock(self.model_dir)

    def _warm_start(self, spec: EstimatorSpec, random: RunRandom) -> None:
        if self._warm_start_from is None:
            return
        with random.as_global():  # initializers may draw
            self._warm_start_report = warm_start(
                spec.network, spec.optimizers, self._warm_start_from
            )

    def _prediction_model(
        self, checkpoint: Checkpoint, version: Hashable, *where: Any
    ) -> PredictionModel:
        model = new_prediction_model(self._builder, checkpoint, version, *where)
        # Assigned at once: a thread that reads `_kept` has one model or the other.
        if model.version is not None:
            self._kept = model
        return model


def first_rows(data: Any, n_rows: int = 3) -> Any:
    """Return a copy of the first rows of a batch, which does not keep the batch alive.

    Parameters
    ----------
    data : array, Tensor, DataFrame, or dict or tuple of them
        Rows along the first dimension. None stays None.
    n_rows : int, default=3
        How many.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.estimators.estimator import first_rows
    >>> first_rows({"x": np.arange(9)})
    {'x': array([0, 1, 2])}
    """
    if isinstance(data, Mapping):
        return {key: first_rows(value, n_rows) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(first_rows(value, n_rows) for value in data)
    if isinstance(data, Number) or getattr(data, "shape", None) == ():
        raise ValueError(
            "Features and labels must have rows along their first dimension; got the "
            f"single value {data}. A Pipeline of rows needs .batch(n)."
        )
    if isinstance(data, Tensor):
        return data[:n_rows].detach().cpu().clone()
    if data is None or not hasattr(data, "shape"):
        return data if data is None else data[:n_rows]
    # A slice may be a view, which keeps the whole alive.
    few = data.iloc[:n_rows] if hasattr(data, "iloc") else data[:n_rows]
    return few.copy() if hasattr(few, "copy") else few
