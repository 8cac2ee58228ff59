# SPDX-License-Identifier: Apache-2.0
"""Training by several processes."""

from skest.distributed.async_replica import AsyncReplica
from skest.distributed.server import serve_parameters

__all__ = ["AsyncReplica", "serve_parameters"]
