# SPDX-License-Identifier: Apache-2.0
"""How much a server takes from its clients."""

from dataclasses import dataclass, fields

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes; whatever is more is refused.

    Attributes
    ----------
    max_request_bytes : int, default=8 MiB
        The body of a request (else 413).
    max_header_bytes : int, default=16 KiB
        The first line and the headers of a request (else 431).
    max_values : int, default=1048576
        Values in the JSON of a request, as commas and opening brackets are counted before
        it is parsed (else 413). Meanwhile nobody else is answered: after 65536 values and
        more there is a pause of the same length for others.
    max_rows : int, default=10000
        Rows of a request (else 413).
    max_cells : int, default=4194304
        Values of a feature once lists in cells are filled up to the longest, each number
        of a vector counted, and of a crossed column (else 413): one long list among many
        short ones, and two long lists that are crossed, need far more memory than their
        request.
    max_numbers : int, default=67108864
        Numbers that a network makes of the values of all features (else 413), as the
        manifest says under ``widths``: those of lists that are filled up, of indicators,
        embeddings and steps of sequences; and of the answer, of which each value counts
        as 16. Hidden layers, and networks that are not
        skest's, make more of each row.
    max_running : int, default=64
        Requests that are worked on at once (else 503).
    max_connections : int, default=512
        Open connections. Another one takes the place of the one that has waited longest
        for its client; it gets 503 if answers to all are being made. Together with
        `max_request_bytes` it bounds the memory of the bodies; what becomes of them,
        `max_running` with `max_cells` and `max_numbers`.
    timeout : float, default=10.0
        Seconds in which a request has to arrive from its first byte to its last (else
        408), in which an answer has to be taken, and for which a connection may idle.

    Examples
    --------
    >>> from skest.export.serving.limits import Limits
    >>> Limits(max_rows=100).max_rows
    100
    """

    max_request_bytes: int = 8 * 2**20
    max_header_bytes: int = 16 * 2**10
    max_values: int = 2**20
    max_rows: int = 10_000
    max_cells: int = 2**22
    max_numbers: int = 2**26
    max_running: int = 64
    max_connections: int = 512
    timeout: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name!r} must be positive; got {value!r}.")
