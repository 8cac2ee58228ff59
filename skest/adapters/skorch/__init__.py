# SPDX-License-Identifier: Apache-2.0
"""skorch's callbacks in skest, and networks exchanged with skorch.

It imports skorch, so nothing else of skest imports it.
"""

from skest.adapters.skorch.callbacks import SkorchCallbackHook
from skest.adapters.skorch.exchange import (
    from_skorch,
    skorch_features,
    skorch_model_fn,
    to_skorch,
)

__all__ = [
    "SkorchCallbackHook",
    "from_skorch",
    "skorch_features",
    "skorch_model_fn",
    "to_skorch",
]
