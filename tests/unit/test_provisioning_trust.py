"""The authorities that a container trusts beside Debian's: brought, replaced, taken away, also after a cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.guest import trust as module
from provisioning.guest.common import Refusal

ONE, OTHER = "-----BEGIN CERTIFICATE-----\none\n", "-----BEGIN CERTIFICATE-----\nother\n"
DEBIANS = "debian's\n"


class Machine:
    """A folder of authorities, and Debian's program that makes one store of it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.added, self.store = root / "hermes-stack.crt", root / "store.crt"
        self.store.write_text(DEBIANS)
        self.runs: list[tuple[str, ...]] = []
        self.cut = False
        monkeypatch.setattr(module, "ADDED", self.added)
        monkeypatch.setattr(module, "LEAVING", self.added.with_suffix(".leaving"))
        monkeypatch.setattr(module, "STORE", self.store)
        monkeypatch.setattr(module, "run", self.run)
        # Owned by whoever runs this, where the guest's are root's.
        monkeypatch.setattr(module, "install_file", self.install)

    def install(self, path: Path, text: str, *, mode: int, gid: int) -> bool:
        assert (mode, gid) == (0o644, 0)
        if path.exists() and path.read_text() == text:
            return False
        path.write_text(text)
        return True

    def run(self, *command: str) -> str:
        if self.cut:
            raise Refusal("cut")
        self.runs.append(command)
        # update-ca-certificates(8): *.crt of the folder, and nothing else of it.
        self.store.write_text(DEBIANS + "".join(path.read_text() for path in self.added.parent.glob("hermes*.crt")))
        return ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_nothing_declared_is_nothing_done(machine: Machine) -> None:
    assert not module.trust("")
    assert machine.runs == []


def test_authorities_are_brought_once_replaced_and_taken_away(machine: Machine) -> None:
    for wish, changed in ((ONE, True), (ONE, False), (OTHER, True), ("", True), ("", False), (ONE, True)):
        assert module.trust(wish) is changed
        assert machine.store.read_text() == DEBIANS + wish


@pytest.mark.parametrize(("before", "wish"), [("", ONE), (ONE, OTHER), (ONE, "")])
def test_a_cut_run_is_made_good_by_the_next(machine: Machine, before: str, wish: str) -> None:
    module.trust(before)
    machine.cut = True
    with pytest.raises(Refusal):
        module.trust(wish)
    machine.cut = False
    assert module.trust(wish)
    assert machine.store.read_text() == DEBIANS + wish
    assert not module.trust(wish)
