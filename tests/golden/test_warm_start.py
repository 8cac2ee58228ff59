# SPDX-License-Identifier: Apache-2.0
"""Warm starts of linear models against tf.estimator: the cases of semantics.json."""

from functools import partial

import numpy as np
import torch

from skest import Estimator, VocabInfo, WarmStartSettings
from skest import feature_columns as fc
from skest.canned.linear import linear_model_fn
from skest.checkpoints.checkpoint import Checkpoint
from skest.heads import BinaryClassHead
from skest.inputs import ArrayDataset
from tests.golden._cases import check_each, decode, refuse_unread
from tests.golden.test_semantics import expected_of, of, raises

LIKE_TENSORFLOW = {"linear/linear_model/": "", "bias_weights": "bias", "/": "_"}


def name_of(tensorflow_name):
    """Return the name of a variable, or of a pattern of names, in skest."""
    for theirs, ours in LIKE_TENSORFLOW.items():
        tensorflow_name = tensorflow_name.replace(theirs, ours)
    return tensorflow_name


def by_our_names(weights):
    return {name_of(name): torch.from_numpy(w) for name, w in decode(weights).items()}


def column_of(spec, folder):
    spec = dict(spec)
    kind, key = spec.pop("kind"), spec.pop("key")
    if kind == "numeric":
        return fc.numeric_column(key, **spec)
    if kind == "vocabulary_list":
        return fc.categorical_column_with_vocabulary_list(key, **spec)
    lines = spec.pop("file_lines")
    refuse_unread(spec, f"a {kind} column")
    path = folder / f"{len(lines)}.txt"
    path.write_text("\n".join(lines))
    return fc.categorical_column_with_vocabulary_file(key, path)


def model_of(specs, folder):
    return partial(
        linear_model_fn,
        head=BinaryClassHead(),
        columns=fc.FeatureColumns([column_of(spec, folder) for spec in specs]),
        optimizer=partial(torch.optim.SGD, lr=0.0),
        learning_rate=None,
    )


def settings_of(config, folder):
    """Return the arguments of WarmStartSettings, without the source."""
    arguments = {}
    if "vars_to_warm_start" in config:
        wanted = config["vars_to_warm_start"]
        is_one = isinstance(wanted, str)
        names = name_of(wanted) if is_one else list(map(name_of, wanted))
        arguments["vars_to_warm_start"] = names
    if config.get("var_name_to_prev_var_name") == "identity":
        arguments["var_name_to_prev_var_name"] = {"x_weights": "x_weights"}
    if "backup_initializer" in config:
        assert config["backup_initializer"] == "ones"
        info = VocabInfo(
            str(folder / "4.txt"),
            4,
            0,
            folder / "3.txt",
            config.get("old_vocab_size", -1),
            torch.nn.init.ones_,
        )
        arguments["var_name_to_vocab_info"] = {"c_weights": info}
    return arguments


def input_fn():
    x = {"c": np.array(["ant", "cow"]), "x": np.array([1.0, 2.0], dtype=np.float32)}
    return ArrayDataset(x, np.array([0, 1]), batch_size=2)


def test_warm_start(tmp_path):
    check_each(of("warm_start"), check_warm_start, folder=tmp_path)


def check_warm_start(case, tmp_path):
    config, expected = case["config"], expected_of(case)
    assert (config["estimator"], config["optimizer"]) == (
        *("LinearClassifier", "SGD lr 0"),
    )
    if "error" in expected:
        new = Estimator(
            model_of(config["new_columns"], tmp_path), warm_start_from=tmp_path / "nope"
        )
        with raises(expected["error"]):
            new.train(input_fn)
        return
    model_of(config["old_columns"], tmp_path)  # writes the vocabulary
    old = Checkpoint(7, by_our_names(expected.pop("old_weights")))
    new = Estimator(
        model_of(config["new_columns"], tmp_path),
        warm_start_from=WarmStartSettings(old, **settings_of(config, tmp_path)),
    )
    new.train(input_fn, steps=1)
    assert new.checkpoint.global_step == expected.pop("global_step_after_1_train_step")
    weights = by_our_names(expected.pop("new_weights"))
    torch.testing.assert_close(new.checkpoint.variables, weights, rtol=1e-7, atol=0)
    unchanged = expected.pop("unchanged_by_second_train(lr 0)")
    new.train(input_fn, steps=1)
    assert set(unchanged.values()) == {True}
    torch.testing.assert_close(new.checkpoint.variables, weights, rtol=1e-7, atol=0)
    refuse_unread(expected, case["id"])
