# SPDX-License-Identifier: Apache-2.0
import gc
from datetime import timedelta

import pytest
import torch

from skest.distributed.ps.messages import Message, Op
from skest.exceptions import PeerLostError
from tests.distributed._listening import LIMIT, SECONDS, WORKER, session_with


def test_messages_go_both_ways(listener):
    ours, incarnation = session_with(listener)
    assert incarnation == listener.incarnation
    peer, theirs = listener.sessions.get(timeout=30)
    assert peer == WORKER
    inboxes = [torch.empty(LIMIT, dtype=torch.uint8) for _ in range(2)]
    before = ours.bytes_sent, ours.bytes_received
    for value in range(3):
        receive = [s.expect(i) for s, i in zip((ours, theirs), inboxes, strict=True)]
        ours.send(Message(Op.PUSH, step=value, payload=[torch.ones(9)]), SECONDS)
        assert receive[1](SECONDS).step == value
        theirs.send(Message(0, step=-value), SECONDS)
        assert receive[0](SECONDS).step == -value
    assert ours.bytes_sent == theirs.bytes_received == before[0] + 3 * (64 + 40)
    assert ours.bytes_received == theirs.bytes_sent == before[1] + 3 * 64


def test_a_message_that_nobody_waits_for_is_not_taken_for_the_next_one(listener):
    ours, _ = session_with(listener)
    _, theirs = listener.sessions.get(timeout=30)
    ours.expect(torch.empty(LIMIT, dtype=torch.uint8))  # and an error, such as Ctrl-C
    gc.collect()
    receive = ours.expect(torch.empty(LIMIT, dtype=torch.uint8))
    for step in (1, 2):
        theirs.send(Message(0, step=step), SECONDS)
    assert receive(timedelta(seconds=5)).step == 2


def test_the_end_of_a_session_is_seen_at_once(listener):
    ours, _ = session_with(listener)
    receive = ours.expect(torch.empty(64, dtype=torch.uint8))
    listener.sessions.get(timeout=30)[1].close()
    with pytest.raises(PeerLostError, match="with ps at 127.0.0.1:.* broke"):
        receive(SECONDS)
    ours.close()
    with pytest.raises(PeerLostError, match="is closed"):
        ours.send(Message(Op.INFO), SECONDS)


def test_who_does_not_answer_in_time_is_lost(listener):
    ours, _ = session_with(listener)
    receive = ours.expect(torch.empty(64, dtype=torch.uint8))
    with pytest.raises(PeerLostError, match="Timed out"):
        receive(timedelta(seconds=0.1))
