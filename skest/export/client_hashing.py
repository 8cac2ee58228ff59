# SPDX-License-Identifier: Apache-2.0
"""Ids that a client computes of raw values, for graphs without an operator that hashes.

In the manifest, a feature with an entry ``computed`` is no raw column. It has the ids of
values of those in ``from``, of which ``raw`` describes those that are no tensor of the
graph; -1 stands for none. There are two ways to compute them:

- ``murmur3_32``: MurmurHash3_x86_32 of the UTF-8 bytes with ``seed``, modulo ``buckets``.
  Integers are hashed as their decimal strings. A missing value, and the integer -1, has
  no id.
- ``fingerprint_cat64``: combinations of the values, each with each. A string is the 64
  bits of its two hashes with ``seeds``, the first in the low half; an integer is itself.
  Beginning with ``start``, they are combined by FingerprintCat64, modulo ``buckets``. A
  combination with a missing value has no id.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from skest._hashes import fingerprint_cat64, murmurhash3_32
from skest.exceptions import ArtifactError

__all__ = ["ClientInputs"]

Arrays = dict[str, np.ndarray]

# Types of what can be hashed; floats are integers with gaps.
_HASHED = ("string", "int64", "float32", "float64")


class ClientInputs:
    """What a graph takes, made of what a client has.

    Parameters
    ----------
    features : dict
        What the manifest says of the inputs of the graph.
    raw : dict
        What it says of raw columns that only other inputs are computed of.

    Attributes
    ----------
    given : dict
        The features that a client gives.

    Raises
    ------
    ArtifactError
        If it is not known how to compute an input.

    Examples
    --------
    >>> import numpy as np
    >>> how = {"algo": "murmur3_32", "from": ["url"], "seed": 0, "buckets": 1000}
    >>> ids = {"dtype": "int64", "shape": [None, 1], "computed": how}
    >>> url = {"dtype": "string", "shape": [None, 1], "missing": ""}
    >>> inputs = ClientInputs({"url_ids": ids}, {"url": url})
    >>> inputs.feeds({"url": np.array([["a.org"], [""]], object)})["url_ids"]
    array([[132],
           [ -1]])
    """

    def __init__(self, features: Mapping[str, Any], raw: Mapping[str, Any]) -> None:
        self._computed = {n: s for n, s in features.items() if "computed" in s}
        rest = {n: s for n, s in features.items() if n not in self._computed}
        self.given = {**rest, **raw}
        self._passed = set(rest)
        for name, spec in self._computed.items():
            if not _is_known(spec["computed"], self.given):
                raise ArtifactError(
                    f"It is not known how to compute the feature {name!r}: "
                    f"{spec['computed']!r}."
                )

    def signature(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return a signature with what the client gives for its inputs."""
        inputs: dict[str, Any] = {}
        for key, tensor in found["inputs"].items():
            spec = self._computed.get(tensor["tensor"])
            if spec is None:
                inputs[key] = tensor
                continue
            for name in spec["computed"]["from"]:
                source = self.given[name]
                inputs[name] = {
                    "tensor": name,
                    "dtype": source["dtype"],
                    "shape": source["shape"],
                }
        return {**found, "inputs": inputs}

    def feeds(self, raw: Arrays) -> Arrays:
        """Return what the graph takes for arrays of what is given.

        Raises
        ------
        ValueError
            If it takes something for which nothing is given.
        """
        found = {name: values for name, values in raw.items() if name in self._passed}
        for name, spec in self._computed.items():
            how = spec["computed"]
            absent = [source for source in how["from"] if source not in raw]
            if absent:
                raise ValueError(
                    f"The signature takes no {absent}, of which {name!r} is computed. Use "
                    "another signature, or export the model again."
                )
            missing = [self.given[source].get("missing") for source in how["from"]]
            parts = [raw[source] for source in how["from"]]
            ids = _ALGORITHMS[how["algo"]](parts, missing, how)
            found[name] = ids.reshape(len(ids)) if len(spec["shape"]) == 1 else ids
        return found


def _is_known(how: Any, given: Mapping[str, Any]) -> bool:
    algo = how.get("algo") if isinstance(how, dict) else None
    if not isinstance(algo, str) or algo not in _ALGORITHMS:
        return False
    sources, buckets = how.get("from"), how.get("buckets")
    seeds = how.get("seeds") if algo == "fingerprint_cat64" else [how.get("seed"), 0]
    start = how.get("start", "0")
    return (
        isinstance(sources, list)
        and len(sources) >= 1
        and all(isinstance(n, str) and n in given for n in sources)
        and all(given[name]["dtype"] in _HASHED for name in sources)
        and type(buckets) is int
        and 0 < buckets <= 2**63
        and isinstance(seeds, list)
        and len(seeds) == 2
        and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
        and isinstance(start, str)
        and start.isascii()
        and start.isdigit()
        and len(start) <= 20
        and int(start) < 2**64
    )


def _buckets(parts: list[np.ndarray], missing: list[Any], how: Any) -> np.ndarray:
    values, is_missing = _values(parts[0], missing[0])
    if values.dtype != object:
        is_missing |= values == -1
        distinct, codes = np.unique(values, return_inverse=True)
        texts = [str(value) for value in distinct.tolist()]
    else:
        texts, codes = _factorized(values)
    hashes = murmurhash3_32(texts, how["seed"]).astype(np.uint64)
    ids = (hashes % np.uint64(how["buckets"])).astype(np.int64)
    return np.where(is_missing, -1, ids[codes.reshape(values.shape)])


def _crossed(parts: list[np.ndarray], missing: list[Any], how: Any) -> np.ndarray:
    n_rows = len(parts[0])
    hashes = np.array([[int(how["start"])]], np.uint64)
    is_missing = np.zeros((n_rows, 1), bool)
    for part, none in zip(parts, missing, strict=True):
        values, absent = _values(part, none)
        keys = _keys(values, how["seeds"])
        hashes = fingerprint_cat64(hashes[:, :, np.newaxis], keys[:, np.newaxis])
        is_missing = is_missing[:, :, np.newaxis] | absent[:, np.newaxis]
        width = is_missing.shape[1] * is_missing.shape[2]
        hashes = hashes.reshape(n_rows, width)
        is_missing = is_missing.reshape(n_rows, width)
    ids = (hashes % np.uint64(how["buckets"])).astype(np.int64)
    return np.where(is_missing, -1, ids)


_ALGORITHMS = {"murmur3_32": _buckets, "fingerprint_cat64": _crossed}


def _values(values: np.ndarray, missing: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return strings or int64, one row for each, and which of them are missing."""
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    values = values.reshape(len(values), width)
    if values.dtype.kind == "f":
        absent = np.isnan(values)
        return np.where(absent, -1, values).astype(np.int64), absent
    return values, values == missing


def _keys(values: np.ndarray, seeds: list[int]) -> np.ndarray:
    if values.dtype != object:
        return values.view(np.uint64)
    texts, codes = _factorized(values)
    low, high = (murmurhash3_32(texts, seed).astype(np.uint64) for seed in seeds)
    return (low | (high << np.uint64(32)))[codes].reshape(values.shape)


def _factorized(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the distinct strings, and which of them each cell is."""
    cells = values.ravel().tolist()
    texts = list(dict.fromkeys(cells))
    place = {text: at for at, text in enumerate(texts)}
    return texts, np.fromiter(map(place.__getitem__, cells), np.int64, len(cells))
