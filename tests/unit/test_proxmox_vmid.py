"""Whether a VMID is ours to use: the plugin would take over whatever is there (facts proxmox 15, HAZARD)."""

from __future__ import annotations

import pytest

from proxmox import vmid as module
from proxmox.client import Guest, GuestStatus
from proxmox.errors import GuestElsewhere, GuestLocked, GuestMissing, LeftBehind, NotOurs
from proxmox.ownership import render_notes
from proxmox.vmid import prove_none_left, prove_still_ours, prove_vmid_usable

OURS = "00000000-0000-4000-8000-00000000000a"
THEIRS = "00000000-0000-4000-8000-00000000000b"


class Cluster:
    """What the proof asks of a client."""

    def __init__(
        self,
        *,
        taken: bool = True,
        visible: bool = True,
        notes: str = "",
        kind: str = "lxc",
        locks: tuple[str | None, ...] = (None,),
    ) -> None:
        self.taken = taken
        self.visible = visible
        self.notes = notes
        self.kind = kind
        self.locks = list(locks)

    def vmid_taken(self, _vmid: int) -> bool:
        return self.taken

    def guests(self) -> tuple[Guest, ...]:
        return (Guest(105, self.kind, "pve", "somebody", False, None),) if self.visible else ()

    def guest_config(self, _node: str, _vmid: int) -> dict[str, str]:
        return {"description": self.notes}

    def guest_status(self, _node: str, _vmid: int) -> GuestStatus:
        lock = self.locks.pop(0) if len(self.locks) > 1 else self.locks[0]
        return GuestStatus(running=False, lock=lock, uptime=0)


def prove(cluster: Cluster, *, claim: str | None = OURS, planning: bool = False) -> None:
    prove_vmid_usable(cluster, 105, node="pve", claim=claim, planning=planning)  # type: ignore[arg-type]


def test_a_free_number_is_usable() -> None:
    prove(Cluster(taken=False), claim=None)


@pytest.mark.parametrize("planning", [True, False])
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(),
        Cluster(notes="a web server"),
        Cluster(notes=render_notes("x", THEIRS)),
        Cluster(kind="qemu", notes=render_notes("x", OURS)),
        Cluster(visible=False),
    ],
    ids=["no notes", "other notes", "another stack's", "a VM", "not to be seen"],
)
def test_a_stranger_is_never_taken_over(cluster: Cluster, planning: bool) -> None:
    with pytest.raises(NotOurs) as caught:
        prove(cluster, planning=planning)
    assert "105" in str(caught.value)
    assert "another VMID" in str(caught.value)


def test_without_a_claim_nothing_is_ours() -> None:
    with pytest.raises(NotOurs):
        prove(Cluster(notes=render_notes("x", OURS)), claim=None)


@pytest.mark.parametrize("planning", [True, False])
def test_our_own_guest_is_ours(planning: bool) -> None:
    prove(Cluster(notes=render_notes("x", OURS)), planning=planning)


def test_our_own_guest_is_waited_for_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    cluster = Cluster(notes=render_notes("x", OURS), locks=("create", "create", None))
    prove(cluster)
    assert cluster.locks == [None]


def test_a_lock_that_stays_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module, "MAKING_SECONDS", 0.0)
    with pytest.raises(GuestLocked) as caught:
        prove(Cluster(notes=render_notes("x", OURS), locks=("create",)))
    assert "pct unlock 105" in str(caught.value)


NOTES = render_notes("x", OURS)


@pytest.mark.parametrize("planning", [True, False])
def test_our_own_guest_on_another_node_is_not_taken_over(planning: bool) -> None:
    """The plugin would take the refusal of its create for success, and work on a node where there is none."""
    with pytest.raises(GuestElsewhere, match="CT 105 is on node pve, not on pve2"):
        prove_vmid_usable(Cluster(notes=NOTES), 105, node="pve2", claim=OURS, planning=planning)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "claim", "node", "refusal"),
    [
        (Cluster(notes=NOTES), OURS, "pve", None),
        (Cluster(visible=False, taken=False), OURS, "pve", None),
        # Not to be seen is not gone.
        (Cluster(visible=False), OURS, "pve", GuestMissing),
        (Cluster(notes=NOTES), OURS, "pve2", GuestElsewhere),
        (Cluster(), OURS, "pve", NotOurs),
        (Cluster(), OURS, "pve2", NotOurs),
        (Cluster(notes=render_notes("x", THEIRS)), OURS, "pve", NotOurs),
        # A state of before claim and node were kept.
        (Cluster(), None, "pve", None),
        (Cluster(), None, None, None),
        (Cluster(notes=NOTES), OURS, None, None),
        (Cluster(), None, "pve2", GuestElsewhere),
    ],
)
def test_a_guest_is_ours_by_its_claim_and_where_it_was_made(
    cluster: Cluster, claim: str | None, node: str | None, refusal: type[Exception] | None
) -> None:
    if refusal is None:
        prove_still_ours(cluster, 105, claim, node)  # type: ignore[arg-type]
        return
    with pytest.raises(refusal):
        prove_still_ours(cluster, 105, claim, node)  # type: ignore[arg-type]


def test_a_claim_is_not_forgotten_while_a_guest_carries_it() -> None:
    for gone in (
        Cluster(visible=False, taken=False),
        Cluster(notes=render_notes("x", THEIRS)),
        Cluster(kind="qemu", notes=NOTES),
    ):
        prove_none_left(gone, 105, OURS)  # type: ignore[arg-type]
    with pytest.raises(GuestMissing):
        prove_none_left(Cluster(visible=False), 105, OURS)  # type: ignore[arg-type]
    with pytest.raises(LeftBehind, match=r"CT 105 .* is still there"):
        prove_none_left(Cluster(notes=NOTES), 105, OURS)  # type: ignore[arg-type]
