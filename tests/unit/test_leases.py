"""How a client judges expired leases by its contact with a server."""

from collections.abc import Iterator

import pytest

from redis_history.store import leases
from redis_history.store.leases import PROMISE, RETURN, RETURN_AFTER_FAILOVER, SILENCE, Contact

LEASE = ("c", "reply")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    clock = Time()
    monkeypatch.setattr(leases, "time", clock)
    return clock


def listen(contact: Contact, time: Time, seconds: float, every: float = 0.5) -> None:
    """The server replies at the beginning, and then again and again."""
    contact.heard()
    end = time.now + seconds
    while time.now < end:
        time.now += every
        contact.heard()


def test_who_has_listened_for_a_while_ends_the_dead_at_once(time: Time) -> None:
    contact = Contact()
    listen(contact, time, RETURN)
    assert contact.spares(LEASE, 0.01) == 0.0


def test_a_new_client_gives_living_holders_time_to_come_back(time: Time) -> None:
    contact = Contact()
    listen(contact, time, 1.0)
    assert contact.spares(LEASE, 0.01) == RETURN - 1.0


def test_lost_replies_are_no_evidence_of_an_outage(time: Time) -> None:
    contact = Contact()
    for _ in range(5):
        listen(contact, time, 1.0)
        contact.failed()
        time.now += SILENCE - 0.5
    contact.heard()
    assert contact.spares(LEASE, 0.01) == 0.0


def test_silence_is(time: Time) -> None:
    contact = Contact()
    listen(contact, time, 60.0)
    time.now += SILENCE + 0.1
    contact.heard()
    assert contact.spares(LEASE, 0.01) == RETURN


def test_each_lease_is_spared_once_however_often_contact_is_lost(time: Time) -> None:
    contact, over = Contact(), 0.1
    contact.heard()
    assert contact.spares(LEASE, over) == RETURN
    for _ in range(3):
        time.now += SILENCE + 0.1
        over += SILENCE + 0.1
        contact.heard()
        assert contact.spares(LEASE, over) == 0.0
    assert contact.spares(("c", "another"), over) == RETURN


def test_a_lease_that_was_renewed_is_spared_again(time: Time) -> None:
    contact = Contact()
    contact.heard()
    contact.spares(LEASE, 2.0)
    time.now += 20.0
    contact.heard()
    assert contact.spares(LEASE, 1.0) == RETURN


def test_a_failover_gives_more_time(time: Time) -> None:
    contact = Contact()
    listen(contact, time, 60.0)
    contact.taken_over()
    contact.heard()
    assert contact.spares(LEASE, 0.1) == RETURN_AFTER_FAILOVER
    behind_sentinels = Contact()
    behind_sentinels.moves = True
    listen(behind_sentinels, time, 60.0)
    time.now += SILENCE + 0.1
    behind_sentinels.heard()
    assert behind_sentinels.spares(LEASE, 0.1) == RETURN  # it was idle
    behind_sentinels.failed()
    time.now += SILENCE + 0.1
    behind_sentinels.heard()
    assert behind_sentinels.spares(("c", "another"), 0.1) == RETURN_AFTER_FAILOVER


def test_a_caller_waits_only_if_the_promise_is_due(time: Time) -> None:
    contact = Contact()
    contact.heard()
    length = 6.0
    assert contact.pause(LEASE, PROMISE - length - 0.1, length) == 0.0
    assert contact.pause(LEASE, PROMISE - length, length) == RETURN
    time.now += 1.0
    contact.heard()
    assert contact.pause(LEASE, PROMISE - length + 1.0, length) == RETURN - 1.0


def test_doubts_are_bounded(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_MAX_DOUBTS", 3)
    contact = Contact()
    contact.heard()
    for number in range(10):
        contact.spares(("c", str(number)), 1.0)
    assert len(contact._doubts) <= 3
