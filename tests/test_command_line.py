# SPDX-License-Identifier: Apache-2.0
import gzip
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import skest
from skest import DNNRegressor
from skest.command_line import main
from skest.export import load

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with tables and a model that was trained on one."""
    home = tmp_path_factory.mktemp("home")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "id": [f"row {i}" for i in range(300)],
            "age": rng.integers(18, 80, 300),
            "city": rng.choice(["Bern", "Oslo", "Rome"], 300),
            "pay": rng.normal(100, 20, 300),
        }
    )
    table["rich"] = np.where(
        table["age"] + 30 * (table["city"] == "Oslo") > 60, "y", "n"
    )
    table.loc[5, "rich"] = None
    table.to_csv(home / "people.csv", index=False)
    table.to_parquet(home / "people.parquet")
    table.drop(columns=["id", "rich"])[:7].to_csv(home / "new.csv", index=False)
    (home / "semicolons.csv").write_text("a;b\n1;2\n3;4\n")
    table.assign(prediction=1).to_csv(home / "prediction.csv", index=False)
    (home / "empty.csv").write_text("")
    (home / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n3,x\n")[:-9])
    (home / "constant.csv").write_text("a,b\n1,x\n3,x\n")
    (home / "names.csv").write_text("a,b\n1,x\n3,y\n")
    (home / "other").mkdir()
    (home / "other" / "file").write_text("")
    (home / "gaps.csv").write_text("a,b\n1,\n3,\n")
    (home / "tabs.csv").write_text("a\tb\n1\t2\n3\t4\n5\t6\n")
    (home / "text.csv").write_text("age,city,pay\n31,Bern,80\nold,Oslo,99\n")
    small = "--set max_iter=4 --set dnn_hidden_units=16"
    assert run(home, f"train people.csv --target rich -o model {small}") == 0
    assert run(home, "export model -o served --example people.csv") == 0
    (home / "edited").mkdir()
    (home / "edited" / "model.joblib").write_bytes(
        (home / "model" / "model.joblib").read_bytes()
    )
    (home / "edited" / "report.json").write_text("{}")
    report = (home / "model" / "report.json").read_text()
    for name, content in (("damaged", b""), ("foreign", pickle.dumps(7))):
        (home / name).mkdir()
        (home / name / "model.joblib").write_bytes(content)
        (home / name / "report.json").write_text(report)
    return home


def run(home, line):
    """Run a command in a directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        return main(line.split())


