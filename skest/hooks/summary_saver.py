# SPDX-License-Identifier: Apache-2.0
"""`SummarySaverHook`: what TensorBoard shows of a training."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from skest.core.random import draws_from_global_generator, restorer
from skest.hooks.base import Hook, Run, Timer, output_directory
from skest.hooks.summaries import (
    MISSING_TENSORBOARD,
    SummaryWriter,
    tensorboard_is_installed,
)
from skest.spec import EstimatorSpec

_VARIABLES, _GRADIENTS = "variables", "gradients"
_HISTOGRAMS = (_VARIABLES, _GRADIENTS)


class SummarySaverHook(Hook):
    """Writes summaries of training for TensorBoard.

    These are "loss", "global_step/sec", the learning rates, the ``summaries`` of the
    `EstimatorSpec` (such as "loss/<head>" of a `MultiHead`), and histograms if asked for.
    They are written at the first step, at every interval, the loss at the last step as
    well.

    A training with a ``model_dir`` has such a hook without histograms, at the interval
    ``RunConfig(save_summary_steps=)``, in any case; one that is passed writes beside it,
    at its own interval. A value that both have is written once.

    Parameters
    ----------
    save_steps : int, default=None
        Steps between two summaries.
    save_secs : float, seconds, default=None
        Time between two summaries. Exactly one of both must be given.
    histograms : {"variables", "gradients"} or iterable of them, default=()
        "variables" are the trained ones, after the update of a step, at the tags
        ``variables/<path>``; "gradients" theirs before clipping, at ``gradients/<path>``.
        A step whose gradients are wanted is run eagerly, the others need not be.
    output_dir : str or path, default=None
        Directory of the event files; None is ``model_dir``.

    Raises
    ------
    ImportError
        If tensorboard is not installed.
    ValueError
        If none or both intervals are given, or the one given is not positive; if
        `histograms` has another value; in training, if there is no directory.

    Notes
    -----
    As ``tf.estimator.SummarySaverHook`` and, for "global_step/sec",
    ``tf.estimator.StepCounterHook``.

    Examples
    --------
    >>> from skest.hooks import SummarySaverHook
    >>> hook = SummarySaverHook(save_steps=1000, histograms=("variables", "gradients"))
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        histograms: str | Iterable[str] = (),
        output_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if not tensorboard_is_installed():
            raise ImportError(f"SummarySaverHook: {MISSING_TENSORBOARD}")
        chosen = (histograms,) if isinstance(histograms, str) else tuple(histograms)
        unknown = [name for name in chosen if name not in _HISTOGRAMS]
        if unknown:
            raise ValueError(
                "'histograms' of SummarySaverHook may name "
                f"{' and '.join(map(repr, _HISTOGRAMS))}; got {unknown[0]!r}."
            )
        self._timer = Timer(save_steps, save_secs)
        self._histograms = chosen
        self._output_dir = output_dir
        self._is_due = False
        self._scalars: dict[str, float | Tensor] = {}
        self._distributions: dict[str, Tensor] = {}

    @property
    def watches_gradients(self) -> bool:
        """Whether histograms of gradients are written."""
        return _GRADIENTS in self._histograms

    def wants_gradients(self, run: Run) -> bool:
        """Tell whether a histogram of them is due."""
        return self._is_due

    def begin(self, run: Run) -> None:
        """Find the directory, and start the clock."""
        # For its error, before the first step.
        output_directory(self._output_dir, run, "SummarySaverHook")
        self._timer = self._timer._restarted()
        self._forget()

    def before_step(self, run: Run) -> None:
        """See whether summaries are due, and take those of the state before the step."""
        # The step to come: its gradients have to be asked for before it is taken.
        self._is_due = self._timer.is_due(run.global_step + 1)
        if self._is_due:
            # Now: schedulers move on to the next step before `after_step`.
            self._scalars |= learning_rates(run.spec)
            self._add_summaries_of_model(run)

    def after_backward(self, run: Run) -> None:
        """Keep the gradients."""
        for name, parameter in run.network.named_parameters():
            if parameter.grad is not None:
                # Copied, because other hooks and clipping change gradients in place.
                self._distributions[_tag(_GRADIENTS, name)] = parameter.grad.clone()

    def after_step(self, run: Run, loss: Any) -> None:
        """Write the summaries if they are due."""
        if not self._is_due:
            return
        self._timer.mark(run.global_step)
        self._scalars["loss"] = loss
        if self._timer.steps_per_sec is not None:
            self._scalars["global_step/sec"] = self._timer.steps_per_sec
        if _VARIABLES in self._histograms:
            for name, parameter in run.network.named_parameters():
                # No copy: it is written below, before the next step.
                self._distributions[_tag(_VARIABLES, name)] = parameter
        writer = self._writer(run)
        writer.scalars(self._scalars)
        writer.histograms(self._distributions)
        self._forget()

    def end(self, run: Run) -> None:
        """Write the loss of the last step."""
        if run.loss is not None:
            self._writer(run).scalar("loss", run.loss)

    def _writer(self, run: Run) -> SummaryWriter:
        return run.summary_writer(self._output_dir)

    def _forget(self) -> None:
        self._is_due, self._scalars, self._distributions = False, {}, {}

    def _add_summaries_of_model(self, run: Run) -> None:
        """Compute what the step is going to compute, and look at more of it."""
        if run.spec.summaries is None or run.batch is None:
            return
        features, labels = run.batch
        # Computed a second time, at few steps, rather than kept at all of them.
        with without_traces(run.spec):
            logits = run.network(features)
            for name, value in run.spec.summaries(labels, logits, features).items():
                # As tf.summary.scalar and histogram, told by the shape.
                kind = self._scalars if value.ndim == 0 else self._distributions
                kind[name] = value


