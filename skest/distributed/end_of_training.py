# SPDX-License-Identifier: Apache-2.0
"""`EndOfTraining`: whether a training that another process leads has ended."""

from pathlib import Path

from skest.checkpoint_store import DirectoryStore

__all__ = ["EndOfTraining"]


class EndOfTraining:
    """Sees in ``model_dir`` whether the chief has ended the training.

    A training that was ended by an error does not count: the chief may be started again.

    Parameters
    ----------
    model_dir : Path
        What is noted there when this is made may be of an earlier training.
    """

    def __init__(self, model_dir: Path) -> None:
        self._store = DirectoryStore(model_dir)
        self._before = self._found()

    @property
    def has_changed(self) -> bool:
        """Whether the chief has done anything since this was made."""
        return self._found() != self._before

    def reason(self) -> str | None:
        """Return why the training has ended since this was made, None if it has not."""
        found = self._found()
        return None if found == self._before else found[1]

    def old_reason(self) -> str | None:
        """Return why a training had ended when this was made, if none has begun since."""
        found = self._found()
        return found[1] if found == self._before else None

    def _found(self) -> tuple[object, str | None]:
        return self._store.version(), self._store.end_reason()
