# SPDX-License-Identifier: Apache-2.0
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from skest.command_line import main

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.mark.skipif(not PROJECT.exists(), reason="tests run outside a checkout")
def test_the_script_is_installed():
    scripts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, name = scripts["skest"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_command_lines(capsys, monkeypatch):
    for arguments, status, message in [
        (["--version"], 0, "skest 0."),
        (["--help"], 0, "usage: skest "),
        (["serve", "--help"], 0, "usage: skest serve "),
        (["serve", "--port", "1"], 2, "required: [NAME=]PATH"),
        (["serve", "no-such-directory"], 2, "There is no directory"),
        (["train"], 2, "invalid choice: 'train'"),
        ([], 2, "required: command"),
    ]:
        serve = importlib.import_module("skest.export.serve")
        monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == status
        out, err = capsys.readouterr()
        assert message in out + err


def test_it_imports_nothing_heavy():
    code = (
        "import sys, contextlib\n"
        "from skest.command_line import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['serve', '--help'])\n"
        "print([n for n in ('torch', 'sklearn', 'pandas', 'onnx') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("\n[]\n")
