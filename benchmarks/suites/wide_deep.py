# SPDX-License-Identifier: Apache-2.0
"""Training examples per second of wide & deep."""

from collections.abc import Iterable
from functools import partial

from benchmarks import tables
from benchmarks.contenders import by_hand, in_their_own, with_skest, with_skorch
from benchmarks.measure import Case, Settings, Suite, Timed

TEXT = """\
A whole `fit` of wide & deep on 8 columns of numbers, 5 of strings with 10 to 50,000 levels
and a cross of two, beginning with the strings: 128 and 64 units, embeddings of up to 16,
batches of 512, Adagrad 0.05 for both parts. By hand, and in skorch, gradients of the tables
are sparse and strings are encoded with `pandas.factorize`. scikit-learn has no such
model. What goes on before the first step is a large part of a short training: tf.estimator
builds a graph with the 61,110 words."""
BATCH_SIZE = 512


def cases(settings: Settings) -> Iterable[Case]:
    """Return a case for each number of epochs."""
    for n_epochs in settings.choose((1, 5), (2,), (1,)):
        yield case(settings, n_epochs)


def case(settings: Settings, n_epochs: int) -> Case:
    """Return the contenders for a number of epochs."""
    n_rows = settings.choose(51_200, 51_200, 256)
    table = tables.mixed(n_rows)
    labels = tables.mixed_labels(table)
    options = {"encoding": tables.encoding()}
    arguments = (table, labels, BATCH_SIZE, n_epochs)

    def skest(execution: str, optimizer: str = "adagrad") -> Timed:
        own = {"execution": execution, "linear_optimizer": optimizer}
        work = partial(with_skest.fit_wide_deep, *arguments, **options, **own)
        return Timed(work, settings.n_threads)

    return Case(
        f"{n_rows:,} rows {n_epochs} times",
        {
            "PyTorch by hand, sparse": Timed(
                partial(by_hand.fit_wide_deep, *arguments, **options)
            ),
            **{f"skest, {name}": skest(name) for name in ("auto", "eager", "graph")},
            "skest, auto, FTRL for the wide part": skest("auto", "ftrl"),
            "skorch, sparse": Timed(
                partial(with_skorch.fit_wide_deep, *arguments, **options)
            ),
            **in_their_own.working(
                settings,
                "wide_deep",
                {**tables.mixed_arrays(n_rows), "y": labels},
                levels=tables.levels_of(),
                batch_size=BATCH_SIZE,
                n_epochs=n_epochs,
                **options,
            ),
        },
        lambda seconds: n_rows * n_epochs / seconds,
        n_rounds=settings.choose(3, 1, 1),
    )


SUITE = Suite("wide_deep", "Training wide & deep", TEXT, "examples/s", True, cases)
