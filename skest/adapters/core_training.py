# SPDX-License-Identifier: Apache-2.0
"""`CoreTraining`: what ``fit``, ``partial_fit`` and ``train`` have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from skest.adapters.callbacks import CallbackHook
from skest.adapters.core import bound_model_fn, new_core
from skest.adapters.epochs import Progress
from skest.adapters.interruption import warn_if_interrupted, warn_unless_converged
from skest.adapters.learned_vectors import drop_embeddings
from skest.adapters.warm_source import known_settings
from skest.estimator import Estimator
from skest.hooks.base import Hook, Run

__all__ = ["CoreTraining"]


class CoreTraining:
    """One training of the core of an estimator, and what the estimator keeps of it.

    Parameters
    ----------
    model : SkestEstimator
        Its columns and its target have learned from the data.
    seed : int or None
        Of this training; None leaves it to the operating system.
    weighted : bool
        Whether the rows have weights.
    resume : bool
        Whether it goes on from what the estimator has learned.

    Attributes
    ----------
    core : Estimator
        What is trained.
    """

    def __init__(
        self, model: Any, seed: int | None, *, weighted: bool, resume: bool
    ) -> None:
        self._model, self._weighted, self._resume = model, weighted, resume
        drop_embeddings(model)
        warm = None if resume else known_settings(model)
        self.core = new_core(model, seed, weighted, warm)
        before = model.estimator_.checkpoint if resume else None
        if before is not None:
            self.core.checkpoint = before

    def run(
        self,
        input_fn: Callable[..., Any],
        progress: Progress,
        given: Sequence[Any] | None,
        *,
        hooks: Iterable[Hook] = (),
        steps_per_epoch: int = 1,
        n_epochs: int = 1,
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        """Train, and let the estimator keep what was learned.

        Parameters
        ----------
        input_fn, steps, max_steps
            See `skest.Estimator.train`.
        progress : Progress
            Notes what the epochs bring.
        given : X, y and sample_weight, or None
            What the caller gave, for callbacks; None tells them nothing.
        hooks : iterable of Hook, default=()
            Called after those of the caller.
        steps_per_epoch, n_epochs : int, default=1
            How long it lasts at most.
        """
        model, core = self._model, self.core
        own_hooks = model.hooks or ()

        def fitted_at(run: Run) -> dict[str, Any]:
            return self._fitted_at(run, progress)

        callbacks = []
        if given is not None:
            callbacks = CallbackHook.of(
                model, given, fitted_at, steps_per_epoch, n_epochs
            )
        all_hooks = [progress, *callbacks, *own_hooks, *hooks]
        core.train(input_fn, hooks=all_hooks, steps=steps, max_steps=max_steps)
        warn_if_interrupted(model, core)
        if n_epochs > 1 and progress.is_patient:
            warn_unless_converged(model, core, n_epochs)
        chosen = any(hook.chose_variables for hook in own_hooks)
        if progress.best is not None and not chosen:
            core.checkpoint = progress.best
        if not self._resume:
            model.warm_start_report_ = core.warm_start_report
        model._finish(core, progress, self._resume)
        for hook in callbacks:
            hook.finish()

    def _fitted_at(self, run: Run, progress: Progress) -> dict[str, Any]:
        """Return the attributes of the estimator as if training had ended now."""
        fitted = self._model._copy()
        config = run.config.replace(model_dir=None)
        core = Estimator(bound_model_fn(fitted, self._weighted), config=config)
        core.checkpoint = run.capture_checkpoint()
        fitted._finish(core, progress, self._resume)
        return vars(fitted)
