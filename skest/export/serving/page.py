# SPDX-License-Identifier: Apache-2.0
"""The page at ``/``: a form for each model, to ask it in a browser."""

import json
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

_PAGE = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>skest</title>
<meta name="viewport" content="width=device-width">
<style>
 body {font: 16px system-ui; max-width: 42rem; margin: 2rem auto; padding: 0 1rem}
 label {display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: .3rem 0}
 input {font: inherit} td, th {text-align: left; padding: .1rem 1rem .1rem 0}
</style>
<main></main>
<script>
const models = MODELS;
function add(parent, tag, text) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}
function text(value) {
  if (Array.isArray(value)) return value.map(text).join(", ");
  return typeof value === "number" ? +value.toPrecision(6) : String(value);
}
function show(output, row) {
  output.replaceChildren();
  const table = add(output, "table");
  let lines = [["prediction", row]];
  if (row.classes && row.scores)
    lines = [["class", "probability"], ...row.classes.map((c, i) => [c, row.scores[i]])];
  else if (typeof row === "object" && !Array.isArray(row)) lines = Object.entries(row);
  for (const [name, value] of lines) {
    const line = add(table, "tr");
    add(line, "th", name);
    add(line, "td", text(value));
  }
}
function cell(text, type) {
  if (text === "") return type === "string" ? "" : null;
  if (type === "string" || type === "date") return text;
  if (type !== "json") return Number(text);
  try { return JSON.parse(text); } catch { return text; }
}
for (const [model, columns] of Object.entries(models)) {
  add(document.querySelector("main"), "h1", model);
  const form = add(document.querySelector("main"), "form");
  for (const [name, type] of Object.entries(columns)) {
    const input = add(add(form, "label", name), "input");
    input.name = name;
    if (type === "number") { input.type = "number"; input.step = "any"; }
    if (type === "json") input.placeholder = "JSON, such as [1, 2]";
    if (type === "date") input.placeholder = "a date, such as 2026-05-31T18:30";
  }
  add(form, "button", "Ask");
  const output = add(form, "output");
  form.onsubmit = async (event) => {
    event.preventDefault();
    const row = {};
    for (const [name, type] of Object.entries(columns))
      row[name] = cell(form.elements.namedItem(name).value, type);
    const url = "v1/models/" + encodeURIComponent(model) + ":predict";
    try {
      const answer = await fetch(
        url, {method: "POST", body: JSON.stringify({instances: [row]})});
      const found = await answer.json();
      if (found.error) output.textContent = found.error;
      else show(output, found.predictions[0]);
    } catch (error) { output.textContent = String(error); }
  };
}
</script></html>
"""


def page_of(catalog: Catalog) -> bytes:
    """Return the page, with the newest version of each model that is served."""
    models = {
        name: _columns(served.newest[1])
        for name, served in catalog.models.items()
        if served.newest
    }
    # Inside of a script, "</" would end it.
    return _PAGE.replace("MODELS", json.dumps(models).replace("<", "\\u003c")).encode()


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
