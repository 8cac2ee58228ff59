# SPDX-License-Identifier: Apache-2.0
"""Tables of many columns, 44 to 1,617, for `benchmarks.quality --broad`.

They were picked from the packages of `elsewhere_tables` and `keel_tables` by names, sizes
and targets, before anything was fitted to them; none was left out afterwards.
"""

from functools import partial

import numpy as np
import pandas as pd

from benchmarks import elsewhere_tables, keel_tables
from benchmarks.quality_tables import Table

__all__ = ["BROAD"]


def _without_names(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return numbers and two classes of the IJCNN 2007 "agnostic learning" challenge."""
    path = keel_tables.path_of(f"{name}_train.data")
    X = pd.read_csv(path, sep=r"\s+", header=None)
    y = np.loadtxt(path.with_suffix(".labels"), dtype=int)
    return X.set_axis([f"c{i}" for i in range(X.shape[1])], axis=1), y


_CHALLENGE = ("ada", "hiva", "sylva")
_classes, _numbers = elsewhere_tables.classes, elsewhere_tables.numbers

BROAD = {
    "alzheimer": _classes("modeldata/ad_data", "Class"),
    "callbacks": _classes("openintro/labor_market_discrimination", "call"),
    "car_choice": _classes("Ecdat/Car", "choice"),
    "chem_yield": _numbers("modeldata/chem_proc_yield", "yield"),
    "chicago": _numbers("modeldata/Chicago", "ridership"),
    "grants": _classes("modeldata/grants_other", "class"),
    "hepatic": _classes("modeldata/hepatic_injury_qsar", "class"),
    "leaves": _classes("modeldata/leaf_id_flavia", "species"),
    "meats": _numbers("modeldata/meats", "fat", "water", "protein"),
    "pd_speech": _classes("modeldata/pd_speech", "class"),
    "permeability": _numbers("modeldata/permeability_qsar", "permeability"),
    "tissues": _classes("dslabs/tissue_gene_expression", "y"),
    "movement_libras": keel_tables.classes("balanced/raw/movement_libras.dat"),
    "sonar": keel_tables.classes("balanced/raw/sonar.dat"),
    "spectfheart": keel_tables.classes("spectfheart/spectfheart.dat"),
} | {name: Table("classes", partial(_without_names, name)) for name in _CHALLENGE}
