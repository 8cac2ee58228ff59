# SPDX-License-Identifier: Apache-2.0
"""Whether an estimator that was made from a description is one.

A description can name but parts of an estimator, and still be of none: any number in it may
be another. Parts check what they are given where they learn, which these did not do here.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from skest.export.artifact import Artifact
from skest.export.inputs import InputSpec
from skest.export.manifest import WARMUP
from skest.export.trial_rows import cells_of
from skest.export.warmup import synthetic_rows

__all__ = ["check_predicts", "check_trained"]

_COUNTS = ("n_iter_", "n_steps_")
_NUMBERS = ("loss_", "best_validation_score_")
# Values of a row; a file of few bytes must not have very many made up.
_MADE_UP = 2**16


def check_trained(estimator: Any) -> None:
    """Raise an error if parameters, or what a training goes on from, are no such thing.

    Parameters
    ----------
    estimator : SkestEstimator
        Rebuilt.
    """
    estimator._validate_params()
    _check_chosen(estimator)
    if not isinstance(estimator._reads_array, bool):
        raise TypeError(f"'_reads_array' is {estimator._reads_array!r}")
    for columns in estimator._columns_of_user:
        columns.active  # noqa: B018  wrong ones raise
    found = vars(estimator)
    for parameter in estimator._column_parameters:
        fitted = found.get(f"{parameter}_")
        for column in () if fitted is None else fitted.active:
            column.validated()
    numbers = [found[name] for name in _NUMBERS]
    scores = found["validation_scores_"]
    numbers += [*found["loss_curve_"], *([] if scores is None else scores)]
    _check_kind(Integral, [found[name] for name in _COUNTS])
    _check_kind(Real, [number for number in numbers if number is not None])
    if "feature_names_in_" in found:  # if X has names
        names = found["feature_names_in_"]
        if len(set(names)) != found["n_features_in_"]:
            raise ValueError(f"it has features {names!r}, and counts others")


def _check_chosen(estimator: Any) -> None:
    """Raise an error unless all that is "auto" was chosen, as it may be given."""
    given = {**estimator.get_params(deep=False), **estimator.auto_params_}
    decided = type(estimator)(**given)
    decided._validate_params()
    decided._choose(1)
    if decided.auto_params_:
        raise ValueError(f"it did not choose {list(decided.auto_params_)}")


def _check_kind(kind: type, numbers: Iterable[Any]) -> None:
    wrong = [n for n in numbers if not isinstance(n, kind) or isinstance(n, bool)]
    if wrong:
        raise TypeError(f"it counts {wrong!r}, which are no numbers of that kind")


def check_predicts(estimator: Any, artifact: Artifact) -> None:
    """Let a rebuilt estimator predict what was recorded, or rows that are made up.

    Parameters
    ----------
    estimator : SkestEstimator
        Rebuilt.
    artifact : Artifact
        Of what it was made.

    Raises
    ------
    Exception
        Whatever comes of a wrong description.
    """
    manifest = artifact.manifest
    inputs = {
        name: _spec(name, feature)
        for name, feature in {**manifest["features"], **manifest.get("raw", {})}.items()
        if "computed" not in feature
    }
    if WARMUP in artifact.texts:
        _predict(estimator, inputs, json.loads(artifact.texts[WARMUP])["inputs"])
        return
    specs = list(inputs.values())
    if sum(math.prod(s or 1 for s in spec.shape[1:]) for spec in specs) > _MADE_UP:
        return
    zeros = {spec.name: [0] for spec in specs if spec.dtype != "string"}
    for missing in (False, True):
        rows = synthetic_rows(zeros, specs, missing=missing, length=1)
        with contextlib.suppress(ValueError):  # a right one may refuse such values
            _predict(estimator, inputs, rows)


def _predict(
    estimator: Any, inputs: Mapping[str, InputSpec], rows: Mapping[str, Any]
) -> None:
    table = {spec.key: cells_of(spec, rows[name]) for name, spec in inputs.items()}
    target = estimator._target
    predictions = estimator.estimator_.predict_table(
        table, target.answer_keys, batch_size=estimator._predict_batch_size
    )
    answers = target.answer(predictions)
    with contextlib.suppress(ValueError):  # such as NaN, which no labels may be
        labels = target.encode(estimator._target_rows(answers))
        if estimator._scale is not None:
            target.scaled(labels, scale=estimator._scale)


def _spec(name: str, feature: Mapping[str, Any]) -> InputSpec:
    missing = feature.get("missing")
    return InputSpec(
        name,
        feature.get("key", name),
        feature["dtype"],
        tuple(feature["shape"]),
        np.nan if missing == "nan" else missing,
        feature.get("delimiter"),
    )
