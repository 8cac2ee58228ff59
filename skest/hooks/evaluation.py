# SPDX-License-Identifier: Apache-2.0
"""`InMemoryEvaluatorHook` and `FinalOpsHook`: results in the midst, and at the end."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from skest.core.checks import Several, check_all, check_input_fn, check_integer
from skest.hooks.base import Hook, Run, Timer, check_estimator


# A protocol, because estimators import hooks.
class _Evaluates(Protocol):
    @property
    def evaluate(self) -> Callable[..., dict[str, float]]: ...


class InMemoryEvaluatorHook(Hook):
    """Evaluates the network in training, without a checkpoint on disk.

    It does so before the first step, every so many steps, and after the last one. The
    results are recorded as those of ``evaluate`` are: early stopping can read them.

    Parameters
    ----------
    estimator : Estimator
        The one that is trained.
    input_fn : callable
        As for ``evaluate``.
    steps : int, default=None
        Batches to evaluate; None takes all.
    hooks : Hook or iterable of Hook, default=()
        Run around every step of an evaluation.
    name : str, default=None
        Names the evaluation, as for ``evaluate``.
    every_n_iter : int, default=100
        Steps of training between two evaluations.

    Attributes
    ----------
    results : dict of int to dict of str to float
        What ``evaluate`` returned, by global step.

    Raises
    ------
    TypeError, ValueError
        If `estimator` is no Estimator, `input_fn` no function, a hook none, or
        `every_n_iter` no positive integer.

    Notes
    -----
    As ``tf.estimator.experimental.InMemoryEvaluatorHook``. The variables are copied into
    the network of the evaluation, which is that of mode EVAL.

    Examples
    --------
    >>> import numpy as np, torch
    >>> import skest
    >>> from skest.heads import RegressionHead
    >>> from skest.hooks import InMemoryEvaluatorHook
    >>> def model_fn(features, labels, mode):
    ...     network = torch.nn.Linear(1, 1)
    ...     return RegressionHead().create_estimator_spec(
    ...         features, mode, network, labels, torch.optim.SGD(network.parameters(), 0.1)
    ...     )
    >>> X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(-1, 1)
    >>> input_fn = skest.inputs.numpy_input_fn(X, X[:, 0], num_epochs=50, shuffle=False)
    >>> estimator = skest.Estimator(model_fn)
    >>> hook = InMemoryEvaluatorHook(estimator, input_fn, steps=1, every_n_iter=5)
    >>> estimator = estimator.train(input_fn, hooks=[hook], steps=12)
    >>> list(hook.results)
    [0, 5, 10, 12]
    """

    def __init__(
        self,
        estimator: _Evaluates,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Several[Hook] = (),
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        check_estimator(estimator, "evaluate")
        check_input_fn(input_fn, "InMemoryEvaluatorHook")
        check_integer(every_n_iter, "every_n_iter", "InMemoryEvaluatorHook", 1)
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = check_all(hooks, Hook, "hooks")
        self._name = name
        self._timer = Timer(every_steps=every_n_iter)
        self.results: dict[int, dict[str, float]] = {}

    def begin(self, run: Run) -> None:
        """Evaluate what training starts from."""
        self._timer, self.results = self._timer._restarted(), {}
        self._evaluate(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Evaluate if it is due."""
        if self._timer.is_due(run.global_step):
            self._evaluate(run)

    def end(self, run: Run) -> None:
        """Evaluate what training has ended with."""
        # The last step may have been due.
        if run.global_step not in self.results:
            self._evaluate(run)

    def _evaluate(self, run: Run) -> None:
        self._timer.mark(run.global_step)
        live = run.capture_checkpoint()  # the network may not have all variables
        self.results[run.global_step] = self._estimator.evaluate(
            self._input_fn, self._steps, self._hooks, live, self._name
        )


class FinalOpsHook(Hook):
    """Computes something once, after the last step.

    Parameters
    ----------
    final_ops : callable or dict of str to callable
        Each is called with the `Run`, whose network and metrics are still there.

    Attributes
    ----------
    final_ops_values : object or dict of str to object
        What they returned; None before the end of a run.

    Raises
    ------
    TypeError
        If `final_ops` holds something that is no function.

    Notes
    -----
    As ``tf.estimator.FinalOpsHook``.

    Examples
    --------
    >>> from skest.hooks import FinalOpsHook
    >>> def weight_norm(run):
    ...     return sum(float(p.square().sum()) for p in run.network.parameters()) ** 0.5
    >>> hook = FinalOpsHook({"weight_norm": weight_norm})
    """

    def __init__(
        self,
        final_ops: Callable[[Run], Any] | Mapping[str, Callable[[Run], Any]],
    ) -> None:
        functions = (
            final_ops.values() if isinstance(final_ops, Mapping) else [final_ops]
        )
        for function in functions:
            if not callable(function):
                raise TypeError(
                    "'final_ops' must be a function of the run, or a dictionary of such "
                    f"functions; got {function!r}."
                )
        self._final_ops = final_ops
        # As the property of TensorFlow's FinalOpsHook.
        self.final_ops_values: Any = None

    def begin(self, run: Run) -> None:
        """Forget the values of another run."""
        self.final_ops_values = None

    def end(self, run: Run) -> None:
        """Compute the values."""
        if isinstance(self._final_ops, Mapping):
            values = {name: op(run) for name, op in self._final_ops.items()}
            self.final_ops_values = values
        else:
            self.final_ops_values = self._final_ops(run)
