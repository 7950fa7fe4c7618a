"""Connections that a process uses again: by one at a time, never a broken one, never to another machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Any

import pytest

from provisioning.errors import ConnectionCut, WrongMachine
from provisioning.kept import Kept
from provisioning.ssh import Card, CommandResult, HostKey, SshTarget, require_card

MAC = "BC:24:11:00:00:05"
OTHER = "BC:24:11:00:00:06"
KEY = HostKey.parse("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f")
TARGET = SshTarget("10.0.0.5", KEY, private_key_file="/key", card=Card("CT 105", MAC))


@dataclass
class Line:
    """Stands for a connection: to the machine with a card, cut at will."""

    number: int
    card: str = MAC
    cut: bool = False
    closed: bool = False
    asked: list[str] = field(default_factory=list)

    def run(self, command: str, *, stdin: IO[bytes] | bytes | None = None, timeout_s: float = 30.0) -> CommandResult:
        del stdin, timeout_s
        assert not self.closed
        if self.cut:
            raise ConnectionCut("the line is down")
        self.asked.append(command)
        return CommandResult(0, self.card.lower().encode(), b"")

    def close(self) -> None:
        self.closed = True


@dataclass
class Net:
    lines: list[Line] = field(default_factory=list)

    def connect(self, target: SshTarget, *, timeout_s: float = 20.0) -> Line:
        line = Line(len(self.lines))
        self.lines.append(line)
        require_card(line, target, timeout_s)
        return line


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def kept(net: Net) -> Kept:
    return Kept(net.connect)


def use(kept: Kept, target: SshTarget = TARGET, command: str = "do") -> Any:
    connection = kept.connect(target)
    try:
        return connection.run(command)
    finally:
        connection.close()


def test_one_after_another_use_one_connection_that_proves_itself_each_time(net: Net, kept: Kept) -> None:
    for _ in range(3):
        use(kept)
    [line] = net.lines
    proof = "cat /sys/class/net/*/address"
    assert line.asked == [proof, "do"] * 3
    assert not line.closed


def test_two_at_once_have_one_each(net: Net, kept: Kept) -> None:
    one, other = kept.connect(TARGET), kept.connect(TARGET)
    one.run("one")
    other.run("other")
    one.close()
    other.close()
    assert [line.asked[-1] for line in net.lines] == ["one", "other"]
    # One is enough for those to come.
    assert [line.closed for line in net.lines] == [True, False]


def test_a_connection_that_broke_is_never_used_again(net: Net, kept: Kept) -> None:
    connection = kept.connect(TARGET)
    net.lines[0].cut = True
    with pytest.raises(ConnectionCut):
        connection.run("do")
    connection.close()
    assert net.lines[0].closed
    net.lines[0].cut = False
    use(kept)
    assert len(net.lines) == 2


def test_one_that_broke_while_nobody_used_it_is_replaced(net: Net, kept: Kept) -> None:
    """As by a reboot of the guest between two phases."""
    use(kept)
    net.lines[0].cut = True
    use(kept)
    assert [line.closed for line in net.lines] == [True, False]
    assert net.lines[1].asked[-1] == "do"


def test_another_machine_gets_nothing(net: Net, kept: Kept) -> None:
    """Neither by a connection that is kept, nor by the one that replaces it."""
    use(kept)
    net.lines[0].card = OTHER
    use(kept)
    assert net.lines[0].closed
    assert net.lines[0].asked.count("do") == 1
    elsewhere = SshTarget("10.0.0.5", KEY, private_key_file="/key", card=Card("CT 106", OTHER))
    with pytest.raises(WrongMachine):
        use(kept, elsewhere)
    assert "do" not in net.lines[-1].asked


def test_a_connection_is_of_one_target(net: Net, kept: Kept) -> None:
    """Another host key, login or key file is another connection."""
    use(kept)
    use(kept, SshTarget("10.0.0.5", KEY, private_key_file="/other", card=TARGET.card))
    assert len(net.lines) == 2


def test_what_can_prove_nothing_is_not_kept(net: Net, kept: Kept) -> None:
    use(kept, SshTarget("10.0.0.5", KEY, private_key_file="/key"))
    assert net.lines[0].closed
