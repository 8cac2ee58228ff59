# SPDX-License-Identifier: Apache-2.0
"""What a request is refused with."""

from collections.abc import Mapping

__all__ = ["RequestError"]

_LONGEST = 1000


class RequestError(Exception):
    """A request that gets no answer but why.

    Parameters
    ----------
    status : int
        The HTTP status code.
    message : str
        What was expected and what came. It may quote the request, so it is cut.
    headers : dict of str to str, optional
        Headers of the answer.
    """

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]} ..."
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
