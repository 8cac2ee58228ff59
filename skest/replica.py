# SPDX-License-Identifier: Apache-2.0
"""`Replica`: the part of one process in a training."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from skest.hooks.base import Run
from skest.inputs.input_context import InputContext
from skest.spec import EstimatorSpec
from skest.training import Step, train_step

__all__ = ["Replica"]


class Replica:
    """The part of one process in a training; this one trains alone.

    It is the seam for `skest.distributed`: the loop in `skest.training` and the code of
    models do not know which replica is at work. Its methods are called in the order in
    which they stand here, `steps_taken` after every step. It is a context manager that
    calls `close`.

    Attributes
    ----------
    is_chief : bool
        Whether this process reads and writes the checkpoints of ``model_dir``, writes
        summaries, and runs the hooks that are for one process only.
    input_context : InputContext or None
        Which part of the input it reads; None is all of it.
    """

    is_chief: bool = True
    input_context: InputContext | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def begin(self, run: Run) -> None:
        """Take part, before the first step.

        The network and the optimizers of `run` are those of its checkpoint, or freshly
        initialized. Sets ``run.global_step`` if others have taken steps already.
        """

    def make_step(self, run: Run, make: Callable[[], Step]) -> Step:
        """Return what takes the steps; `make` returns what does so in one process."""
        return make()

    def watched_step(
        self,
        spec: EstimatorSpec,
        features: Any,
        labels: Any,
        after_backward: Callable[[], None] | None = None,
    ) -> Tensor:
        """Take a step of which a hook wants the gradients, see `train_step`."""
        return train_step(spec, features, labels, after_backward)

    def steps_taken(self, run: Run) -> int:
        """Return the global step, after this process has taken one more step."""
        return run.global_step + 1

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint; `capture` returns that of the state in this process."""
        return capture(run)

    def finish(self, run: Run) -> None:
        """Wait for what others have to do before the last checkpoint.

        Called when the loop has ended by itself, before the ``end`` of the hooks.
        """

    def leave(self, run: Run) -> None:
        """Take no part any more, after the last checkpoint."""

    def close(self) -> None:
        """Let go of connections and memory, also after an error."""
