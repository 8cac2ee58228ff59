# SPDX-License-Identifier: Apache-2.0
"""Training examples per second of a linear model with large tables."""

from collections.abc import Iterable
from functools import partial

from benchmarks import tables
from benchmarks.contenders import by_hand, in_their_own, with_skest, with_sklearn
from benchmarks.measure import Case, Settings, Suite, Timed

TEXT = """\
A whole `fit` of a linear model of four columns of ids, a million buckets each, with FTRL in
batches of 512. torch has no FTRL, so that by hand it is Adagrad with sparse gradients.
`SGDClassifier` takes a step for each row of the one-hot matrix. Keras is not there: its
FTRL updates all four million weights in every step."""
BATCH_SIZE = 512


def cases(settings: Settings) -> Iterable[Case]:
    """Return one case."""
    n_rows = settings.choose(51_200, 51_200, 256)
    n_epochs = settings.choose(3, 2, 1)
    ids, y = tables.ids(n_rows)
    arguments = (ids, y, BATCH_SIZE, n_epochs)
    options = {"n_buckets": tables.ID_BUCKETS}

    def skest(execution: str) -> Timed:
        work = partial(with_skest.fit_linear, *arguments, execution=execution)
        return Timed(partial(work, **options), settings.n_threads)

    yield Case(
        f"{n_rows:,} rows {n_epochs} times",
        {
            "PyTorch by hand, sparse Adagrad": Timed(
                partial(by_hand.fit_linear, *arguments, **options)
            ),
            **{f"skest, {name}": skest(name) for name in ("auto", "eager", "graph")},
            "scikit-learn, SGDClassifier": Timed(
                partial(with_sklearn.fit_linear, *arguments, **options)
            ),
            **in_their_own.working(
                settings,
                "linear",
                {**ids, "y": y},
                but="Keras 3",
                names=list(ids),
                batch_size=BATCH_SIZE,
                n_epochs=n_epochs,
                **options,
            ),
        },
        lambda seconds: n_rows * n_epochs / seconds,
        n_rounds=settings.choose(5, 1, 1),
    )


SUITE = Suite(
    "linear", "Training a linear model with FTRL", TEXT, "examples/s", True, cases
)
