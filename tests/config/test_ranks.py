# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest.config.ranks import expand_nodes, hosts_of_tasks


def by_characters(text):
    """Expand the first brackets by replacing them, as often as there are some."""
    items, item, depth = [], "", 0
    for character in text + ",":
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += character
    hosts = []
    for item in items:
        if "[" not in item:
            hosts.append(item)
            continue
        before, _, rest = item.partition("[")
        inside, _, after = rest.partition("]")
        for part in inside.split(","):
            first, _, last = part.partition("-")
            n = int(first)
            while n <= int(last or first):
                hosts += by_characters(before + str(n).zfill(len(first)) + after)
                n += 1
    return hosts


@st.composite
def ranges(draw):
    first, width = draw(st.integers(0, 120)), draw(st.integers(1, 4))
    if draw(st.booleans()):
        return f"{first:0{width}}"
    return f"{first:0{width}}-{first + draw(st.integers(0, 9)):0{width}}"


words = st.text("abcxyz019-.", min_size=1, max_size=5)
brackets = st.lists(ranges(), min_size=1, max_size=3).map(
    lambda parts: f"[{','.join(parts)}]"
)
names = st.one_of(
    words,
    st.tuples(words, brackets).map("".join),
    st.tuples(words, brackets, words, brackets).map("".join),
)
node_lists = st.lists(names, min_size=1, max_size=4).map(",".join)


@given(node_lists)
def test_a_list_of_nodes_is_expanded_as_by_another_expander(text):
    assert expand_nodes(text) == by_characters(text)


def test_other_texts_are_refused():
    for text, message in [
        ("", "must be names with ranges in brackets.*got ''"),
        ("a,,b", "must be names"),
        ("a b", "must be names"),
        ("n[1-2", "must be names"),
        ("n1-2]", "must be names"),
        ("n[[1]]", "must be names"),
        ("n[]", "A range of SLURM nodes .* got ''"),
        ("n[1,]", "A range of SLURM nodes .* got ''"),
        ("n[3-1]", "ascending order.*got '3-1'"),
        ("n[a-b]", "got 'a-b'"),
        ("n[1-2-3]", "got '1-2-3'"),
        ("n[0-999999999]", "at most 65536 hosts"),
        ("n[0-999]m[0-999]", "at most 65536 hosts"),
        ("n[0-40000],m[0-40000]", "at most 65536 hosts"),
    ]:
        with pytest.raises(ValueError, match=message):
            expand_nodes(text)


@given(st.text("na[],-01 ", max_size=12))
def test_nothing_but_a_value_error_is_raised(text):
    try:
        hosts = expand_nodes(text)
    except ValueError:
        return
    assert hosts == by_characters(text)


def test_hosts_of_tasks():
    for n_tasks, counts, expected in [
        (5, None, "aabbc"),
        (2, None, "ab"),
        (6, "2(x3)", "aabbcc"),
        (6, "4,1(x2)", "aaaabc"),
    ]:
        assert hosts_of_tasks(list("abc"), n_tasks, counts) == list(expected)


def test_counts_that_do_not_fit():
    for counts, message in [
        ("2", "must give 6 tasks to 3 nodes"),
        ("2(x2),3", "must give 6 tasks to 3 nodes"),
        ("2(x999999999)", "must give 6 tasks to 3 nodes"),
        ("2x3", "must be counts such as"),
        ("-2", "must be counts such as"),
    ]:
        with pytest.raises(ValueError, match=message):
            hosts_of_tasks(list("abc"), 6, counts)
