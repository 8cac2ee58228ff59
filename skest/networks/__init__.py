# SPDX-License-Identifier: Apache-2.0
"""Networks: modules from encoded features to logits.

They begin with a module of `skest.feature_columns` and end before the head, and draw
their first weights from a generator that they are given.
"""

from skest.networks.dnn import (
    ACTIVATIONS,
    DNN,
    Baseline,
    BatchNorm,
    Combined,
    Dropout,
    get_activation,
)
from skest.networks.rnn import CELL_TYPES, RNN

__all__ = [
    "ACTIVATIONS",
    "CELL_TYPES",
    "DNN",
    "RNN",
    "Baseline",
    "BatchNorm",
    "Combined",
    "Dropout",
    "get_activation",
]
