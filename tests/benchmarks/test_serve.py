# SPDX-License-Identifier: Apache-2.0
import pytest

from benchmarks import peers, serve

pytest.importorskip("onnxruntime")


@pytest.mark.nightly
def test_the_benchmark_runs(capsys, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{serve.START}\nformer\n{serve.END}\nBehind.\n")
    monkeypatch.setattr(serve, "PAGE", page)

    def fail(environment):
        raise RuntimeError("no network")

    monkeypatch.setattr(peers.Environment, "interpreter", fail)
    quick = ("--seconds", "0.1", "--clients", "1", "--starts", "1", "--share", "0.02")
    serve.main([*quick, "--write"])
    printed = capsys.readouterr()
    assert printed.err.count("tf.estimator does not take part: no network") == 2
    ways = [line.split(" | ")[0] for line in printed.out.splitlines()]
    assert ways.count("| rows") == ways.count("| columns") == 2
    assert "| cold start" in ways
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("Behind.\n")
    assert printed.out.strip() in text and "former" not in text
