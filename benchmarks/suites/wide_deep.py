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
Adagrad 0.05 for both parts. By hand, and in skorch, gradients of the tables
are sparse and strings are encoded with `pandas.factorize`. scikit-learn has no such
model. What goes on before the first step is a large part of a short training: tf.estimator
builds a graph with the 61,110 words."""
# Sizes of batches and numbers of epochs, which are fewer where steps are many.
WORK = ((32, 1), (128, 2), (512, 1), (512, 5), (1024, 5), (8192, 5))
IN_FULL = 512


def cases(settings: Settings) -> Iterable[Case]:
    """Return a case for each size of batches and number of epochs."""
    for batch_size, n_epochs in settings.choose(WORK, ((512, 2),), ((512, 1),)):
        yield case(settings, batch_size, n_epochs)


def case(settings: Settings, batch_size: int, n_epochs: int) -> Case:
    """Return the contenders for a size of batches and a number of epochs."""
    n_rows = settings.choose(51_200, 51_200, 256)
    table = tables.mixed(n_rows)
    labels = tables.mixed_labels(table)
    options = {"encoding": tables.encoding()}
    arguments = (table, labels, batch_size, n_epochs)

    def skest(execution: str, optimizer: str = "adagrad") -> Timed:
        own = {"execution": execution, "linear_optimizer": optimizer}
        work = partial(with_skest.fit_wide_deep, *arguments, **options, **own)
        return Timed(work)

    return Case(
        f"batch {batch_size:,}, {n_rows:,} rows {times(n_epochs)}",
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
                batch_size=batch_size,
                n_epochs=n_epochs,
                **options,
            ),
        },
        lambda seconds: n_rows * n_epochs / seconds,
        # The shorter of two trainings with the same batches is no point of the line.
        x=None if (batch_size, n_epochs) == (512, 1) else batch_size,
        n_rounds=settings.choose(3 if batch_size == IN_FULL else 2, 1, 1),
        in_turns=True,
    )


def times(n: int) -> str:
    """Return how often, in words."""
    return "once" if n == 1 else f"{n} times"


SUITE = Suite(
    "wide_deep",
    "Training wide & deep",
    TEXT,
    "examples/s",
    True,
    cases,
    "rows in a batch",
)