def _tag(kind: str, name: str) -> str:
    # TensorBoard groups tags by their slashes.
    return f"{kind}/{name.replace('.', '/')}"


_TAG = "learning_rate"


def learning_rates(spec: EstimatorSpec) -> dict[str, float]:
    """Return the present learning rates of all parameter groups.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.

    Returns
    -------
    dict of str to float
        "learning_rate" if there is one group only; otherwise
        "learning_rate/<module path>", with the innermost module that has all variables
        of the group, or with the number of the group where that leaves no difference.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.hooks.summary_saver import learning_rates
    >>> network = torch.nn.ModuleDict(
    ...     {"wide": torch.nn.Linear(1, 1), "deep": torch.nn.Linear(1, 1)}
    ... )
    >>> parts = [(network["wide"], 0.5), (network["deep"], 0.1)]
    >>> spec = EstimatorSpec(
    ...     ModeKeys.TRAIN,
    ...     network=network,
    ...     loss=lambda labels, logits, features: (labels - logits).square().mean(),
    ...     optimizer=[torch.optim.SGD(m.parameters(), lr=lr) for m, lr in parts],
    ... )
    >>> learning_rates(spec)
    {'learning_rate/wide': 0.5, 'learning_rate/deep': 0.1}
    """
    groups = [g for optimizer in spec.optimizers for g in optimizer.param_groups]
    # A rate may be a tensor, and dual ascent has none.
    rates = [float(group["lr"]) for group in groups if "lr" in group]
    if len(rates) == 1:
        return {_TAG: rates[0]}
    path_of = {id(p): name for name, p in spec.network.named_parameters()}
    names = [
        _common_module([path_of.get(id(p), "") for p in group["params"]])
        for group in groups
        if "lr" in group
    ]
    # Numbers say little, but a name that two groups have would say something wrong.
    if "" in names or len(set(names)) < len(names):
        names = [str(number) for number in range(len(names))]
    return {f"{_TAG}/{n}": rate for n, rate in zip(names, rates, strict=True)}


def _common_module(paths: list[str]) -> str:
    """Return the path of the innermost module that has all variables."""
    # Without the name of the parameter itself.
    parts = zip(*[path.split(".")[:-1] for path in paths], strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, parts)
    return "/".join(names[0] for names in shared)


@contextmanager
def without_traces(spec: EstimatorSpec) -> Iterator[None]:
    """Restore buffers and generators when the context ends; no gradients inside.

    A call of the network and of the loss in the context gives what the next training
    step is going to compute, dropout included, and does not change that step.

    Parameters
    ----------
    spec : EstimatorSpec
        Model in training.
    """
    network = spec.network
    lent: list[torch.Generator] = []
    if draws_from_global_generator(network, spec.loss, *spec.optimizers):
        # The run has borrowed them; otherwise they are other people's.
        devices = {p.device for p in network.parameters() if p.is_cuda}
        on_gpus = [torch.cuda.default_generators[d.index or 0] for d in devices]
        lent = [torch.default_generator, *on_gpus]
    restore = restorer(network, *lent)
    try:
        with torch.no_grad():
            yield
    finally:
        restore()
