# SPDX-License-Identifier: Apache-2.0
"""Exported models without torch: NumPy and ONNX Runtime are all it takes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.core.checks import needing
from skest.exceptions import ArtifactError
from skest.export.artifact import (
    MODEL,
    WARMUP,
    Artifact,
    check_signatures,
    read_artifact,
    versions_at,
)
from skest.export.raw_values import Feature, columns_of, names_taken

# The engine keeps what it computes of all rows that it is given: kilobytes of each.
_ROWS_AT_ONCE = 8192


class Model:
    """An exported model that runs.

    Made by `load`. Calling it runs one of its signatures; several threads may do so at
    once.

    Attributes
    ----------
    path : Path
        The directory of the version.
    manifest : dict
        What is written of the model.
    features : dict
        What callers give, by name: ``dtype``, ``shape`` and more.
    signatures : dict
        By name: ``method``, ``inputs`` and ``outputs``.
    parts : dict of str to list of str
        Of features that are made of several columns of a table: which ones.
    """

    def __init__(self, artifact: Artifact, session: Any) -> None:
        self.path = artifact.path
        self.manifest = artifact.manifest
        self._session = session
        self.features: dict[str, Any] = artifact.manifest["features"]
        # Once, not in each request: one row takes about a tenth of a millisecond in all.
        self._features = {
            name: Feature(name, spec) for name, spec in self.features.items()
        }
        self.signatures: dict[str, Any] = artifact.manifest["signatures"]
        self.parts = {
            name: feature.columns
            for name, feature in self._features.items()
            if feature.columns
        }

    def __call__(self, signature: str = "serving_default", /, **features: Any) -> Any:
        """Run a signature.

        Parameters
        ----------
        signature : str, default="serving_default"
            One of `signatures`.
        **features : array-like of shape (n_rows, ...)
            Raw values by the names of the signature's inputs, or of the columns that an
            input is made of.

        Returns
        -------
        dict of str to ndarray
            The signature's outputs.

        Raises
        ------
        ValueError
            If a feature is missing or unknown, or the numbers of rows differ.
        TypeError
            If values are not what a feature takes.
        """
        taken = self.names_of(signature)
        # `run` leaves other columns of a table alone, but an argument that nothing reads
        # is a misspelt one.
        inputs = self._signature(signature)["inputs"]
        unknown = sorted(set(features) - {*inputs, *taken})
        if unknown:
            raise ValueError(
                f"The signature {signature!r} takes no features {unknown}; it takes "
                f"{list(taken)}."
            )
        return self.run(features, signature)

    def names_of(self, signature: str = "serving_default") -> dict[str, str]:
        """Return the names by which a signature is given its features.

        Parameters
        ----------
        signature : str, default="serving_default"
            One of `signatures`.

        Returns
        -------
        dict of str to str
            By name of a column the input that it belongs to. An input that is made of
            several columns may be given whole, too.
        """
        return names_taken(list(self._signature(signature)["inputs"]), self.parts)

    def run(
        self, table: Any, signature: str = "serving_default"
    ) -> dict[str, NDArray[Any]]:
        """Run a signature on a table.

        Parameters
        ----------
        table : DataFrame, dict of columns, list of dicts, or ndarray
            Raw features; a matrix is taken by a model of one feature.
        signature : str, default="serving_default"
            One of `signatures`.

        Returns
        -------
        dict of str to ndarray
            The signature's outputs.
        """
        found = self._signature(signature)
        inputs, outputs = found["inputs"], found["outputs"]
        # Of a table that has more than the model takes, the rest is left alone.
        columns = columns_of(table, list(inputs), self.parts)
        cells = {inputs[key]["tensor"]: values for key, values in columns.items()}
        names = [output["tensor"] for output in outputs.values()]
        return dict(zip(outputs, self._tensors(cells, names), strict=True))

    def _tensors(
        self, cells: Mapping[str, Any], names: list[str]
    ) -> list[NDArray[Any]]:
        """Return tensors of the model for raw features by name."""
        feeds = {name: self._features[name].feed(c) for name, c in cells.items()}
        for name, weights in cells.items():
            feature = self._features[name]
            of = feature.weighs
            # In arrays, what fills up stands beside what counts.
            if of is not None and of in cells and not isinstance(weights, np.ndarray):
                feature.check_weights(weights, cells[of], self._features[of])
        n_rows = {name: len(values) for name, values in feeds.items()}
        if len(set(n_rows.values())) > 1:
            raise ValueError(f"All features must have as many rows; got {n_rows}.")
        # Lists are filled up in all rows by now: answers of all pieces have one width.
        pieces = [
            self._session.run(
                names, {key: v[at : at + _ROWS_AT_ONCE] for key, v in feeds.items()}
            )
            for at in range(0, max(n_rows.values(), default=0), _ROWS_AT_ONCE)
        ]
        if pieces:
            return [np.concatenate(found) for found in zip(*pieces, strict=True)]
        # To sort no rows ends the process of ONNX Runtime before 1.31: one of zeros or
        # empty texts, and of lists with one item, so that those tied have as many.
        one = {name: self._features[name].one_row() for name in cells}
        return [found[:0] for found in self._session.run(names, one)]

    def predict(self, table: Any) -> Any:
        """Predict as the estimator's ``predict``.

        Parameters
        ----------
        table : DataFrame, dict of columns, list of dicts, or ndarray
            Raw features.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs), or dict of them by head
            Classes, as they were in ``y``, or predicted numbers.
        """
        return self._of_heads(table, ("labels", "predictions"))

    def predict_proba(self, table: Any) -> Any:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        table : DataFrame, dict of columns, list of dicts, or ndarray
            Raw features.

        Returns
        -------
        ndarray of shape (n_rows, n_classes), or dict of them by head
            Classes are in the order of the estimator's ``classes_``.

        Raises
        ------
        ValueError
            If the model is a regressor.
        """
        return self._of_heads(table, ("probabilities",), squeeze=False)

    def _of_heads(self, table: Any, keys: tuple[str, ...], squeeze: bool = True) -> Any:
        outputs = self._signature("predict")["outputs"]
        wanted: dict[str, str] = {}
        for name in outputs:
            # Several heads call their outputs "<head>/<key>", one head just "<key>".
            head, _, key = name.rpartition("/")
            if key in keys:
                wanted.setdefault(head, name)
        if not wanted:
            raise ValueError(f"The model predicts {list(outputs)}, but no {keys[0]}.")
        found = self.run(table, "predict")
        results = {head: found[name] for head, name in wanted.items()}
        for head, values in results.items():
            if squeeze and values.shape[1:] == (1,):
                results[head] = values[:, 0]
        return results[""] if set(results) == {""} else results

    def _signature(self, name: str) -> Any:
        if name not in self.signatures:
            raise ValueError(
                f"The model has no signature {name!r}; it has {list(self.signatures)}."
            )
        return self.signatures[name]


