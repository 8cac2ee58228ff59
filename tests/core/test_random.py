# SPDX-License-Identifier: Apache-2.0
from functools import partial

import torch
from torch import nn

from skest.canned.dnn import member_loss
from skest.core.random import draws_from_global_generator
from skest.heads import BinaryClassHead
from skest.networks import DNN
from tests._models import squared_loss


class Gan(nn.Module):
    """A module of the user's, with a name that skest uses too."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(2, 2)

    def forward(self, x):
        return self.generator(x)


def test_what_may_draw_from_the_global_generator():
    for network, others, draws in [
        (nn.Linear(2, 1), (), False),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU()), (), False),
        (DNN(nn.Linear(2, 2), (3,), 1, dropout=0.5, batch_norm=True), (), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), (), True),
        (nn.AlphaDropout(), (), True),
        (nn.RReLU(), (), True),
        (nn.GRU(2, 2), (), True),
        (nn.TransformerEncoderLayer(4, 2), (), True),
        (Gan(), (), True),
        (nn.Linear(2, 1), (squared_loss,), True),
        (nn.Linear(2, 1), (nn.functional.mse_loss,), True),
        (nn.Linear(2, 1), (nn.MSELoss(),), False),
        (nn.Linear(2, 1), (partial(member_loss, BinaryClassHead()),), False),
        (nn.Linear(2, 1), (partial(member_loss, Gan()),), True),
        (nn.Linear(2, 1), (partial(squared_loss),), True),
        (
            nn.Linear(2, 1),
            (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1),),
            False,
        ),
    ]:
        assert draws_from_global_generator(network, *others) == draws
