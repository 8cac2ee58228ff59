# SPDX-License-Identifier: Apache-2.0
"""Reads the golden cases: JSON files of what tf.estimator 2.15 computed.

A file is a list of ``{"id", "component", "config", "inputs", "expected", "note"}``.
Dense arrays are written ``{"dtype", "shape", "data"}``, sparse ones ``{"sparse": true,
"dtype", "indices", "values", "dense_shape"}``; NaN and infinities stand as strings.
"""

import functools
import json
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

FOLDER = Path(__file__).parent
RTOL, ATOL = 1e-5, 1e-6


class Sparse(NamedTuple):
    """TensorFlow's coordinate form: values at indices [n, rank] of dense_shape."""

    indices: np.ndarray
    values: np.ndarray
    dense_shape: tuple[int, ...]


@functools.cache
def load(name):
    """All cases of ``<name>.json``, in their order; treat them as read-only."""
    cases = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    if isinstance(cases, dict):  # expectations by id
        return [{"id": i, "component": name, "expected": e} for i, e in cases.items()]
    return cases


def cases(name, not_applicable=None):
    """The cases of a file, less those listed with a reason.

    Raises ValueError for an id listed there that the file does not hold, so that
    cases run and cases listed always add up to the whole file.
    """
    listed = not_applicable or {}
    found = load(name)
    unknown = set(listed) - {case["id"] for case in found}
    if unknown:
        raise ValueError(f"{name}.json has no cases {sorted(unknown)}.")
    return [case for case in found if case["id"] not in listed]


def groups(given):
    """Run a test for the ``cases`` of each first part of an id."""
    found = defaultdict(list)
    for case in given:
        found[case["id"].partition("/")[0]].append(case)
    return pytest.mark.parametrize("cases", found.values(), ids=found.keys())


def check_each(given, *checks, folder=None):
    """Check all cases, each in a folder of its own; an error names its case."""
    for number, case in enumerate(given):
        arguments = [case]
        if folder is not None:
            arguments.append(folder / str(number))
            arguments[1].mkdir()
        for check in checks:
            try:
                check(*arguments)
            except BaseException as error:
                error.add_note(f"This is the golden case {case['id']}.")
                raise


def account_for_all_cases(name, run, not_applicable):
    """Assert that cases run and cases listed with a reason are all cases of a file."""
    ids = {case["id"] for case in run}
    assert not ids & set(not_applicable)
    assert ids | set(not_applicable) == {case["id"] for case in load(name)}
    assert all(not_applicable.values()), "every listed case needs its reason"


def refuse_unread(left, what):
    """Raise NotImplementedError if a runner left a key of a specification unread.

    A case that is run as if the key were not there could pass, or fail, for no reason.
    """
    if left:
        raise NotImplementedError(f"The runner does not know {sorted(left)} of {what}.")


def is_array(encoded):
    """Whether a JSON value is the form of a dense or sparse array."""
    return isinstance(encoded, dict) and "dtype" in encoded


def decode(encoded):
    """JSON value → arrays and numbers, through dictionaries and lists.

    Dense arrays become ndarrays (strings of dtype object), sparse ones `Sparse`,
    the strings "nan", "inf" and "-inf" floats.
    """
    if is_array(encoded):
        if encoded.get("sparse"):
            return Sparse(
                np.array(encoded["indices"], dtype=np.int64),
                _ndarray(encoded["values"], encoded["dtype"]),
                tuple(encoded["dense_shape"]),
            )
        return _ndarray(encoded["data"], encoded["dtype"]).reshape(encoded["shape"])
    if isinstance(encoded, dict):
        return {key: decode(value) for key, value in encoded.items()}
    if isinstance(encoded, list):
        return [decode(value) for value in encoded]
    if encoded in ("nan", "inf", "-inf"):
        return float(encoded)
    return encoded


def _ndarray(data, dtype):
    is_text = dtype in ("string", "str", "bytes", "object")
    return np.array(data, dtype=object if is_text else dtype)
