# SPDX-License-Identifier: Apache-2.0
"""The web page of examples/web runs an exported model in a browser."""

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.export import _engines
from tests.integration import _chromium

WEB = Path(__file__).parents[2] / "examples" / "web"
CENSUS = Path(__file__).parents[3] / "shared" / "data" / "adult"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_chromium.EXECUTABLE is None, reason="there is no Chromium"),
    pytest.mark.skipif(sys.platform == "win32", reason="pipes are those of POSIX"),
]

# Fill in the form as somebody who types, and wait for an answer of the model.
FILL = """
(async (person) => {
  const form = document.querySelector("#person");
  for (const [name, value] of Object.entries(person)) form.elements[name].value = value;
  const answer = document.querySelector("#answer");
  const changed = new Promise((resolve) =>
    new MutationObserver(resolve).observe(answer, { childList: true }));
  form.dispatchEvent(new Event("input"));
  await changed;
  return Array.from(answer.querySelectorAll("data"), (data) => Number(data.value));
})
"""


@pytest.fixture(scope="module")
def table():
    sys.path[:0] = [str(WEB), str(WEB.parent)]
    try:
        from mixed_tables import load_census, load_fair

        yield load_census(CENSUS, offline=True) if CENSUS.is_dir() else load_fair()
    finally:
        del sys.path[:2]


@pytest.fixture(scope="module")
def page(table, tmp_path_factory):
    """A browser that shows the page, and the model that it shows."""
    import export_census

    _engines.install_packages()
    engine = _engines.NODE / "node_modules" / "onnxruntime-web" / "dist"
    model = export_census.train(table, epochs=2)
    site = tmp_path_factory.mktemp("site")
    export_census.make_site(site, model, export_census.fields_of(table), engine)
    server = export_census.serve(site, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with _chromium.Chromium(tmp_path_factory.mktemp("profile")) as browser:
            browser.open(f"http://127.0.0.1:{server.server_port}/")
            wait_for_answer(browser, "%")
            yield browser, model, site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_for_answer(browser, expected):
    """Wait until a text is shown that holds another, or says that all is lost."""
    for _ in range(600):
        text = browser.evaluate("document.querySelector('#answer')?.innerText ?? ''")
        if expected in text or "does not run" in text:
            break
        time.sleep(0.1)
    assert expected in text


def typed(row):
    """What somebody types who is such a row."""
    missing = row.isna()
    return {name: "" if missing[name] else str(row[name]) for name in row.index}


def test_the_page_shows_what_the_estimator_predicts(page, table):
    browser, model, _ = page
    rows = table.X_test[[*table.numeric, *table.categorical]]
    known = rows.notna().all(axis=1)
    picked = pd.concat([rows[known].iloc[:15], rows[~known].iloc[:5]])
    expected = model.predict_proba(picked)
    shown = [
        browser.evaluate(f"{FILL}({json.dumps(typed(row))})")
        for _, row in picked.iterrows()
    ]
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    names = browser.evaluate(
        "Array.from(document.querySelectorAll('.class span'), (s) => s.innerText)"
    )
    assert names == list(model.classes_)


def test_a_damaged_model_is_refused(page):
    browser, _, site = page
    model = site / "model" / "model.onnx"
    whole = model.read_bytes()
    model.write_bytes(whole[:-1] + b"?")
    try:
        browser.open(browser.evaluate("location.href"))
        wait_for_answer(browser, "The model does not run here")
    finally:
        model.write_bytes(whole)
