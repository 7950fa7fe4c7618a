"""Every operation, cut off at every one of its API calls, in every way: the next run converges and nothing is lost.

The number of cases is the number of calls that the operation makes, counted by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from proxmox.client import Proxmox
from proxmox.facts import read_guest
from proxmox.operations import attach, detach, ensure_power, ensure_volume, read_attachment, remove_volume
from proxmox.planning import AttachSpec, DetachSpec, PowerSpec, VolumeSpec
from tests.lifecycle.proxmox_cuts import Act, KilledError, Lab

KILLS = ("kill-before", "kill-after")
HICCUPS = ("drop-before", "drop-after", "error-after", "lock")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


@dataclass(frozen=True)
class Case:
    """An operation on pet `base + 9` and cattle `base`, `base + 1`: the state before, and a look at the end."""

    arrange: Callable[[Lab, Proxmox, int], None]
    act: Callable[[int], Act]
    check: Callable[[Proxmox, int], None]
    volumes: int = 2  # of the pet, its root file system among them


def disk(base: int) -> str:
    return f"local-lvm:vm-{base + 9}-disk-1"


def volume(base: int, size: float = 8, path: str = "/volumes/hermes", volid: str | None = None) -> VolumeSpec:
    return VolumeSpec("hermes", base + 9, "local-lvm", size, path, volid)


def wish(base: int, vmid: int = 0, path: str = "/home/hermes", *, takeover: bool = False) -> AttachSpec:
    return AttachSpec(base + vmid, "pve", disk(base), path, base + 9, takeover=takeover)


def run_with(spec: AttachSpec) -> Act:
    """As a cattle's stack does: the volume, then the power."""

    def act(client: Proxmox) -> None:
        attach(client, spec)
        ensure_power(client, PowerSpec(spec.vmid))

    return act


def pet(lab: Lab, _client: Proxmox, base: int) -> None:
    lab.guest(base + 9, protection="1")


def pet_with_volume(lab: Lab, _client: Proxmox, base: int) -> None:
    lab.volume(disk(base))
    lab.guest(base + 9, protection="1", mp0=f"{disk(base)},mp=/volumes/hermes,backup=1,size=8G")


def pet_and_cattle(lab: Lab, client: Proxmox, base: int) -> None:
    pet_with_volume(lab, client, base)
    lab.guest(base)


def attached(lab: Lab, client: Proxmox, base: int) -> None:
    pet_with_volume(lab, client, base)
    lab.guest(base, mp0=f"{disk(base)},mp=/home/hermes,backup=0,size=8G")
    client.start("pve", base)


def attached_and_another(lab: Lab, client: Proxmox, base: int) -> None:
    attached(lab, client, base)
    lab.guest(base + 1)


def runs_with_it(vmid: int, path: str = "/home/hermes") -> Callable[[Proxmox, int], None]:
    def check(client: Proxmox, base: int) -> None:
        state = read_attachment(client, base + vmid, "mp0")
        assert state is not None
        assert (state.volid, state.path, state.running, state.pending) == (disk(base), path, True, False)
        for other in {base, base + 1} - {base + vmid}:
            guest = read_guest(client, other)
            assert guest is None or not guest.references(disk(base))

    return check


def forgotten(client: Proxmox, base: int) -> None:
    guest = read_guest(client, base)
    assert guest is not None
    assert guest.running is False
    assert not guest.references(disk(base))


def nothing_more(_client: Proxmox, _base: int) -> None:
    """The invariants say it all."""


CASES: dict[str, Case] = {
    "allocate": Case(pet, lambda base: lambda client: ensure_volume(client, volume(base)), nothing_more),
    "move and grow": Case(
        pet_with_volume,
        lambda base: lambda client: ensure_volume(client, volume(base, 9, "/volumes/new", disk(base))),
        nothing_more,
    ),
    "attach": Case(pet_and_cattle, lambda base: run_with(wish(base)), runs_with_it(0)),
    "change path": Case(attached, lambda base: run_with(wish(base, path="/srv")), runs_with_it(0, "/srv")),
    "take over": Case(
        attached_and_another,
        lambda base: run_with(wish(base, 1, takeover=True)),
        runs_with_it(1),
    ),
    "detach": Case(attached, lambda base: lambda client: detach(client, DetachSpec(base, disk(base))), forgotten),
    "stop": Case(
        pet_and_cattle,
        lambda base: lambda client: ensure_power(client, PowerSpec(base + 9)),
        lambda client, base: ensure_power(client, PowerSpec(base + 9, running=False)),
    ),
    "delete": Case(
        pet_with_volume,
        lambda base: lambda client: remove_volume(client, base + 9, disk(base), disk(base)),
        nothing_more,
        volumes=1,
    ),
}


def run(lab: Lab, case: Case, at: int = -1, what: str = "") -> list[str]:
    """One history; the calls that the operation made until it was cut off or done."""
    base = lab.numbers()
    with lab.client() as client:
        case.arrange(lab, client, base)
        cut, cutter = lab.cut_client(at, what)
        act = case.act(base)
        with cut:
            try:
                act(cut)
            except KilledError:
                act(client)
            # A task may be asked for its state once less than in the counted run; then the cut came too late.
            assert cutter.dead is (what in KILLS and len(cutter.calls) > at)
        case.check(client, base)
        found = read_guest(client, base + 9)
        assert found is not None
        assert found.protected
        assert len(lab.volumes(base + 9)) == case.volumes
        assert not found.unused()
        for vmid in (base, base + 1, base + 9):
            lab.remove(client, vmid)
    return cutter.calls


@pytest.mark.parametrize("what", [*KILLS, *HICCUPS])
@pytest.mark.parametrize("name", CASES)
def test_cut_off_at_every_call_the_end_is_the_same(lab: Lab, name: str, what: str) -> None:
    """Kills at every call. Of the hiccups, reads see only a lost connection: the others are the same to them."""
    case = CASES[name]
    calls = run(lab, case)
    assert any(not call.startswith("GET") for call in calls)
    for at, call in enumerate(calls):
        if what in KILLS or what == "drop-before" or not call.startswith("GET"):
            run(lab, case, at, what)
