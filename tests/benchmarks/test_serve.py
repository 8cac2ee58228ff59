# SPDX-License-Identifier: Apache-2.0
import pytest

from benchmarks import serve
from skest import export


@pytest.mark.slow
def test_the_benchmark_runs(capsys):
    serve.main(["--seconds", "0.1", "--clients", "1", "--starts", "1"])
    lines = capsys.readouterr().out.splitlines()
    ways = [line.split()[0] for line in lines if line]
    assert ways.count("rows") == ways.count("columns") == ways.count("tensors") == 2
    assert "cold start" in "\n".join(lines)


def test_the_model_takes_raw_values(tmp_path):
    model = export.load(serve.export_model(tmp_path))
    assert model.run(serve.columns(3))["scores"].shape == (3, 2)
    assert len(model.manifest["features"]) == 25
