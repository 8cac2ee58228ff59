# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a variable were under another vocabulary."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest import VocabInfo


def test_files_tuples_arrays_and_ranges(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text("ant\r\nbee\n")
    assert VocabInfo(("bee",), 1, 0, path).sources(1, 2).tolist() == [1]
    assert VocabInfo(np.array(["bee"]), 1, 0, str(path)).sources(1, 2).tolist() == [1]
    assert VocabInfo(range(3), -1, 0, np.array([2, 0])).sources(3, 2).tolist() == [
        *(1, -1, 0)
    ]


words = st.lists(st.sampled_from("abcdefghij"), unique=True)


@given(old=words, new=words, n_oov=st.integers(0, 3), old_oov=st.integers(0, 3))
def test_every_row_keeps_what_it_stands_for(old, new, n_oov, old_oov):
    info = VocabInfo(new, len(new), n_oov, old, len(old))
    sources = info.sources(len(new) + n_oov, len(old) + old_oov)
    for word, source in zip(new, sources, strict=False):
        assert (source == -1) == (word not in old)
        assert source == -1 or old[source] == word
    oov = sources[len(new) :]
    same = [len(old) + i for i in range(n_oov)]
    assert oov.tolist() == (same if n_oov == old_oov else [-1] * n_oov)


def test_what_does_not_fit():
    for info, match in [
        (VocabInfo("ab", -1, 0, "nowhere.txt"), "file 'ab' of 'new_vocab' cannot be"),
        (VocabInfo(["a"], 2, 0, ["a"]), "'new_vocab' has 1 entries, 'new_vocab_size'"),
        (VocabInfo(["a"], 1, 0, ["a"], 2), "'old_vocab' has 1 entries, 'old_vocab_s"),
        (VocabInfo(["a", "a"], 2, 0, ["a"]), "'new_vocab' has an entry more than once"),
        (VocabInfo(["a"], 1, 0, ["a", "a"]), "'old_vocab' has an entry more than once"),
        (VocabInfo(["a"], 1, 1, ["a"]), "has 1 entries and 1 buckets.* variable 1 alo"),
        (VocabInfo(["a"], 1, 0, ["a", "b"], axis=1), "2 entries, .* 1 along axis 1"),
    ]:
        with pytest.raises(ValueError, match=match):
            info.sources(1, 1)


def test_wrong_arguments():
    for options, error, match in [
        ({"new_vocab": 3}, TypeError, "'new_vocab' of a VocabInfo must be the path"),
        ({"old_vocab": {"a"}}, TypeError, "'old_vocab' .* sequence of entries; .* set"),
        ({"old_vocab_size": -2}, ValueError, "'old_vocab_size' of a VocabInfo"),
        ({"axis": -1}, ValueError, "'axis' of a VocabInfo"),
        ({"backup_initializer": "ones"}, TypeError, "function of a tensor or None"),
    ]:
        arguments = {
            **{"new_vocab": ["a"], "new_vocab_size": 1},
            **{"num_oov_buckets": 0, "old_vocab": ["a"]},
        }
        with pytest.raises(error, match=match):
            VocabInfo(**{**arguments, **options})
