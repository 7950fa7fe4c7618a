"""Whether a machine has an address, as seen from here: before a container gets it that is not there yet.

What answers is a sign; what does not answer proves nothing, since a machine may drop what it does not know. A firewall
or a proxy on the way may answer in the place of any address, so an accepted connection counts only if one to a port
that nobody listens on is not accepted as well, and a refused one only from a machine on the same network.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

PORTS = (22, 80, 443, 8006)
NOBODYS_PORT = 1
SECONDS = 1.0
"""So long a machine has time to answer: one on the same network needs a thousandth of it."""
_ARP_TABLE = Path("/proc/net/arp")
_COMPLETE = 0x2  # ATF_COM of the kernel's <linux/if_arp.h>


@dataclass(frozen=True)
class Neighbour:
    """An entry of the kernel's table of the machines on the same networks.

    shared: whether another address has the same hardware address: a router that answers for what is behind it.
    """

    hardware_address: str
    shared: bool


def answer_of(address: str, seconds: float = SECONDS) -> str | None:
    """How a machine with that IPv4 address shows itself ("answers on port 22"); None where none does."""
    if _is_our_own(address):
        return "is this one, that Pulumi runs on"
    before = neighbour(address, _arp_table())
    outcomes = _knock(address, seconds)
    return judge(outcomes, before, neighbour(address, _arp_table()))


class AskedAhead:
    """`answer_of` one address, asked when this is made: whoever wants the answer has other work until then.

    Another address is asked when it is wanted; None: there is none to ask ahead.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        # Not a pool: Python would wait for its thread at the end, and so would who is told a fault.
        self._found: Future[str | None] = Future()
        if address is not None:
            Thread(target=self._ask, args=(address,), daemon=True).start()

    def _ask(self, address: str) -> None:
        try:
            self._found.set_result(answer_of(address))
        except Exception as error:
            self._found.set_exception(error)

    def __call__(self, address: str) -> str | None:
        return self._found.result() if address == self._address else answer_of(address)


def judge(outcomes: Mapping[int, int], before: Neighbour | None, after: Neighbour | None) -> str | None:
    """What the knocking tells. outcomes: by port the errno, 0 for accepted; a port that did not answer is not in it.

    before, after: what the table had of the address. An entry that was there before may be of a machine that is gone.
    """
    there = after is not None and not after.shared
    accepted = [port for port in PORTS if outcomes.get(port) == 0]
    if accepted and (there or outcomes.get(NOBODYS_PORT) != 0):
        return f"answers on port {accepted[0]}"
    fresh = before is None or errno.ECONNREFUSED in outcomes.values()
    return f"has the hardware address {after.hardware_address}" if after is not None and there and fresh else None


def resolved(host: str) -> frozenset[str]:
    """The IPv4 addresses of a host; none where its name can't be resolved here."""
    try:
        return frozenset(str(row[4][0]) for row in socket.getaddrinfo(host, None, socket.AF_INET))
    except OSError:
        return frozenset()


def neighbour(address: str, table: str) -> Neighbour | None:
    """The entry of an address in the text of /proc/net/arp; None where there is none, or one without an answer."""
    rows = [words for line in table.splitlines()[1:] if len(words := line.split()) >= 6]
    known = {words[0]: words[3].lower() for words in rows if int(words[2], 16) & _COMPLETE}
    found = known.get(address)
    if found is None:
        return None
    return Neighbour(found, any(place != address and card == found for place, card in known.items()))


def _arp_table() -> str:
    """Empty on a machine that keeps none there."""
    try:
        return _ARP_TABLE.read_text()
    except OSError:
        return ""


def _is_our_own(address: str) -> bool:
    """Whether the kernel would send from the address what is meant for it. Sends nothing."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, PORTS[0]))
        return bool(probe.getsockname()[0] == address)
    return False


def _knock(address: str, seconds: float) -> dict[int, int]:
    """The errno of a connection to each port, as far as it is decided in time."""
    outcomes: dict[int, int] = {}
    with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as opened:
        for port in (*PORTS, NOBODYS_PORT):
            knock = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            knock.setblocking(False)
            status = knock.connect_ex((address, port))
            if status == errno.EINPROGRESS:
                waiting.register(knock, selectors.EVENT_WRITE, port)
            else:
                outcomes[port] = status
        end = time.monotonic() + seconds
        while waiting.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                done = key.fileobj
                assert isinstance(done, socket.socket)  # noqa: S101 - what was registered
                outcomes[key.data] = done.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return outcomes
