# SPDX-License-Identifier: Apache-2.0
"""`quiet_export`: what torch says of itself while it writes a graph is not shown."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_export"]

_LOGGER = "torch.onnx._internal.exporter._registration"


@contextmanager
def quiet_export() -> Iterator[None]:
    """Keep back messages of torch that are not about the user's module.

    That torchvision, of which nothing is needed, is not installed; and that torch calls
    something which torch will remove. All others are shown.

    Examples
    --------
    >>> import warnings
    >>> from skest.export.quiet_export import quiet_export
    >>> with quiet_export():
    ...     warnings.warn("`isinstance(treespec, LeafSpec)` is deprecated", FutureWarning)
    """
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(_is_of_use)
    try:
        with warnings.catch_warnings():
            message = r"`isinstance\(treespec, LeafSpec\)`"
            warnings.filterwarnings("ignore", message, FutureWarning)
            yield
    finally:
        logger.removeFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("torchvision is not installed")
