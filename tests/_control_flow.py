# SPDX-License-Identifier: Apache-2.0
"""Modules with the control flow of torch, which it compiles where they are called."""

import torch
from torch import nn


class Branches(nn.Module):
    """Chooses a layer by the numbers of the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.a, self.b, (x,))
