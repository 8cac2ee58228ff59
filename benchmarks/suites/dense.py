# SPDX-License-Identifier: Apache-2.0
"""Training examples per second on dense numbers."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks import tables
from benchmarks.aims import PRODUCTS
from benchmarks.contenders import (
    by_hand,
    in_their_own,
    products,
    with_skest,
    with_sklearn,
    with_skorch,
)
from benchmarks.measure import Case, Settings, Suite, Timed

TEXT = """\
A whole `fit` of a network of 128 and 64 units on 30 numbers, Adam 1e-3, all that belongs to
it included. By hand, in skest
and in skorch, Adam is the fused one of PyTorch; the others have their own. The matrix
products alone are those of the layers, forward and backward, of as many steps."""


def cases(settings: Settings) -> Iterable[Case]:
    """Return a case for each size of batches."""
    sizes = settings.choose((32, 128, 1024, 8192), (128, 1024), (32,))
    for batch_size in sizes:
        yield case(settings, batch_size)


def case(settings: Settings, batch_size: int) -> Case:
    """Return the contenders for a size of batches."""
    n_rows = settings.choose(max(25_600, 8 * batch_size), 12_800, 64)
    n_epochs = settings.choose({32: 4, 128: 8}.get(batch_size, 16), 4, 1)
    X, y = tables.dense(n_rows, 30)
    arguments = (X, y, batch_size, n_epochs)

    def skest(execution: str) -> Timed:
        work = partial(with_skest.fit_dense, *arguments, execution=execution)
        return Timed(work)

    executions = ["auto", "eager", "graph"]
    return Case(
        f"batch {batch_size:,}",
        {
            "PyTorch by hand": Timed(partial(by_hand.fit_dense, *arguments)),
            **{f"skest, {name}": skest(name) for name in executions},
            **by_hand_with_all_threads(settings, *arguments),
            "scikit-learn, MLP": Timed(partial(with_sklearn.fit_dense, *arguments)),
            "skorch": Timed(partial(with_skorch.fit_dense, *arguments)),
            **in_their_own.working(
                settings,
                "dense",
                {"X": X, "y": y},
                batch_size=batch_size,
                n_epochs=n_epochs,
            ),
        },
        lambda seconds: n_rows * n_epochs / seconds,
        x=batch_size,
        n_rounds=settings.choose(5 if batch_size == 128 else 2, 1, 1),
        in_turns=True,
        bounds={PRODUCTS: Timed(partial(products.multiply, X, batch_size, n_epochs))},
    )


def by_hand_with_all_threads(settings: Settings, *arguments: Any) -> dict[str, Timed]:
    """Return what torch does unless told to take one thread."""
    if settings.n_threads == 1:
        return {}
    work = partial(by_hand.fit_dense, *arguments)
    name = f"PyTorch by hand, {settings.n_threads} threads"
    return {name: Timed(work, settings.n_threads)}


SUITE = Suite(
    "dense",
    "Training on dense numbers",
    TEXT,
    "examples/s",
    True,
    cases,
    "rows in a batch",
)
