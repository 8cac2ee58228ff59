# SPDX-License-Identifier: Apache-2.0
"""The core `Estimator` that does the work of a fitted one of scikit-learn's kind."""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from skest._resources import device_or_auto
from skest.adapters.features import WEIGHT_KEY
from skest.adapters.target_scale import scaled_target_model_fn
from skest.checkpoints import Checkpoint
from skest.estimator import Estimator
from skest.model_builder import device_with
from skest.run_config import RunConfig
from skest.spec import EstimatorSpec
from skest.warm_start import WarmStartSettings

__all__ = ["bound_model_fn", "core_as_fitted", "core_on_cpu", "new_core"]


def new_core(
    model: Any, seed: int | None, weighted: bool, warm: WarmStartSettings | None
) -> Estimator:
    """Return the core of a fit that begins.

    Parameters
    ----------
    model : SkestEstimator
        Its columns and its target have learned from the data.
    seed : int or None
        Of the fit; None leaves it to the operating system.
    weighted : bool
        Whether the rows have weights.
    warm : WarmStartSettings or None
        Where the variables come from.
    """
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
    model_fn = bound_model_fn(model, weighted)
    return Estimator(model_fn, config=config, warm_start_from=warm)


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
