# SPDX-License-Identifier: Apache-2.0
"""Vocabulary files as lists of their words, for a description that needs no other file."""

from collections.abc import Iterable
from typing import Any

from skest.exceptions import ExportError
from skest.export.plain_json import KIND, containers_in
from skest.plain_state import from_plain

__all__ = ["check_ids", "columns_of_files", "with_words"]

_OF_A_FILE = "skest.feature_columns.vocabulary_file:VocabularyFileColumn"
_OF_A_LIST = "skest.feature_columns.vocabulary:VocabularyListColumn"


def with_words(plain: Any, columns: Iterable[dict[str, Any]]) -> Any:
    """Make columns of a vocabulary file columns of a vocabulary list.

    Their ids stay as they are, and a fit needs the file no more.

    Parameters
    ----------
    plain : object
        What `skest.plain_state.to_plain` gives; it stays as it is.
    columns : iterable of dict
        The `columns_of_files` in it.

    Raises
    ------
    ExportError
        If a column was not fitted, and its file cannot be read.
    """
    known: dict[Any, list[Any]] = {}
    for state in columns:
        if "vocabulary_" in state:
            known[_source(state)] = list(from_plain(state["vocabulary_"]))
    return _replaced(plain, known)


def columns_of_files(
    descriptions: Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the states of the columns that take their words from a file.

    Parameters
    ----------
    descriptions : iterable of dict
        What `skest.export.plain_json.descriptions_in` gives.
    """
    return [found["state"] for found in descriptions if found[KIND] == _OF_A_FILE]


def check_ids(plain: Any) -> None:
    """Raise ValueError unless words that columns have learned are counted from 0 on.

    Parameters
    ----------
    plain : object
        What `skest.plain_state.to_plain` gives.
    """
    if isinstance(plain, dict) and isinstance(plain.get("vocabulary_"), dict):
        learned = plain["vocabulary_"]
        has_pairs = KIND in learned
        ids = [i for _, i in learned["items"]] if has_pairs else [*learned.values()]
        if ids != list(range(len(ids))) or not {int}.issuperset(map(type, ids)):
            raise ValueError("words of a vocabulary must have the ids 0, 1, 2, ...")
    for part in containers_in(plain):
        check_ids(part)


def _replaced(value: Any, known: dict[Any, list[Any]]) -> Any:
    if isinstance(value, dict) and value.get(KIND) == _OF_A_FILE:
        return {KIND: _OF_A_LIST, "state": _of_a_list(value, known)}
    if not containers_in(value):
        return value
    if isinstance(value, dict):
        return {key: _replaced(item, known) for key, item in value.items()}
    return type(value)(_replaced(item, known) for item in value)


def _of_a_list(column: dict[str, Any], known: dict[Any, list[Any]]) -> dict[str, Any]:
    state = dict(column["state"])
    source = _source(state)
    if source not in known:  # a parameter that was set after the fit
        try:
            known[source] = list(from_plain(column).vocabulary)
        except ValueError as error:
            raise ExportError(str(error)) from error
    del state["vocabulary_file"], state["vocabulary_size"]
    if state["default_value"] is None:
        state["default_value"] = -1
    own = {"vocabulary_list": known[source], "min_frequency": 1, "max_categories": None}
    return {**state, **own}


def _source(state: dict[str, Any]) -> Any:
    file = from_plain(state["vocabulary_file"])
    return str(file), state["vocabulary_size"], state["dtype"]
