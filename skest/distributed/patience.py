# SPDX-License-Identifier: Apache-2.0
"""`Patience`: how long a task asks again for what is never answered."""

import time

__all__ = ["Patience"]


class Patience:
    """Ends what fails again and again, for so long that it will not come right.

    Servers to which sessions can be opened are not lost; yet each request may take longer
    than a task waits for it.

    Parameters
    ----------
    timeout : float
        Seconds that a request may take, for the error.

    Examples
    --------
    >>> from skest.distributed.patience import Patience
    >>> patience = Patience(30.0)
    >>> patience.failed(OSError("no answer"), 60.0)
    >>> patience.answered()
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None

    def answered(self) -> None:
        """Begin anew: something came right."""
        self._since = None

    def failed(self, error: Exception, limit: float) -> None:
        """Go on, unless all has failed for so long.

        Parameters
        ----------
        error : Exception
            What happened this time.
        limit : float
            Seconds since the first failure after the last answer.

        Raises
        ------
        TimeoutError
            If there were more.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > limit:
            raise TimeoutError(
                f"The parameter servers are there, but what they are asked has failed "
                f"for more than {limit:g} s. {error} Set 'timeout' of "
                f"AsyncParameterServer, now {self._timeout:g} s, to more than the "
                "slowest request takes."
            ) from error
