# SPDX-License-Identifier: Apache-2.0
"""The matrix products of a training and nothing else: a bound, for it trains nothing."""

from itertools import pairwise

import numpy as np
import torch

HIDDEN = (128, 64)


def multiply(X: np.ndarray, batch_size: int, n_epochs: int) -> None:
    """Take the products of all steps of a training on dense numbers.

    They are those of the three layers, forward and backward, with the shapes and in the
    order in which all contenders with this BLAS take them. Results go into memory that
    is there already, and all steps work on one batch, which is in the cache.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = (X.shape[1], *HIDDEN, 1)
    inputs = torch.tensor(X[:batch_size], dtype=torch.float32)
    values = [inputs, *(torch.empty(len(inputs), size) for size in sizes[1:])]
    slopes = [torch.empty_like(value) for value in values]
    torch.randn(slopes[-1].shape, generator=generator, out=slopes[-1])
    weights = [
        torch.randn(after, before, generator=generator) / before
        for before, after in pairwise(sizes)
    ]
    products = [
        (values[i], weight.t(), values[i + 1]) for i, weight in enumerate(weights)
    ]
    for i, weight in reversed([*enumerate(weights)]):
        if i:  # nobody needs the slopes of the inputs
            products.append((slopes[i + 1], weight, slopes[i]))
        products.append((slopes[i + 1].t(), values[i], torch.empty_like(weight)))
    for _ in range(-(-len(X) // batch_size) * n_epochs):
        for left, right, result in products:
            torch.mm(left, right, out=result)
