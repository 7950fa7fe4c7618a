"""The access resource: which address it takes, which host key it holds the machine to, and when it looks again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from applications.hermes.phases import render_baseline
from components.providers import access
from components.providers.access import AccessProvider, card_of
from components.providers.phase import PhaseProvider
from provisioning import plans
from provisioning.errors import SshUnreachable, WrongMachine
from provisioning.plans import PhaseResult
from provisioning.ssh import Card, HostKey, SshTarget
from proxmox.client import Address, Interface, Proxmox
from tests.settings import cattle

MAC = "BC:24:11:00:00:01"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
MADE = frozenset({"SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg"})
PROPS = {"guest": "105", "vmid": 105.0, "node": "pve", "private_key_file": "/key", "incarnation": MAC}
STATIC = {**PROPS, "static_address": "10.0.0.5"}


@dataclass
class Node:
    """Stands for a client: one card, whose addresses come and go with each look."""

    looks: list[list[str]]
    loopback: list[list[str]] = field(default_factory=lambda: [[]])

    def interfaces(self, node: str, vmid: int) -> tuple[Interface, ...]:
        assert (node, vmid) == ("pve", 105)
        found = self.looks[0] if len(self.looks) == 1 else self.looks.pop(0)
        shown = self.loopback[0] if len(self.loopback) == 1 else self.loopback.pop(0)
        proof = tuple(Address("inet6", address, 128) for address in shown)
        lo = Interface("lo", "00:00:00:00:00:00", (Address("inet", "127.0.0.1", 8), *proof))
        kinds = [Address("inet6" if ":" in address else "inet", address, None) for address in found]
        return (lo, Interface("eth0", MAC.lower(), tuple(kinds)))

    def vmid_taken(self, vmid: int) -> bool:
        return vmid == 105


@dataclass
class Scene:
    """What the provider asked for, and what it is answered."""

    node: Node = field(default_factory=lambda: Node([["10.0.0.5"]]))
    made: frozenset[str] = MADE
    shown: HostKey | Exception = field(default_factory=lambda: HostKey.parse(KEY))
    waited: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    authorized: list[tuple[SshTarget, list[str]]] = field(default_factory=list)
    logs_read: int = 0

    def provider(self) -> AccessProvider:
        scene = self

        class Provider(AccessProvider):
            @contextmanager
            def proxmox(self) -> Iterator[Proxmox]:
                yield scene.node  # type: ignore[misc]

        return Provider()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()

    def wait(address: str, **more: Any) -> HostKey:
        made.waited.append({"address": address, **more})
        if isinstance(made.shown, Exception):
            raise made.shown
        return made.shown

    def read(_client: object, node: str, vmid: int) -> frozenset[str]:
        assert (node, vmid) == ("pve", 105)
        made.logs_read += 1
        return made.made

    monkeypatch.setattr(access, "wait_for_ssh", wait)
    monkeypatch.setattr(access, "made_host_keys", read)
    monkeypatch.setattr(access, "warn", made.warnings.append)
    monkeypatch.setattr(access, "_authorize", lambda target, keys: made.authorized.append((target, keys)))
    monkeypatch.setattr(access, "ADDRESS_SECONDS", 1.2)
    return made


def test_a_new_container_is_held_to_its_card_and_to_the_keys_that_it_was_made_with(scene: Scene) -> None:
    outs = scene.provider().create(STATIC).outs
    assert outs is not None
    [asked] = scene.waited
    assert (asked["address"], asked["card"], asked["key"], asked["made"]) == (
        "10.0.0.5", Card("CT 105", MAC), None, MADE,
    )  # fmt: skip
    assert (outs["host_key"], outs["address"]) == (KEY, "10.0.0.5")
    assert scene.warnings == []


def test_where_no_log_tells_a_key_the_first_contact_is_warned_of(scene: Scene) -> None:
    scene.made = frozenset()
    scene.provider().create(STATIC)
    [warning] = scene.warnings
    for told in ("CT 105", "10.0.0.5", HostKey.parse(KEY).fingerprint, "ssh_host_ed25519_key.pub"):
        assert told in warning


def test_a_declared_key_is_asked_for_and_no_log_is_read(scene: Scene) -> None:
    scene.made = frozenset()
    scene.provider().create({**STATIC, "declared_key": KEY})
    assert scene.waited[0]["key"] == HostKey.parse(KEY)
    assert (scene.logs_read, scene.warnings) == (0, [])


PROOF = ("fd01:1:203:405:607:809:a0b:c0d", "fd02:e0f:1011:1213:1415:1617:1819:1a1b")
PROOF_END = "fd03:1c1d:1e1f:6870:2d68:6f73:746b:6579"
PROVED = frozenset({"SHA256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"})
CLONE = {**STATIC, "authorized_keys": [KEY, "ssh-ed25519 AAAA other"]}


def test_a_clone_is_held_to_the_key_that_it_shows_and_lets_in_who_is_declared(scene: Scene) -> None:
    """It shows it some time after its start; no log is asked, which would tell of another guest of that number."""
    scene.node.loopback = [[], list(PROOF), [*PROOF, PROOF_END]]
    outs = scene.provider().create(CLONE).outs
    [asked] = scene.waited
    assert (asked["key"], asked["made"]) == (None, PROVED)
    assert (scene.logs_read, scene.warnings) == (0, [])
    assert outs["host_key"] == KEY
    [(target, keys)] = scene.authorized
    assert (target.host, target.host_key.line, target.card) == ("10.0.0.5", KEY, Card("CT 105", MAC))
    assert keys == [KEY, "ssh-ed25519 AAAA other"]


def test_a_clone_that_shows_no_key_is_never_taken_as_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "PROOF_SECONDS", 0.3)
    scene.made = frozenset()
    with pytest.raises(SshUnreachable, match="CT 105 does not show its SSH host key"):
        scene.provider().create(CLONE)
    assert (scene.waited, scene.authorized) == ([], [])
    # What a cut-off run without a golden template has made has a log.
    scene.made = MADE
    scene.provider().create(CLONE)
    assert scene.waited[0]["made"] == MADE


def test_a_clone_whose_key_is_known_is_not_written_to_again(scene: Scene) -> None:
    scene.provider().update("105/ssh", {**CLONE, "host_key": KEY}, {**CLONE, "static_address": "10.0.0.6"})
    scene.provider().create({**CLONE, "declared_key": KEY})
    assert [asked["key"] for asked in scene.waited] == [HostKey.parse(KEY)] * 2
    assert scene.authorized == []


OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP8BAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


@pytest.mark.parametrize(
    ("olds", "news", "key", "logs_read"),
    [
        # The same container at another address: the key that was pinned.
        ({}, {"static_address": "10.0.0.6"}, OTHER_KEY, 0),
        # Another one under the number: what its own creation tells.
        ({"incarnation": "BC:24:11:00:00:99"}, {}, None, 1),
        # Declared, changed, and declared no more.
        ({}, {"declared_key": KEY}, KEY, 0),
        ({"declared_key": OTHER_KEY}, {"declared_key": KEY}, KEY, 0),
        ({"declared_key": OTHER_KEY}, {}, None, 1),
    ],
)
def test_which_key_a_later_contact_is_held_to(
    scene: Scene, olds: dict[str, Any], news: dict[str, Any], key: str | None, logs_read: int
) -> None:
    scene.provider().update("105/ssh", {**STATIC, "host_key": OTHER_KEY, **olds}, {**STATIC, **news})
    assert scene.waited[0]["key"] == (None if key is None else HostKey.parse(key))
    assert scene.logs_read == logs_read


def test_a_state_of_before_is_unchanged(scene: Scene) -> None:
    """It knows of no declared key."""
    before = {**STATIC, "host_key": KEY, "address": "10.0.0.5"}
    assert not scene.provider().diff("105/ssh", before, {**STATIC, "declared_key": None}).changes
    assert scene.provider().diff("105/ssh", before, {**STATIC, "declared_key": KEY}).changes


def test_a_phase_of_before_does_not_run_again_for_the_card() -> None:
    """The states of older versions know of none."""
    before = {"digest": "d", "host_key": KEY, "guest": "105"}
    assert not PhaseProvider().diff("105/baseline", before, {**before, "hardware_address": MAC}).changes


def test_a_phase_of_before_does_not_run_again_for_the_form_of_its_plan() -> None:
    """The states of older versions have the phase's inputs, and docker as the agent phase's name."""
    before = {"digest": "d", "host_key": KEY, "guest": "105", "phase": "docker", "inputs": "{}"}
    now = {"digest": "d", "host_key": KEY, "guest": "105", "phase": "agent", "plan": "{}"}
    assert not PhaseProvider().diff("105/docker", before, now).changes
    assert PhaseProvider().diff("105/docker", before, {**now, "digest": "e"}).changes


@pytest.mark.parametrize("address", [None, "", MAC])
def test_a_phase_is_held_to_the_card(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    """Where nothing tells the container, nothing is run."""
    targets: list[SshTarget] = []

    def ran(target: SshTarget, *_plan: object, **_more: object) -> PhaseResult:
        targets.append(target)
        return PhaseResult(1.0, {})

    monkeypatch.setattr(plans, "run_phase", ran)
    props: dict[str, Any] = {
        **{"guest": "105", "phase": "baseline", "host": "10.0.0.5", "host_key": KEY, "private_key_file": "/key"},
        **{"hardware_address": address, "declared": {}, "digest": "d", "plan": render_baseline(cattle()).as_json()},
    }
    if address:
        PhaseProvider().create(props)
        assert targets[0].card == Card("CT 105", MAC)
    else:
        with pytest.raises(WrongMachine):
            PhaseProvider().create(props)
        assert targets == []


def test_dhcp_is_waited_for_until_an_address_can_be_reached(scene: Scene) -> None:
    scene.node = Node([[], ["169.254.7.3", "fe80::1"], ["169.254.7.3", "10.0.0.9"]])
    outs = scene.provider().create(PROPS).outs
    assert outs is not None
    assert outs["address"] == scene.waited[0]["address"] == "10.0.0.9"


def test_an_address_that_cannot_be_reached_is_told_in_the_end(scene: Scene) -> None:
    scene.node = Node([["169.254.7.3", "fe80::1"]])
    with pytest.raises(SshUnreachable) as refused:
        scene.provider().create(PROPS)
    assert scene.waited == []
    for told in ("169.254.7.3", "fe80::1", "CT 105", "cattleAddress"):
        assert told in str(refused.value)


def test_a_machine_that_does_not_answer_is_told_with_what_proxmox_sees(scene: Scene) -> None:
    scene.shown = SshUnreachable("no SSH server at 10.0.0.5:22 within 120 s.")
    scene.node = Node([["10.0.0.77"]])
    with pytest.raises(SshUnreachable, match=r"(?s)10\.0\.0\.5:22.*net0 of CT 105: 10\.0\.0\.77"):
        scene.provider().create(STATIC)


@pytest.mark.parametrize(
    ("looks", "address"), [(["10.0.0.9"], "10.0.0.9"), (["169.254.7.3"], "10.0.0.5"), ([], "10.0.0.5")]
)
def test_a_refresh_believes_only_what_can_be_reached(scene: Scene, looks: list[str], address: str) -> None:
    scene.node = Node([looks])
    outs = scene.provider().read("105/ssh", {**PROPS, "address": "10.0.0.5", "host_key": KEY}).outs
    assert outs is not None
    assert outs["address"] == address
    assert scene.waited == []


@pytest.mark.parametrize(
    ("props", "there", "stays"),
    [
        ({"card_declared": True}, False, False),
        ({"card_declared": True}, True, True),
        # Another card tells the next container from this one.
        ({}, False, True),
    ],
)
def test_a_card_that_the_next_container_has_too_tells_nothing_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, props: dict[str, Any], there: bool, stays: bool
) -> None:
    """The container was removed by hand. What is in the state of it would be taken for the next one's."""
    monkeypatch.setattr(scene.node, "vmid_taken", lambda _: there)
    before = {**STATIC, **props, "address": "10.0.0.5", "host_key": KEY}
    assert bool(scene.provider().read("105/ssh", before).id_) is stays
    # A state of before learns it, so that a later refresh knows.
    assert scene.provider().diff("105/ssh", {**STATIC}, {**STATIC, **props}).changes is bool(props)
    assert scene.provider().create({**STATIC, **props}).outs.get("card_declared") == props.get("card_declared")


@pytest.mark.parametrize("address", ["", None])
def test_a_container_without_a_card_can_be_proved_by_nothing(scene: Scene, address: str | None) -> None:
    with pytest.raises(WrongMachine, match="CT 105"):
        card_of("105", address)
    with pytest.raises(WrongMachine, match="hwaddr"):
        scene.provider().create({**STATIC, "incarnation": address})
    assert scene.waited == []
