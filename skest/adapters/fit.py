# SPDX-License-Identifier: Apache-2.0
"""The core `Estimator` behind a fitted one: its training, early end, vectors."""

import copy
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from skest.adapters.epochs import CallbackHook, Progress
from skest.adapters.features import WEIGHT_KEY
from skest.adapters.targets.base import scaled_target_model_fn
from skest.adapters.warm_source import known_settings
from skest.canned.optimization import table_scope
from skest.checkpoints.checkpoint import Checkpoint
from skest.config.run_config import RunConfig
from skest.core.checks import warn
from skest.core.console import INTERRUPTED
from skest.core.resources import device_or_auto
from skest.engine.loop import INPUT_ENDED
from skest.engine.model import device_with
from skest.estimators.estimator import Estimator
from skest.feature_columns.base import TrainedColumn
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.modules import module_name, parameter_name
from skest.feature_columns.numeric_vectors import PARAMETERS, PeriodicColumn
from skest.hooks.base import Run
from skest.spec import EstimatorSpec


def train_core(
    model: Any,
    input_fn: Callable[..., Any],
    progress: Progress,
    given: Sequence[Any] | None,
    *,
    seed: int | None,
    weighted: bool,
    resume: bool,
    steps_per_epoch: int = 1,
    n_epochs: int = 1,
    steps: int | None = None,
    max_steps: int | None = None,
) -> None:
    """Train the core of an estimator, and let the estimator keep what was learned.

    Parameters
    ----------
    model : SkestEstimator
        Its columns and its target have learned from the data.
    input_fn, steps, max_steps
        See `skest.Estimator.train`.
    progress : Progress
        Notes what the epochs bring.
    given : X, y and sample_weight, or None
        What the caller gave, for callbacks; None tells them nothing.
    seed : int or None
        Of this training; None leaves it to the operating system.
    weighted : bool
        Whether the rows have weights.
    resume : bool
        Whether it goes on from what the estimator has learned.
    steps_per_epoch, n_epochs : int, default=1
        How long it lasts at most.
    """
    # The core holds the columns, and may be sent to other processes: without the tables
    # of the last fit, which are in the checkpoint.
    drop_embeddings(model)
    core = _new_core(model, seed, weighted, resume)
    own_hooks = model.hooks or ()

    def fitted_at(run: Run) -> dict[str, Any]:
        """Return the attributes of the estimator as if training had ended now."""
        # Another estimator, for the one in training goes on changing.
        fitted = model._copy()
        config = run.config.replace(model_dir=None)
        so_far = Estimator(bound_model_fn(fitted, weighted), config=config)
        so_far.checkpoint = run.capture_checkpoint()
        fitted._finish(so_far, progress, resume)
        return vars(fitted)

    # Of several trainings in one fit, callbacks are told of one.
    callbacks = []
    if given is not None and hasattr(model, "_skl_callbacks"):
        most = n_epochs
        if steps is not None:
            # The epoch in which the steps run out is begun, and so a task.
            most = min(most, -(-steps // steps_per_epoch))
        callbacks = [CallbackHook(model, *given, fitted_at=fitted_at, n_epochs=most)]
    # `progress` comes first: in its `begin` it sets `run.held_out`, which hooks of the
    # user's look at in theirs, and the loss of an epoch is noted when they see its end.
    all_hooks = [progress, *callbacks, *own_hooks]
    core.train(input_fn, hooks=all_hooks, steps=steps, max_steps=max_steps)
    # To be asked before another checkpoint is put in, which has no such reason.
    model._is_interrupted = core.stop_reason == INTERRUPTED
    if model._is_interrupted:
        _warn_of_interruption(model, core)
    # One epoch, as of partial_fit, is not meant to converge; nor is what has a schedule,
    # which lasts as long as it does.
    is_cut_off = core.stop_reason == INPUT_ENDED and not _has_schedule(model)
    if is_cut_off and n_epochs > 1 and progress.is_patient:
        # As MLPClassifier warns, with the same category, so that filters catch both.
        warn(
            f"The training of this {type(model).__name__} has not converged in "
            f"max_iter={n_epochs} epochs. Increase 'max_iter' or 'tol', or let all of "
            "them pass without a warning: n_iter_no_change=numpy.inf.",
            ConvergenceWarning,
        )
    chosen = any(hook.chose_variables for hook in own_hooks)
    # As MLPClassifier with early_stopping; a hook that put variables in knows better.
    if progress.best is not None and not chosen:
        core.checkpoint = progress.best
    if not resume:
        model.warm_start_report_ = core.warm_start_report
    model._finish(core, progress, resume)
    # scikit-learn's contract: at the end of the task the estimator is fitted.
    for hook in callbacks:
        hook.finish()


def _new_core(model: Any, seed: int | None, weighted: bool, resume: bool) -> Estimator:
    """Return the core of a training, with the variables that it goes on from."""
    # A fit of scikit-learn says nothing unless it is asked (verbose).
    config = model.config or RunConfig(log_step_count_steps=None)
    if config.model_dir is not None:
        # Clones share the parameter `config`, and no fit may go on from another's.
        run = f"fit-{uuid.uuid4().hex[:12]}"
        config = config.replace(model_dir=Path(config.model_dir) / run)
    # `n_iter_` says which epoch comes next, also after a fit that was interrupted.
    config = config.replace(
        random_seed=seed,
        device=model._setting("device"),
        execution=model._setting("execution"),
        resume_input=False,
    )
    # Of use before the first step only: what goes on has variables of its own.
    begins = not resume and model.warm_start_from is not None
    warm = known_settings(model) if begins else None
    model_fn = bound_model_fn(model, weighted)
    core = Estimator(model_fn, config=config, warm_start_from=warm)
    before = model.estimator_.checkpoint if resume else None
    if before is not None:
        core.checkpoint = before
    return core


def core_as_fitted(
    model: Any, config: RunConfig, checkpoint: Checkpoint | None, weighted: bool
) -> Estimator:
    """Return a core as that of the fit, with its checkpoint in memory.

    Parameters
    ----------
    model : SkestEstimator
        It is fitted; what ``set_params`` changed since does not count.
    config : RunConfig
        That of the fit.
    checkpoint : Checkpoint or None
        What the fit has learned.
    weighted : bool
        Whether the rows to evaluate have weights.
    """
    # Files of the fit may be gone, and this machine may have no GPU.
    config = config.replace(model_dir=None, device=device_or_auto(config.device))
    core = Estimator(bound_model_fn(model._as_fitted(), weighted), config=config)
    if checkpoint is not None:
        core.checkpoint = checkpoint
    return core


def core_on_cpu(model: Any) -> Estimator:
    """Return the core of a fitted model, or if that computes elsewhere one like it."""
    core: Estimator = model.estimator_
    config = core.config
    if device_with(config.train_distribute, config.device).type == "cpu":
        return core
    config = config.replace(device="cpu")
    return core_as_fitted(model, config, core.checkpoint, weighted=False)


def bound_model_fn(model: Any, weighted: bool) -> Callable[..., EstimatorSpec]:
    """Return the model function of a fit, for rows with or without weights."""
    model_fn = model._model_fn(model._target.head(WEIGHT_KEY if weighted else None))
    if model._scale is None:
        return model_fn
    return partial(
        scaled_target_model_fn,
        model_fn=model_fn,
        scale=model._scale,
        scaled_labels=partial(model._target.scaled, scale=model._scale),
    )


def _warn_of_interruption(model: Any, core: Estimator) -> None:
    n_steps = 0 if core.checkpoint is None else core.checkpoint.global_step
    warn(
        f"The training of this {type(model).__name__} was {INTERRUPTED} after {n_steps} "
        "steps; it keeps what it has learned. A search or a cross-validation goes on with "
        "its next fit and counts this one: press Ctrl-C until it raises KeyboardInterrupt "
        "to end that, too."
    )


def _has_schedule(owner: Any) -> bool:
    settings = owner.get_params(deep=False)
    rates = (value for name, value in settings.items() if "learning_rate" in name)
    return settings.get("lr_scheduler") is not None or any(map(callable, rates))


def keep_embeddings(model: Any) -> None:
    """Give the fitted columns the vectors that a network has learned, for `transform`.

    Parameters
    ----------
    model : SkestEstimator
        It is fitted; its columns are replaced.
    """
    checkpoint = model.estimator_.checkpoint
    _replace_vectors(model, {} if checkpoint is None else checkpoint.variables)


def drop_embeddings(model: Any) -> None:
    """Undo `keep_embeddings`: the vectors are in the checkpoint anyway."""
    _replace_vectors(model, {})


def _replace_vectors(model: Any, variables: Mapping[str, Any]) -> None:
    for parameter, kind in model._column_parameters.items():
        columns = getattr(model, f"{parameter}_", None)
        if columns is None:
            continue
        # Estimators share columns with copies of themselves: nothing is changed in place.
        columns = copy.copy(columns)
        scope = table_scope(parameter, kind)
        columns.columns_ = [
            (name, _with_vectors(column, scope, variables))
            for name, column in columns.columns_
        ]
        setattr(model, f"{parameter}_", columns)


def _with_vectors(column: Any, scope: str, variables: Mapping[str, Any]) -> Any:
    """Return a column with what a network has learned of it, if there is something."""
    if not isinstance(column, TrainedColumn):
        return column
    column = copy.copy(column)
    column.__dict__.pop("weights_", None)
    # In the checkpoint's memory: a table of gigabytes is there once.
    if isinstance(column, EmbeddingColumn):
        table = variables.get(scope + parameter_name(column.table_name))
        if table is not None:
            column.weights_ = table.numpy()
    elif isinstance(column, PeriodicColumn):
        names = {n: f"{scope}{module_name(column.name)}.{n}" for n in PARAMETERS}
        if set(names.values()) <= variables.keys():
            column.weights_ = {n: variables[name].numpy() for n, name in names.items()}
    return column
