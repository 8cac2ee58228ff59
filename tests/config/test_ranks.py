# SPDX-License-Identifier: Apache-2.0
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest.config.ranks import expand_nodes, hosts_of_tasks


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", "login1"),
        ("a[08-11],b", "a08 a09 a10 a11 b"),
        ("n[1,3-4,007]x", "n1x n3x n4x n007x"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("n[98-101]", "n98 n99 n100 n101"),
    ],
)
def test_a_list_of_nodes_is_expanded_as_by_scontrol(text, hosts):
    assert expand_nodes(text) == hosts.split()


def test_other_texts_are_refused():
    for text, message in [
        ("", "must be names with ranges in brackets.*got ''"),
        ("a,,b", "must be names"),
        ("n[1-2", "must be names"),
        ("n[[1]]", "must be names"),
        ("n[]", "A range of SLURM nodes .* got ''"),
        ("n[3-1]", "ascending order.*got '3-1'"),
        ("n[a-b]", "got 'a-b'"),
        ("n[1-2-3]", "got '1-2-3'"),
        ("n[0-999999999]", "at most 65536 hosts"),
        ("n[0-999]m[0-999]", "at most 65536 hosts"),
    ]:
        with pytest.raises(ValueError, match=message):
            expand_nodes(text)


@given(st.text("na[],-01 ", max_size=12))
def test_nothing_but_a_value_error_is_raised(text):
    with contextlib.suppress(ValueError):
        assert all(expand_nodes(text))


def test_hosts_of_tasks():
    for n_tasks, counts, expected in [(6, "2(x3)", "aabbcc"), (6, "4,1(x2)", "aaaabc")]:
        assert hosts_of_tasks(list("abc"), n_tasks, counts) == list(expected)


def test_counts_that_do_not_fit():
    for counts, message in [
        ("2", "must give 6 tasks to 3 nodes"),
        ("", "must be counts such as"),
        ("2(x999999999)", "must give 6 tasks to 3 nodes"),
        ("-2", "must be counts such as"),
    ]:
        with pytest.raises(ValueError, match=message):
            hosts_of_tasks(list("abc"), 6, counts)
