# SPDX-License-Identifier: Apache-2.0
"""What happens once an epoch in ``fit``: progress, and scikit-learn's callbacks."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.console import listener
from skest.exceptions import NanLossDuringTrainingError
from skest.hooks.base import EpochwiseHook, Run


class Progress(EpochwiseHook):
    """What a training notes about its epochs.

    Attributes
    ----------
    loss_curve : list of float
        Mean training loss of each epoch.
    scores : list of float
        Validation scores of the epochs.
    best : Checkpoint or None
        The state to keep; None is the last one.
    """

    def __init__(self) -> None:
        self.loss_curve: list[float] = []
        self.scores: list[float] = []
        self.best: Checkpoint | None = None

    @property
    def n_iter(self) -> int:
        """Epochs begun."""
        return len(self.loss_curve)

    @property
    def best_score(self) -> float:
        """Best validation score; minus infinity if there is none."""
        return -math.inf

    @property
    def is_patient(self) -> bool:
        """Whether training ends when epochs no longer improve."""
        return False


class EpochHook(Progress):
    """Records losses and scores of epochs, and stops when they no longer improve.

    The rules are those of scikit-learn's `MLPClassifier`: training ends after
    `n_iter_no_change` epochs in a row that did not improve the training loss, or with
    `score` the validation score, by more than `tol`. As there, a training that goes on
    from an earlier one does not lose its state: it is scored first, on the present
    validation rows, and kept until an epoch is better.

    Parameters
    ----------
    n_rows : int
        Rows of the training table.
    batch_size : int
        Rows of a batch; the last one of an epoch may be smaller.
    tol : float
        An improvement must exceed it.
    n_iter_no_change : int
        Epochs without improvement to wait for.
    ends : sequence of int, default=()
        Epochs at which cycles of the schedule end, and training may. It does after the
        first cycle that brought no better score; and from the third on after one
        whose best score came before its last quarter, as a longer one would overfit,
        too.
    score : skest.adapters.held_out.LiveScore, default=None
        Of the present network on validation rows; higher is better. The state with the
        best score is kept then.
    report : callable, default=None
        Called with a line of text about every epoch.
    n_epochs : int, default=1
        Most epochs that there will be, for the time that is left.
    n_to_follow : int, default=0
        Most epochs of the trainings that come after this one in the same fit.
    counts_start : bool, default=True
        Whether a state that training goes on from may stay the best.

    Attributes
    ----------
    n_iter : int
        Epochs begun.
    loss_curve : list of float
        Mean training loss of each epoch, every row counted once.
    scores : list of float
        Validation scores of the epochs.
    best : Checkpoint or None
        The state with the best validation score: that after one of the epochs, or that
        which training went on from.
    best_score : float
        Its score; minus infinity if there is none.
    """

    def __init__(
        self,
        n_rows: int,
        batch_size: int,
        *,
        tol: float,
        n_iter_no_change: float,
        ends: Sequence[int] = (),
        score: Any = None,
        report: Callable[[str], None] | None = None,
        n_epochs: int = 1,
        n_to_follow: int = 0,
        counts_start: bool = True,
    ) -> None:
        super().__init__()
        # How many rows each loss is the mean of.
        full, rest = divmod(n_rows, batch_size)
        self._rows = torch.tensor([batch_size] * full + [rest] * (rest > 0))
        self._tol = tol
        self._patience = n_iter_no_change
        self._ends = ends
        self._last_end = self._best_epoch = 0
        self._score = score
        self._report = report
        self._n_epochs = n_epochs
        self._n_to_follow = n_to_follow
        self._counts_start = counts_start
        self._began = 0.0
        self._durations: list[float] = []
        self._losses: list[Tensor] = []
        self._best_value = -math.inf  # a loss (negative) or a score
        self._n_without_improvement = 0

    @property
    def best_score(self) -> float:
        """Best validation score; minus infinity if there is none."""
        return -math.inf if self.best is None else self._best_value

    @property
    def is_patient(self) -> bool:
        """Whether training ends when epochs no longer improve."""
        return math.isfinite(self._patience)

    def begin(self, run: Run) -> None:
        """Prepare the validation rows, and score a state that training goes on from."""
        super().begin(run)
        if self._score is not None:
            self._score.begin(run)
            # As scikit-learn with warm_start: what was learned before may still be the
            # best.
            if run.start_step and self._counts_start:
                self._keep_best(run, self._score(run))

    def begin_epoch(self, run: Run) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def after_step(self, run: Run, loss: Tensor) -> None:
        """Note the loss."""
        # Still on the device: to read each would wait for an accelerator in every step.
        self._losses.append(loss)
        super().after_step(run, loss)

    def end_epoch(self, run: Run) -> None:
        """Look at the progress."""
        losses = torch.stack(self._losses).double().cpu()
        # The last batch may be smaller, and an epoch that was stopped has fewer.
        rows = self._rows[: len(losses)].double()
        loss = (losses @ rows / rows.sum()).item()
        self._losses = []
        self.loss_curve.append(loss)
        # Without the validation, which is no training speed.
        trained = time.perf_counter() - self._began
        value = -loss
        if self._score is not None:
            value = self._score(run)
            self.scores.append(value)
        self._durations.append(time.perf_counter() - self._began)
        if self._report is not None:
            self._report(self._line(loss, int(rows.sum()) / max(trained, 1e-9)))
        self._summarise(run, "epoch", value)
        self._judge(run, value)
        if heard := listener():
            heard.check()

    def end(self, run: Run) -> None:
        """Write what the model that is kept has reached."""
        super().end(run)
        # NaN that comes in the last step has no loss to be seen by.
        if self.scores and self.best is None:
            raise NanLossDuringTrainingError(
                "After training, the predictions for the rows held out are NaN or "
                "infinite. Lower the learning rate, or limit the gradients with clip_norm."
            )
        if self.loss_curve:
            self._summarise(run, "final", self.best_score)

    def _summarise(self, run: Run, group: str, score: float) -> None:
        if run.config.save_summary_steps:
            run.summary.scalar(f"{group}/loss", self.loss_curve[-1])
            if self.scores:
                run.summary.scalar(f"{group}/validation_score", score)

    def _line(self, loss: float, speed: float) -> str:
        """Return what a person is told of an epoch that has ended."""
        parts = [f"loss {loss:#.4g}"]
        if self._score is not None:
            parts.append(f"validation loss {self._score.as_loss(self.scores[-1]):#.4g}")
        parts.append(f"{float(f'{speed:.2g}'):,.0f} examples/s")
        n_left = self._n_epochs - self.n_iter + self._n_to_follow
        recent = self._durations[-5:]  # the first epoch takes longer
        if n_left > 0:
            # A training that is validated or patient may end early.
            most = "" if self._score is None and not self.is_patient else "up to "
            parts.append(f"{most}{duration(n_left * sum(recent) / len(recent))} left")
        number = f"{self.n_iter:>{len(str(self._n_epochs))}}/{self._n_epochs}"
        return f"Epoch {number}: {', '.join(parts)}"

    def _judge(self, run: Run, value: float) -> None:
        """Compare a loss (negative) or a score with the best one before."""
        if value > self._best_value + self._tol:
            self._n_without_improvement = 0
        else:
            self._n_without_improvement += 1
        # Better by any amount is better to keep; to go on, it takes more than `tol`.
        self._keep_best(run, value)
        if self.n_iter in self._ends and self._score is not None:
            self._judge_cycle(run)
        # `>` and not `>=`, as in scikit-learn's `MLPClassifier`.
        if self._n_without_improvement > self._patience:
            what = "training loss" if self._score is None else "validation score"
            run.request_stop(
                f"the {what} did not improve by more than {self._tol:g} for "
                f"{self._patience} epochs in a row"
            )

    def _judge_cycle(self, run: Run) -> None:
        """End the training behind a cycle that says that the next brings nothing."""
        start, self._last_end = self._last_end, self.n_iter
        last_quarter = self.n_iter - math.ceil((self.n_iter - start) / 4)
        if self._best_epoch <= start:
            run.request_stop("the last cycle of the schedule brought no better score")
        # The rate is lowest at the end of a cycle: if that is not the best, more of it
        # overfits.
        elif start > self._ends[0] and self._best_epoch <= last_quarter:
            run.request_stop("the last cycle of the schedule was best before its end")

    def _keep_best(self, run: Run, value: float) -> None:
        if value > self._best_value:
            self._best_value, self._best_epoch = value, self.n_iter
            if self._score is not None:
                self.best = run.capture_checkpoint()


class CallbackHook(EpochwiseHook):
    """Tells the callbacks of an estimator about a fit and its epochs.

    The fit is one task, and every epoch a task below it; contexts stay until the fit has
    ended, so there is none for a step.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        The estimator in training, as its callbacks shall see it. Its callbacks are set up
        here; ``sklearn.callback.with_callbacks`` around the training tears them down.
    X, y, sample_weight : as in ``fit``
        What the caller gave to ``fit``.
    fitted_at : callable
        ``fitted_at(run) -> dict``: the attributes that make the estimator one which is
        fitted as far as the run has come. Called if a callback asks for it.
    n_epochs : int
        Most epochs that there will be.

    Notes
    -----
    A callback sees all rows given to ``fit``, those held out for early stopping and those
    of weight zero as well.
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        fitted_at: Callable[[Run], dict[str, Any]],
        n_epochs: int,
    ) -> None:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._told = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
        self._fitted_at = fitted_at
        self._fit_task = estimator._init_callback_context(max_subtasks=n_epochs)
        self._fit_task.call_on_fit_task_begin(**self._told)
        self._epoch_task: Any = None

    def begin_epoch(self, run: Run) -> None:
        """Begin the task of an epoch."""
        self._epoch_task = self._fit_task.subcontext(task_name="epoch")
        # A function, because it copies all variables: scikit-learn calls it only for
        # callbacks that want a fitted estimator.
        self._epoch_task.call_on_fit_task_begin(
            **self._told, reconstruction_attributes=lambda: self._fitted_at(run)
        )

    def end_epoch(self, run: Run) -> None:
        """End it, and training if a callback says so."""
        stop = self._epoch_task.call_on_fit_task_end(
            **self._told, reconstruction_attributes=lambda: self._fitted_at(run)
        )
        if stop:
            run.request_stop("a callback of scikit-learn asked to stop")

    def finish(self) -> None:
        """End the task of the fit; the estimator is fitted."""
        self._fit_task.call_on_fit_task_end(**self._told, reconstruction_attributes={})


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