def load(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    trusted_manifest_sha256: str | Collection[str] | None = None,
    num_threads: int = 1,
    trial: bool = False,
) -> Model:
    """Load an exported model, after checking it.

    It needs NumPy and ONNX Runtime only. Files and digests are checked before anything
    runs, so that a damaged model is refused. A model of unknown origin runs no code, but
    may take all memory and time, or end the process: load it with ``trial=True``, and in
    any case know that it predicts what it likes. Weights beside the graph are mapped from
    their file, which must stay as it is.

    Parameters
    ----------
    path : str or path
        A version, or the directory of the versions (then the newest is taken).
    verify : bool, default=True
        Compare the digests of all files, and what the model gives for the recorded rows
        with what it gave when it was exported.
    trusted_manifest_sha256 : str or collection of str, optional
        The SHA-256 digest of ``manifest.json`` that you know by another way, or several
        of which one will do. Digests in the model show damage; this shows that it is the
        model you mean.
    num_threads : int, default=1
        Threads within one call. A server that answers many calls at once is fastest with
        one.
    trial : bool, default=False
        Load the model in a process of its own first, as `skest serve` does: a hostile
        graph can end the process that loads it, or hold it for long. There it may take a
        minute of the processor, and 2 GiB of memory besides four times the size of its
        files. It takes some tenths of a second, loading a small model some thousandths.

    Returns
    -------
    Model
        Call it, or its ``predict`` and ``predict_proba``.

    Raises
    ------
    ArtifactError
        If the model is damaged, or not what an export of skest may be; or if it fails its
        `trial`.
    FileNotFoundError
        If there is no such directory.
    ImportError
        If ``onnxruntime`` is not installed.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise FileNotFoundError(f"There is no directory {str(directory)!r}.")
    # A directory without versions is read, too: the error says what it lacks.
    *_, version = [directory, *versions_at(directory)]
    artifact = read_artifact(version, verify, trusted_manifest_sha256)
    # No ArtifactError: nothing is wrong with the model then.
    with needing("onnxruntime", "An exported model"):
        import onnxruntime
    if trial:
        try_out(artifact, verify)
    model = Model(artifact, _session(onnxruntime, artifact, num_threads))
    if artifact.warmup is not None:
        _check_warmup(model, artifact.warmup)
    return model


def _session(engine: Any, artifact: Artifact, num_threads: int) -> Any:
    """Return a session of the very bytes that were checked.

    Engines before 1.21 find weights beside the graph by its path only.
    """
    options = engine.SessionOptions()
    # Of itself, the engine takes a thread for each core.
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised
    # Its own heap is no faster, and keeps what one large request took for good.
    options.enable_cpu_mem_arena = False
    files = artifact.manifest["files"]
    is_alone = all(name in (MODEL, WARMUP) or "/" in name for name in files)
    source = artifact.model if is_alone else str(artifact.path / MODEL)
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, str(artifact.path))
    try:
        # There is one provider: a second try of it would print, and fail like the first.
        session = engine.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception as error:
        raise ArtifactError(f"ONNX Runtime refuses the graph: {error}") from error
    inputs, outputs = (
        [tensor.name for tensor in tensors]
        for tensors in (session.get_inputs(), session.get_outputs())
    )
    # The engine alone knows what the graph takes: the manifest is not to be trusted.
    check_signatures(artifact.manifest, inputs, outputs)
    return session


def _check_warmup(model: Model, text: bytes) -> None:
    """Compare what the model gives for the recorded rows with what it gave.

    All outputs are compared, and as many rows as the manifest says: a record of nothing
    would let any model pass.
    """
    try:
        # Whatever is wrong with the record means the same: it is not that of this model.
        recorded = json.loads(text)
        found = model.run(recorded["inputs"], recorded["signature"])
        n_rows = min(map(len, recorded["inputs"].values()))
        expected = {
            key: np.asarray(values, found[key].dtype)
            for key, values in recorded["outputs"].items()
        }
    except Exception as error:
        raise ArtifactError(f"{WARMUP!r} does not fit the model: {error}") from error
    missing = sorted(found.keys() - expected)
    if missing:
        raise ArtifactError(f"{WARMUP!r} has no answers for {missing} of the model.")
    parity = model.manifest.get("parity", {})
    wanted = max(1, parity.get("recorded", 0))
    if n_rows < wanted:
        raise ArtifactError(f"{WARMUP!r} has {n_rows} rows; there must be {wanted}.")
    tolerance = float(parity.get("atol", 1e-5))
    for key, values in expected.items():
        fits = found[key].shape == values.shape
        if fits and values.dtype.kind == "f":
            # A wider tolerance than at the export: there it was the same machine, and here
            # another processor may round otherwise.
            fits = np.allclose(found[key], values, 1e-4, tolerance, equal_nan=True)
        elif fits:
            fits = bool(np.array_equal(found[key], values))
        if not fits:
            raise ArtifactError(
                f"The model gives other {key!r} here than where it was exported. Use "
                "another version of what runs it, and report it."
            )


# A version can be loaded in a process of its own first, which may die of it: engines are
# written in C++, and a hostile graph can end the process that loads it, or take all the
# memory and time that there is.
SECONDS = 60
"""Of the processor. A process that waits for a slow disk takes none."""
MEMORY = 2**31
"""Bytes, besides four times those of the version's files, which are read, copied, unpacked,
and packed for the processor."""

_CHILD = "from skest.export import runtime; runtime.run_in_child()"
# On the clock, as a multiple of SECONDS: other processes may take the processor.
_WAITING = 10
_PER_BYTE = 4
_REFUSED, _LACKS_MEMORY = 3, 4
_LONGEST = 1000
_TEXTS = ("Failed to allocate memory", "bad_alloc", "bad allocation")


def try_out(artifact: Artifact, verify: bool) -> None:
    """Load a version in another process, with limits; return if it may be loaded here.

    Where the system has no such limits (memory on macOS, both on Windows), only the time
    on the wall is limited, to ten times `SECONDS`.

    Parameters
    ----------
    artifact : Artifact
        The version. The process reads it again, as the same digest tells.
    verify : bool
        See `skest.export.load`.

    Raises
    ------
    ArtifactError
        If the version is refused there, or takes too much, or ends the process.
    """
    # What a large model may take grows with it, and the limit on all else stays.
    size = sum(entry["size"] for entry in artifact.manifest["files"].values())
    memory = MEMORY + _PER_BYTE * size
    task = {
        "limits": [SECONDS, memory],
        "path": str(artifact.path),
        "trusted_manifest_sha256": artifact.manifest_sha256,
        "verify": verify,
    }
    # It finds what this process finds; threads would each take memory for nothing.
    there = {"PYTHONPATH": os.pathsep.join(sys.path)}
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    more = "if you trust it, load it without a trial"
    too_slow = f"takes more than {SECONDS} seconds; {more}"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD, json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **there, **one},
            timeout=_WAITING * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = too_slow
    else:
        # A process that dies says nothing, so that its status has to.
        status = done.returncode
        if status == 0:
            return
        if status == _REFUSED:
            raise ArtifactError(done.stdout.decode(errors="replace"))
        what = f"ends the process with the status {status}"
        if status == _LACKS_MEMORY:
            what = f"takes more than {memory} bytes of memory; {more}"
        elif status == -getattr(signal, "SIGXCPU", 0):
            what = too_slow
    raise ArtifactError(
        f"{str(artifact.path)!r} is refused: tried in a process of its own, it {what}."
    )


def run_in_child() -> None:
    """Load the version that the command line names, within its limits."""
    task = json.loads(sys.argv[1])
    _limit(*task.pop("limits"))
    try:
        load(**task)
    except Exception as error:
        sys.stdout.buffer.write(str(error)[:_LONGEST].encode(errors="replace"))
        sys.exit(_LACKS_MEMORY if lacks_memory(error) else _REFUSED)


def lacks_memory(error: BaseException) -> bool:
    """Tell whether memory was refused; an engine says so by its words only.

    Examples
    --------
    >>> from skest.export.runtime import lacks_memory
    >>> lacks_memory(MemoryError()), lacks_memory(RuntimeError("std::bad_alloc"))
    (True, True)
    """
    if isinstance(error, MemoryError) or any(text in str(error) for text in _TEXTS):
        return True
    return error.__cause__ is not None and lacks_memory(error.__cause__)


def _limit(seconds: int, memory: int) -> None:
    # Where the whole machine lacks memory this process is the one to go.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        import resource
    except ImportError:  # on Windows
        return
    # The last one: the dump of a process of gigabytes would fill the disk.
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (soft, hard))
