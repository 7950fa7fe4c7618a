"""Whether a machine has an address: what counts as a sign of one, and what does not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from proxmox import neighbours
from proxmox.neighbours import NOBODYS_PORT, AskedAhead, Neighbour, _knock, answer_of, judge, neighbour, resolved

# As the kernel writes it (Documentation of /proc/net/arp): 0x2 complete, 0x0 no answer yet.
TABLE = """\
IP address       HW type     Flags       HW address            Mask     Device
192.0.2.5        0x1         0x0         00:00:00:00:00:00     *        eth0
192.0.2.1        0x1         0x2         02:FC:00:00:00:05     *        eth0
192.0.2.7        0x1         0x2         02:fc:00:00:00:09     *        eth0
192.0.2.8        0x1         0x2         02:fc:00:00:00:09     *        eth0
"""
HERE, PROXY = Neighbour("02:fc:00:00:00:05", False), Neighbour("02:fc:00:00:00:09", True)
REFUSED = 111  # ECONNREFUSED on Linux
NO_ROUTE = 113


@pytest.mark.parametrize(
    ("address", "found"),
    [("192.0.2.1", HERE), ("192.0.2.5", None), ("192.0.2.7", PROXY), ("192.0.2.9", None), ("92.0.2.1", None)],
)
def test_the_table_of_neighbours(address: str, found: Neighbour | None) -> None:
    assert neighbour(address, TABLE) == found
    assert neighbour(address, "") is None


ALL = dict.fromkeys((22, 80, 443, 8006, NOBODYS_PORT), 0)


@pytest.mark.parametrize(
    ("outcomes", "before", "after", "sign"),
    [
        ({}, None, None, None),
        ({22: 0}, None, None, "answers on port 22"),
        ({22: REFUSED, 8006: 0, 1: REFUSED}, None, None, "answers on port 8006"),
        # A proxy on the way takes every connection.
        (ALL, None, None, None),
        (ALL, None, PROXY, None),
        (ALL, None, HERE, "answers on port 22"),
        # A firewall on the way refuses every one.
        (dict.fromkeys(ALL, REFUSED), None, None, None),
        (dict.fromkeys(ALL, NO_ROUTE), None, None, None),
        # On the same network: one that refuses, and one that answers nothing but who it is.
        (dict.fromkeys(ALL, REFUSED), None, HERE, "has the hardware address 02:fc:00:00:00:05"),
        (dict.fromkeys(ALL, REFUSED), HERE, HERE, "has the hardware address 02:fc:00:00:00:05"),
        ({}, None, HERE, "has the hardware address 02:fc:00:00:00:05"),
        # The cattle that was destroyed a minute ago is in the table still.
        ({}, HERE, HERE, None),
        (dict.fromkeys(ALL, NO_ROUTE), HERE, None, None),
        # A router that answers for all that is behind it.
        ({}, None, PROXY, None),
        (dict.fromkeys(ALL, REFUSED), None, PROXY, None),
    ],
)
def test_what_counts_as_a_sign(
    outcomes: dict[int, int], before: Neighbour | None, after: Neighbour | None, sign: str | None
) -> None:
    assert judge(outcomes, before, after) == sign


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that is listened on, in the place of the usual ones; in nobody's place one that is not."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()[1]
        other.close()
        monkeypatch.setattr(neighbours, "PORTS", (listener.getsockname()[1],))
        monkeypatch.setattr(neighbours, "NOBODYS_PORT", closed)
        yield listener.getsockname()[1]


def test_a_port_that_is_open_and_one_that_is_not(listening: int) -> None:
    outcomes = _knock("127.0.0.1", 30)
    assert outcomes == {listening: 0, neighbours.NOBODYS_PORT: REFUSED}
    assert judge(outcomes, None, None) == f"answers on port {listening}"


def test_an_address_of_this_machine_is_told_as_such() -> None:
    assert answer_of("127.0.0.1") == "is this one, that Pulumi runs on"


def test_silence_ends_in_time() -> None:
    began = time.monotonic()
    with contextlib.suppress(OSError):
        _knock("192.0.2.222", 0.2)  # a network for documentation: nobody is there
    assert time.monotonic() - began < 20


def test_a_host_is_resolved_and_none_that_is_unknown() -> None:
    assert resolved("127.0.0.1") == {"127.0.0.1"}
    assert resolved("no-such-host.invalid") == frozenset()


# --- asked ahead ---


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are asked; each answers with its own name."""
    seen: list[str] = []

    def answer(address: str) -> str | None:
        seen.append(address)
        return f"{address} answers"

    monkeypatch.setattr(neighbours, "answer_of", answer)
    return seen


def test_an_address_is_asked_before_its_answer_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told = threading.Event(), threading.Event()

    def answer(_address: str) -> str | None:
        begun.set()
        assert told.wait(60)
        return None

    monkeypatch.setattr(neighbours, "answer_of", answer)
    ahead = AskedAhead("192.0.2.5")
    assert begun.wait(60), "nobody was asked yet"
    told.set()
    assert ahead("192.0.2.5") is None


def test_what_was_asked_ahead_is_not_asked_again(asked: list[str]) -> None:
    ahead = AskedAhead("192.0.2.5")
    assert [ahead("192.0.2.5"), ahead("192.0.2.5")] == ["192.0.2.5 answers"] * 2
    assert asked == ["192.0.2.5"]


@pytest.mark.parametrize("first", [None, "192.0.2.5"])
def test_another_address_is_asked_when_it_is_wanted(first: str | None, asked: list[str]) -> None:
    assert AskedAhead(first)("192.0.2.9") == "192.0.2.9 answers"
    assert asked[-1] == "192.0.2.9"


def test_who_wants_the_answer_gets_the_trouble_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_address: str) -> str | None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(neighbours, "answer_of", fails)
    with pytest.raises(OSError, match="Too many open files"):
        AskedAhead("192.0.2.5")("192.0.2.5")
