# SPDX-License-Identifier: Apache-2.0
"""The page at ``/``."""

import json
import re
import shutil
import subprocess
import urllib.request

import pandas as pd
import pytest

import skest
from skest.export.serving.server import ModelServer
from tests.export.serving import _single
from tests.export.serving._clients import Client

# What of a browser the script of the page needs.
_BROWSER = """
class Node {
  constructor(tag) { this.tag = tag; this.nodes = []; this.textContent = ""; }
  appendChild(node) { this.nodes.push(node); return node; }
  replaceChildren() { this.nodes = []; }
  get elements() {
    const all = this.nodes.flatMap((node) => [node, ...node.nodes]);
    return {namedItem: (name) => all.find((node) => node.name === name)};
  }
}
const main = new Node("main");
const document = {
  createElement: (tag) => new Node(tag), querySelector: () => main};
const asked = fetch;
fetch = (url, options) => asked(process.argv[2] + "/" + url, options);
"""
_ASK = """
const [title, form] = main.nodes;
form.elements.namedItem("x").value = "21.00000001";
form.onsubmit({preventDefault() {}}).then(() => {
  const output = form.nodes.at(-1);
  const text = (node) => node.textContent + node.nodes.map(text).join(" ");
  console.log(JSON.stringify([title.textContent, text(output)]));
});
"""


def test_a_browser_finds_a_form(tmp_path):
    _single.write(tmp_path / "double" / "1700000000")
    with ModelServer({"double": tmp_path / "double"}, port=0) as server:
        with urllib.request.urlopen(server.url) as answer:
            page = answer.read().decode()
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        (models,) = re.findall("const models = (.*);", page)
        assert json.loads(models) == {"double": {"x": "number"}}
        node = shutil.which("node")
        if node is None:
            pytest.skip("there is no node to run the script of the page")
        script = re.search("<script>(.*)</script>", page, re.S)[1]
        (tmp_path / "page.js").write_text(_BROWSER + script + _ASK)
        command = [node, tmp_path / "page.js", server.url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["double", "prediction 42"]


def test_names_are_no_markup(tmp_path):
    shape = {"dtype": "float64", "shape": [None, 1]}
    part = {"x": {**shape, "shape": [None, 1], "columns": ["</script><b>"]}}
    _single.write(tmp_path / "m" / "1", features=part)
    with ModelServer({"m": tmp_path / "m"}, port=0) as server:
        page = urllib.request.urlopen(server.url).read().decode()
    assert r"\u003c/script>\u003cb>" in page
    assert page.count("</script>") == 1


def test_dates_are_asked_for_as_such(tmp_path):
    days = pd.date_range("2026-01-30", periods=40, freq="31h")
    X = pd.DataFrame({"day": days.astype(str), "n": range(40)})
    model = skest.LinearClassifier(max_iter=2).fit(X, days.day_of_week > 3)
    model.export(tmp_path)
    with ModelServer({"m": tmp_path}, port=0) as server:
        page = urllib.request.urlopen(server.url).read().decode()
        assert '"day": "date"' in page
        ask = Client(server)
        _, described = ask("/v2/models/m")
        (unit,) = [t["parameters"] for t in described["inputs"] if t["name"] == "day"]
        assert unit == {"unit": "microseconds since 1970-01-01 UTC"}
        row = {"day": str(days[3]), "n": 3}
        document = {"instances": [row], "signature_name": "predict"}
        _, found = ask("/v1/models/m:predict", document)
        ask.close()
    expected = model.predict_proba(X[3:4])[0]
    assert found["predictions"][0]["probabilities"] == pytest.approx(expected, abs=1e-5)
