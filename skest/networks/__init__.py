# SPDX-License-Identifier: Apache-2.0
"""Networks: modules from encoded features to logits."""

from skest.networks.activations import ACTIVATIONS, get_activation
from skest.networks.baseline import Baseline
from skest.networks.batch_norm import BatchNorm
from skest.networks.combined import Combined
from skest.networks.dnn import DNN
from skest.networks.dropout import Dropout
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
