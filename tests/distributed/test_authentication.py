# SPDX-License-Identifier: Apache-2.0
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.authentication import is_proved, proof, secret_of_cluster

TEXTS = st.lists(st.text(max_size=5), max_size=3)


@given(st.text(min_size=1), TEXTS, TEXTS)
def test_a_proof_holds_for_what_was_said_only(secret, said, other):
    found = proof(secret, *said)
    assert is_proved(found, secret, *said)
    assert is_proved(found, secret, *other) == (said == other)
    assert not is_proved(found, secret + "x", *said)


def test_texts_that_are_one_when_joined_have_other_proofs():
    assert proof("s", "ab", "c") != proof("s", "a", "bc") != proof("s", "abc")


def test_it_is_an_hmac():
    expected = hmac.new(b"s", b"2:ab1:c", hashlib.sha256).hexdigest()
    assert proof("s", "ab", "c") == expected


@pytest.mark.parametrize("found", [None, 3, "", "é" * 64, b"x", [], "0" * 64])
def test_what_is_no_proof(found):
    assert not is_proved(found, "s", "said")


@pytest.mark.parametrize("found", [None, 3, "", "anything"])
def test_without_a_secret_nothing_is_to_be_proved(found):
    assert proof(None, "said") == ""
    assert is_proved(found, None, "said")


def test_an_empty_secret_is_none(monkeypatch):
    monkeypatch.setenv("SKEST_SECRET", "")
    assert secret_of_cluster() is None
    monkeypatch.setenv("SKEST_SECRET", "of all")
    assert secret_of_cluster() == "of all"
    monkeypatch.delenv("SKEST_SECRET")
    assert secret_of_cluster() is None
