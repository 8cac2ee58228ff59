# SPDX-License-Identifier: Apache-2.0
"""`OtherGradients`: gradients of variables that no optimizer of the model holds."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from skest.execution.recording import Recording, Value

__all__ = ["OtherGradients"]


class OtherGradients:
    """Gradients that add up over steps, because no optimizer sets them to None.

    A backward pass gives gradients to all variables that a loss depends on. Code of the
    user's may read those that no optimizer of the model holds, for an update of its own.
    Such a gradient is a new tensor in the first step, and the sum of steps is in this one
    from then on. So a recorded step can add to it, as long as it stays there.

    Parameters
    ----------
    recording : Recording
        A backward pass among other things.
    values : iterable of Value
        All tensors in it.
    trained : mapping of Tensor
        What the optimizers hold.

    Attributes
    ----------
    obstacle : str or None
        Why the recorded step does not set the gradients that an eager one does, if so.
    """

    def __init__(
        self,
        recording: Recording,
        values: Iterable[Value],
        trained: Mapping[Tensor, None],
    ) -> None:
        self.obstacle: str | None = None
        written = {id(v.tensor) for call in recording.calls for v in call.written}
        made = {id(value.tensor) for value in values if value.kind == "result"}
        self._summed: list[tuple[Tensor, Tensor]] = []
        for value in values:
            tensor = value.tensor
            if value.kind != "constant" or not tensor.is_leaf or tensor in trained:
                continue
            if (gradient := tensor.grad) is None:
                continue
            if id(gradient) in made:
                self.obstacle = "a variable that no optimizer holds gets a new gradient"
            elif id(gradient) in written:
                self._summed.append((tensor, gradient))

    def __len__(self) -> int:
        return len(self._summed)

    def were_replaced(self) -> bool:
        """Tell whether somebody has set gradients to None, or to other tensors."""
        return any(tensor.grad is not gradient for tensor, gradient in self._summed)
