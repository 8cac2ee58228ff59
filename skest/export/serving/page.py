# SPDX-License-Identifier: Apache-2.0
"""The page at ``/``: a form for each model, to ask it in a browser."""

import json
from pathlib import Path
from typing import Any

from skest.export.runtime import Model
from skest.export.serving.requests import Catalog

PATH = "/"
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    # Names of models and columns are data: they can load nothing from elsewhere.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'",
}


def page_of(catalog: Catalog) -> bytes:
    """Return the page, with the newest version of each model that is served."""
    models = {
        name: _columns(served.newest[1])
        for name, served in catalog.models.items()
        if served.newest
    }
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    # Inside of a script, "</" would end it.
    return page.replace("MODELS", json.dumps(models).replace("<", "\\u003c")).encode()


def _columns(model: Model) -> dict[str, str]:
    """Return the columns that a model takes, and how a person writes each."""
    return {
        column: _kind(model.features[feature], column != feature)
        for column, feature in model.names_of().items()
    }


def _kind(feature: Any, is_part: bool) -> str:
    is_list = any(size != 1 for size in feature["shape"][1:])
    if is_list and not is_part:
        return "json"
    if feature.get("unit"):
        return "date"
    return "string" if feature["dtype"] == "string" else "number"