def answer(home, line, capsys):
    """Return what a command answers in JSON."""
    assert run(home, f"{line} --json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "skest", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"skest {skest.__version__}\n"


@pytest.mark.skipif(not PROJECT.exists(), reason="tests run outside a checkout")
def test_the_script_is_installed():
    scripts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, name = scripts["skest"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_from_a_file_to_a_server(home, capsys):
    files = {path.name for path in (home / "model").iterdir()}
    assert files == {"model.joblib", "report.json", "training_curve.png"}
    report = json.loads((home / "model" / "report.json").read_text())
    assert report["metrics"]["accuracy"] > report["metrics"]["accuracy_baseline"]
    assert (report["rows_trained"], report["rows_held_out"]) == (239, 60)

    found = answer(home, "evaluate model people.parquet", capsys)
    assert found["rows"] == 299
    assert found["metrics"]["accuracy"] > 0.8

    assert run(home, "predict model new.csv -o answers.csv --keep city") == 0
    assert capsys.readouterr().out == "Wrote 7 rows to answers.csv\n"
    answers = pd.read_csv(home / "answers.csv")
    assert list(answers) == ["city", "prediction", "probability_n", "probability_y"]
    printed = answer(home, "predict model new.csv", capsys)
    assert [row["prediction"] for row in printed] == list(answers["prediction"])
    exported = load(home / "served").predict(pd.read_csv(home / "new.csv"))
    assert exported.tolist() == list(answers["prediction"])


def test_what_export_says_can_be_asked(home, capsys):
    assert run(home, "export model -o served --example people.csv") == 0
    request = capsys.readouterr().out.splitlines()[-1].strip().strip("'")
    (row,) = json.loads(request)["instances"]
    assert row == pytest.approx(
        pd.read_csv(home / "people.csv").iloc[0][["age", "city", "pay"]].to_dict()
    )


def test_inspect(home, capsys):
    assert run(home, "inspect model") == 0
    assert 'What "auto" chose' in capsys.readouterr().out
    assert answer(home, "inspect model", capsys)["target"] == "rich"
    found = answer(home, "inspect served", capsys)
    assert list(found["features"]) == ["age", "city", "pay"]
    assert run(home, "inspect served") == 0
    assert "classes, scores" in capsys.readouterr().out


def test_inspect_a_model_dir(tmp_path, capsys):
    config = skest.RunConfig(model_dir=tmp_path / "fits")
    X, y = np.eye(4), [0.0, 1.0, 2.0, 3.0]
    model = skest.LinearRegressor(max_iter=3, tol=1, config=config).fit(X, y)
    found = answer(tmp_path, f"inspect {model.model_dir_}", capsys)
    assert (found["kind"], found["global_step"]) == ("model_dir", 3)
    checkpoint = model.model_dir_ / found["latest"]
    found = answer(tmp_path, f"inspect {checkpoint}", capsys)
    assert found["variables"] == {"bias": [1], "x_weights": [4, 1]}
    assert run(tmp_path, f"inspect {model.model_dir_}") == 0
    said = capsys.readouterr().out
    assert "training goes on from ckpt-3\nThe last training ended: " in said
    assert run(tmp_path, "inspect fits") == 2
    assert model.model_dir_.name in capsys.readouterr().err


def test_an_export_predicts_as_its_model_does(home, capsys):
    assert run(home, "predict model people.csv -o of_model.csv --keep id") == 0
    assert run(home, "predict served people.csv -o of_export.csv --keep id") == 0
    tables = [pd.read_csv(home / f"of_{name}.csv") for name in ("model", "export")]
    pd.testing.assert_frame_equal(*tables, atol=1e-5)
    people = pd.read_csv(home / "new.csv")
    several = DNNRegressor(4, max_iter=1).fit(people[["city"]], np.eye(7)[:, :2])
    several.export(home / "several")
    capsys.readouterr()
    assert run(home, "predict several new.csv") == 2
    assert "'several' has several answers for a row" in capsys.readouterr().err


def test_a_package_that_is_not_there(home, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "skest.command_line.kept_model", raising=False)
    assert run(home, "predict served new.csv") == 2
    error = capsys.readouterr().err
    assert re.fullmatch("skest predict: error: .*`pip install pandas`.\n", error)


def test_classes_of_a_single_row_are_trained_and_not_measured(home, capsys):
    names = ["a", "b"] * 40 + [f"n{i}" for i in range(20)]
    rare = pd.DataFrame({"x": np.arange(100.0), "name": names})
    rare.to_csv(home / "rare.csv", index=False)
    line = "train rare.csv --target name --model baseline --json -o rare"
    found = answer(home, line, capsys)
    assert len(found["classes"]) == 22
    assert found["rows_trained"] > 80
    assert found["rows_trained"] + found["rows_held_out"] == 100


def test_numbers_that_name_things(home, capsys):
    shops = pd.DataFrame({"shop_id": [7, 12, None, 40] * 30, "sold": [1, 5, 2, 9] * 30})
    shops.to_csv(home / "shops.csv", index=False)
    line = "train shops.csv --target sold --category shop_id --task regression"
    assert run(home, f"{line} --model linear --quiet -o shops") == 0
    assert "id or a code" not in capsys.readouterr().err
    assert run(home, "inspect shops") == 0
    assert "levels 7, 12, 40" in capsys.readouterr().out
    assert run(home, "export shops -o shops-export --example shops.csv") == 0
    shops.iloc[:1].to_csv(home / "shop.csv", index=False)
    for model in ("shops", "shops-export"):
        assert run(home, f"predict {model} shop.csv -o sold.csv") == 0
        (sold,) = pd.read_csv(home / "sold.csv")["prediction"]
        assert sold < 3


def test_codes_stay_strings_in_files_where_all_look_like_numbers(home, capsys):
    rng = np.random.default_rng(0)
    codes = rng.choice(["007", "12", "A7", "A12"], 400)
    rows = pd.DataFrame(
        {
            "code": codes,
            "text": np.where(
                rng.random(400) < 0.2, " ", rng.normal(size=400).astype(str)
            ),
            "flag": rng.random(400) < 0.5,
            "x": rng.normal(size=400),
            "kind": np.where(np.char.startswith(codes, "A"), "A", "1"),
        }
    )
    rows.to_csv(home / "codes.csv", index=False)
    assert run(home, "train codes.csv --target kind -o codes --model linear") == 0
    report = json.loads((home / "codes" / "report.json").read_text())
    assert report["strings"] == ["code", "text", "kind"]
    (home / "digits.csv").write_text(
        "code,text,flag,x,kind\n12,1.5,true,0.5,1\n007,,false,,1\n"
    )
    assert run(home, "export codes -o codes-export --example digits.csv") == 0
    (home / "blank.csv").write_text("code,text,flag,x\n,2,TRUE,0.5\nNA,2,True,0.5\n")
    capsys.readouterr()
    for model in ("codes", "codes-export"):
        digits = answer(home, f"predict {model} digits.csv", capsys)
        assert [row["prediction"] for row in digits] == ["1", "1"]
        blank, na = answer(home, f"predict {model} blank.csv", capsys)
        assert blank == na
    assert answer(home, "evaluate codes digits.csv", capsys)["rows"] == 2
    # Types are guessed for a model that does not say which columns held strings.
    del report["strings"]
    (home / "codes" / "report.json").write_text(json.dumps(report))
    rows[2:].to_csv(home / "more.csv", index=False)
    assert run(home, "predict codes more.csv") == 0


def test_blank_cells_of_a_target_are_gaps(home, capsys):
    rows = "".join(f"{i},{i / 2 if i % 5 else ' '}\n" for i in range(50))
    (home / "blanks.csv").write_text(f"a,b\n{rows}")
    line = "train blanks.csv --target b --task regression --model baseline -o blanks"
    assert run(home, line) == 0
    assert "Left out 10 rows without 'b'" in capsys.readouterr().out
    assert answer(home, "evaluate blanks blanks.csv", capsys)["rows"] == 40


def test_targets_as_they_are_written(home, capsys):
    rows = "".join(f"{i},{i / 2 if i % 5 else '-'},\n" for i in range(50))
    (home / "marks.csv").write_text(f"a,b\n{rows}")  # a comma behind each row
    line = "train marks.csv --target b --model linear --quiet -o marks"
    report = answer(home, line, capsys)
    assert (report["task"], report["features"]) == ("regression", ["a"])
    assert answer(home, "evaluate marks marks.csv", capsys)["rows"] == 40
    rows = "".join(
        f"{i},{'yes' if i % 2 else 'no'}{' ' * (i % 3)}\n" for i in range(50)
    )
    (home / "spaces.csv").write_text(f"a,b\n{rows}")
    line = "train spaces.csv --target b --model baseline --quiet -o spaces"
    assert answer(home, line, capsys)["classes"] == ["no", "yes"]


def test_metrics_say_which_class_they_are_of(home, capsys):
    for line in ("evaluate model people.csv", "inspect model"):
        assert run(home, line) == 0
        assert "recall, auc and means are those of 'y'" in capsys.readouterr().out


def test_of_many_classes_the_most_frequent_one_is_to_be_beaten(home, capsys):
    line = "train people.csv --target city --model linear --set max_iter=1 --quiet"
    answer(home, f"{line} -o cities", capsys)
    metrics = answer(home, "evaluate cities people.csv", capsys)["metrics"]
    shares = pd.read_csv(home / "people.csv")["city"].value_counts(normalize=True)
    assert metrics["accuracy_baseline"] == pytest.approx(shares.max())


def test_numbers_are_predicted(home, capsys):
    line = "train people.csv --target pay --model linear --set max_iter=2 --quiet -o"
    report = answer(home, f"{line} linear --drop id --weight age", capsys)
    assert report["task"] == "regression"
    assert report["features"] == ["city", "rich"]
    metrics = report["metrics"]
    assert metrics["rmse"] == pytest.approx(metrics["average_loss"] ** 0.5)
    assert run(home, f"{line} linear --holdout 0 --overwrite") == 0
    assert "held out:" not in capsys.readouterr().out
    tabs = "train tabs.csv --separator \\t --target b --task regression -o tabs"
    assert run(home, f"{tabs} --model baseline") == 0
    capsys.readouterr()
    assert run(home, "predict linear people.csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == "prediction"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train no.csv --target a -o m", "'no.csv' can't be read: No such file"),
        ("train empty.csv --target a -o m", "'empty.csv' is no table"),
        (
            "train cut.csv.gz --target a -o m",
            "'cut.csv.gz' is no table that can be read",
        ),
        ("train people.csv --target RICH -o m", "mean 'rich'? There is: id, age, city"),
        ("train semicolons.csv --target b -o m", "give their --separator"),
        ("train people.csv --target rich -o other", "something else at 'other'"),
        ("train people.csv --target rich -o model", "or --overwrite"),
        ("train people.csv --target rich -o new.csv/m", "can't be written"),
        ("train people.csv --target rich -o m --holdout 1", "--holdout must be"),
        ("train people.csv --target rich -o m --drop x", "no column 'x' for --drop"),
        ("train people.csv --target rich -o m --drop rich", "that is the target"),
        ("train people.csv --target age -o m --weight age", "--weight age: that is"),
        ("train people.csv --target rich -o m --category x", "'x' for --category"),
        ("train people.csv --target rich -o m --weight city", "must hold numbers"),
        ("train people.csv --target rich -o m --set a", "--set takes NAME=VALUE"),
        ("train people.csv --target rich -o m --set lr=1", "use 'learning_rate'"),
        ("train people.csv --target rich -o m --set max_itr=1", "mean 'max_iter'?"),
        ("train people.csv --target city -o m --task regression", "must hold numbers"),
        ("train people.csv --target rich -o m --seed -1", "--seed must not be"),
        ("train gaps.csv --target b -o m", "No row has the target 'b'"),
        ("train constant.csv --target b -o m", "has one value only"),
        ("train names.csv --target b -o m", "or --task regression if these are"),
        ("evaluate model new.csv", "no column 'rich' for the target"),
        ("evaluate damaged people.csv", "can't be loaded"),
        ("evaluate edited people.csv", "its report is not the one"),
        ("evaluate foreign people.csv", "its file is not the one"),
        ("inspect edited", "its report is not the one"),
        ("predict model text.csv", "must hold numbers; got the string 'old'"),
        ("predict model prediction.csv --keep prediction", "answer has that name"),
        ("predict other new.csv", "There is no model in 'other'"),
        ("predict model semicolons.csv", "no column 'age' for the model"),
        ("predict model new.csv -o no/where.csv", "was not written"),
        ("predict model new.csv -o a.xlsx", "ends with .csv or .parquet"),
        ("export model -o model", "'model' is the directory of a model"),
        ("export model -o x --example text.csv", "got the string 'old'"),
        ("export other -o x", "There is no model in 'other'"),
        ("evaluate served people.csv", "'served' is an export, which `skest predict`"),
        ("export served -o x", "'served' is an export"),
        ("predict served semicolons.csv", "no column 'age' for the model"),
        ("inspect no", "There is no directory 'no'"),
        ("inspect other", "is no model of `skest train`"),
        ("serve model", "skest export model"),
    ],
)
def test_wrong_input_gets_one_line(home, line, message, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # of `serve`
    assert run(home, line) == 2
    out, err = capsys.readouterr()
    # Warnings of columns, such as ids, may come before.
    *_, said = err.splitlines()
    assert said.startswith(f"skest {line.split()[0]}: error: ")
    assert message in said
    assert "Saved" not in out
    assert not (home / "m").exists()


def test_the_target_is_never_suggested_as_a_feature(tmp_path, capsys):
    (tmp_path / "train.csv").write_text("price,prices,rise\n" + "1,2.5,3\n2,3,4\n" * 9)
    (tmp_path / "new.csv").write_text("prices,rise,Rice\n2.5,3,4\n")
    line = "train train.csv --target prices --task regression --model baseline -o model"
    assert run(tmp_path, line) == 0
    assert run(tmp_path, "predict model new.csv") == 2
    said = capsys.readouterr().err
    assert "for the model. Did you mean 'Rice'? There is: prices, rise, Rice" in said


def test_it_goes_on_when_nobody_reads(home, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    for line in (
        "train names.csv --target a --task regression --model baseline -o piped",
        "predict model new.csv -o piped.csv",
        "inspect model",
    ):
        with open(os.dup(writer), "w", buffering=1) as out, monkeypatch.context() as m:
            m.setattr("sys.stdout", out)
            assert run(home, line) == 0
    os.close(writer)
    monkeypatch.setattr("sys.stdout", None)
    assert run(home, "inspect model") == 0
    assert (home / "piped" / "report.json").exists()
    assert (home / "piped.csv").exists()


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("--version", 0, "skest 0."),
        ("--help", 0, "  train "),
        ("serve --help", 0, "usage: skest serve "),
        ("train --help", 0, "usage: skest train "),
        ("serve --port 1", 2, "skest .* error: .* required: .NAME=.PATH. See `skest"),
        (
            "train a.csv --target b -o m --model forest",
            2,
            "choice: 'forest' .* --help`",
        ),
        ("train a.csv --target b -o m --separator ;;", 2, "must be one .* got ';;'"),
        ("--fly", 2, "skest: error: unrecognized arguments: --fly"),
        ("fly", 2, "skest: error: .* choice: 'fly'"),
        ("", 2, "skest: error: give a command: train, "),
    ],
)
def test_command_lines(home, line, status, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(home, line)
    assert stopped.value.code == status
    out, err = capsys.readouterr()
    assert re.search(message, out + err)
    assert status == 0 or err.count("\n") == 1


def test_it_imports_nothing_heavy(home):
    code = (
        "import sys, contextlib\n"
        "from skest.command_line import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['serve', '--help'])\n"
        f"main(['inspect', {str(home / 'served')!r}])\n"
        f"main(['inspect', {str(home / 'model')!r}])\n"
        "heavy = ('torch', 'sklearn', 'onnx')\n"
        "print([n for n in (*heavy, 'pandas') if n in sys.modules])\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['train', '--help'])\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n[]\n") == 2
