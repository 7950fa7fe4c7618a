"""Our client and the lab's API, over real TLS: whom it trusts, what it may do, and what a second run sends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from lab.instance import ACCOUNT
from proxmox.client import Proxmox, Timings
from proxmox.connection import Connection, check_plugin_trust
from proxmox.errors import AuthenticationFailed, Fault, NodeUnusable, PermissionDenied, TlsUntrusted, Unreachable
from proxmox.hostkeys import made_host_keys
from proxmox.operations import (
    AttachmentState,
    attach,
    detach,
    ensure_power,
    ensure_volume,
    read_attachment,
    read_volume_state,
)
from proxmox.planning import AttachSpec, DetachSpec, PowerSpec, VolumeSpec
from proxmox.preflight import (
    CattleCheck,
    GuestCheck,
    PetCheck,
    needed_cattle,
    needed_pet,
    preflight_cattle,
    preflight_pet,
)
from proxmox.probe import prove
from proxmox.rights import grant_commands
from pvelab.config import LabConfig
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime
from tests.listening import end_listening

TEMPLATE = "local:vztmpl/debian-12.tar.zst"
PET = PetCheck(
    GuestCheck(999, "pve", "local-lvm", 1, TEMPLATE, "vmbr0"),
    (VolumeSpec("hermes", 999, "local-lvm", 1, "/volumes/hermes"),),
)
DISK = "local-lvm:vm-999-disk-1"
ATTACH = AttachSpec(105, "pve", DISK, "/home/hermes", 999)
CATTLE = CattleCheck(GuestCheck(105, "pve", "local-lvm", 20, TEMPLATE, "vmbr0"), ATTACH)
QUICK = Timings(connect=5, read=20, retry=0.1, first_poll=0.01)


@pytest.fixture(scope="module", name="lab")
def run_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    config = LabConfig(
        state_dir=tmp_path_factory.mktemp("lab"), runtime=SimulatedRuntime(), auth_delay=0, account=ACCOUNT
    )
    config.template_dir("pve").mkdir(parents=True, exist_ok=True)
    (config.template_dir("pve") / "debian-12.tar.zst").write_bytes(b"template")
    with LabServer(config) as server:
        yield server


def connection(lab: LabServer, **more: str) -> Connection:
    env = {
        "PROXMOX_VE_ENDPOINT": lab.endpoint,
        "PROXMOX_VE_API_TOKEN": lab.seed_access().api_token,
        "PROXMOX_VE_NODE": "pve",
    }
    return Connection.from_sources(env | more, {})


@pytest.fixture(name="client")
def make_client(lab: LabServer) -> Iterator[Proxmox]:
    with Proxmox(connection(lab, PROXMOX_VE_CA_FILE=str(lab.ca_file)), QUICK) as client:
        yield client


@pytest.fixture(scope="module", name="guests")
def make_guests(lab: LabServer) -> Iterator[None]:
    """A pet and a cattle, made as the provider plugin makes them, and gone at the end."""
    with Proxmox(connection(lab, PROXMOX_VE_CA_FILE=str(lab.ca_file)), QUICK) as client:
        for vmid in (999, 105):
            values = {"vmid": vmid, "ostemplate": TEMPLATE, "rootfs": "local-lvm:1", "unprivileged": 1}
            client.wait_task(client._send("POST", ("nodes", "pve", "lxc"), values))
        yield
        detach(client, DetachSpec(105, DISK))
        for vmid in (105, 999):
            ensure_power(client, PowerSpec(vmid, running=False))
            client._send("PUT", ("nodes", "pve", "lxc", vmid, "config"), {"protection": 0})
            client.wait_task(client._send("DELETE", ("nodes", "pve", "lxc", vmid)))


# Whom it trusts.


def other_ca(folder: Path) -> str:
    path = folder / "other.pem"
    trustme.CA().cert_pem.write_to_path(path)
    return str(path)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # asked for by name
def test_a_ca_file_and_a_fingerprint_prove_the_server(lab: LabServer, tmp_path: Path) -> None:
    fingerprint = lab.cluster.fingerprint
    for more in (
        {"PROXMOX_VE_CA_FILE": str(lab.ca_file)},
        {"PROXMOX_VE_FINGERPRINT": fingerprint},
        {"PROXMOX_VE_INSECURE": "true"},
    ):
        with Proxmox(connection(lab, **more), QUICK) as client:
            assert client.version().major == 9
    wrong = fingerprint.translate(str.maketrans("0123456789ABCDEF", "123456789ABCDEF0"))
    for more in ({"PROXMOX_VE_CA_FILE": other_ca(tmp_path)}, {"PROXMOX_VE_FINGERPRINT": wrong}, {}):
        with Proxmox(connection(lab, **more), QUICK) as client, pytest.raises(TlsUntrusted, match="not proved") as told:
            client.version()
        assert len(str(told.value).splitlines()) == 3


def test_a_handshake_that_is_closed_proves_nothing_and_is_tried_again(lab: LabServer) -> None:
    """A tunnel whose other end is gone, or a pveproxy that restarts: nobody has shown a certificate."""
    accepted: list[bytes] = []

    def hang_up(listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                accepted.append(sock.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,), daemon=True)
        thread.start()
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        more = {"PROXMOX_VE_ENDPOINT": endpoint, "PROXMOX_VE_CA_FILE": str(lab.ca_file)}
        with Proxmox(connection(lab, **more), replace(QUICK, retry=1)) as client, pytest.raises(Unreachable) as told:
            client.version()
        end_listening(listener, thread)
    assert "closed during the TLS handshake" in str(told.value)
    assert len(accepted) > 1


def test_certificates_of_the_environment_do_not_widen_the_trust(
    lab: LabServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(lab.ca_file))
    settings = connection(lab, PROXMOX_VE_CA_FILE=other_ca(tmp_path))
    with Proxmox(settings, QUICK) as client, pytest.raises(TlsUntrusted):
        client.version()


def test_without_a_rule_the_systems_store_decides_as_for_the_plugin(
    lab: LabServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(lab.ca_file))
    with Proxmox(connection(lab), QUICK) as client:
        assert client.version().major == 9
    assert check_plugin_trust(connection(lab), {"SSL_CERT_FILE": str(lab.ca_file)}) == ()
    nothing = {"SSL_CERT_FILE": "/nonexistent", "SSL_CERT_DIR": "/nonexistent"}
    assert len(check_plugin_trust(connection(lab), nothing)) == 1


def test_a_wrong_token_is_told_without_its_value(lab: LabServer) -> None:
    token = "pulumi@pve!lab=00000000-aaaa-bbbb-cccc-1234567890ab"
    settings = connection(lab, PROXMOX_VE_API_TOKEN=token, PROXMOX_VE_CA_FILE=str(lab.ca_file))
    with Proxmox(settings, QUICK) as client, pytest.raises(AuthenticationFailed) as told:
        client.version()
    assert "1234567890ab" not in str(told.value)


def test_nobody_there_is_told_in_three_lines(lab: LabServer) -> None:
    settings = connection(lab, PROXMOX_VE_ENDPOINT="https://127.0.0.1:1", PROXMOX_VE_INSECURE="true")
    with Proxmox(settings, QUICK) as client, pytest.raises(Unreachable) as told:
        client.version()
    assert str(told.value).splitlines()[1] == "  why: Connection refused"


# What a run sends.


def writes(lab: LabServer, since: int = 0) -> list[str]:
    entries = [json.loads(line) for line in lab.access_log.read_text().splitlines()[since:]]
    return [f"{entry['method']} {entry['path']}" for entry in entries if entry["method"] != "GET"]


def up(client: Proxmox) -> AttachmentState:
    """As a cattle's stack does: the volume, then the power."""
    attach(client, ATTACH)
    ensure_power(client, PowerSpec(105))
    state = read_attachment(client, 105, "mp0")
    assert state is not None
    return state


@pytest.mark.usefixtures("guests")
def test_a_life_and_its_second_run_which_sends_no_write(lab: LabServer, client: Proxmox) -> None:
    state = ensure_volume(client, PET.volumes[0])
    assert (state.volid, state.size_gb, state.protected) == (DISK, 1.0, True)
    attached = up(client)
    assert (attached.running, attached.options) == (True, {"mountoptions": "nodev;nosuid"})
    start = len(lab.access_log.read_text().splitlines())
    assert ensure_volume(client, PET.volumes[0]) == state
    assert up(client) == attached
    assert read_volume_state(client, 999, DISK) == state
    assert read_attachment(client, 105, "mp0") == attached
    ensure_power(client, PowerSpec(999, running=False))
    assert preflight_pet(client, ours_pet()) == []
    assert preflight_cattle(client, ours_cattle()) == []
    assert writes(lab, start) == []


@pytest.mark.usefixtures("guests")
def test_on_the_way_up_there_is_one_start_and_no_stop(lab: LabServer, client: Proxmox) -> None:
    ensure_volume(client, PET.volumes[0])
    detach(client, DetachSpec(105, DISK))
    start = len(lab.access_log.read_text().splitlines())
    up(client)
    assert [call.rpartition("/")[2] for call in writes(lab, start)] == ["config", "start"]


def ours_pet() -> PetCheck:
    return PetCheck(replace(PET.guest, ours=True), PET.volumes)


def ours_cattle() -> CattleCheck:
    return CattleCheck(replace(CATTLE.guest, ours=True), ATTACH)


# The host keys that the log of a creation tells.


def made(client: Proxmox, vmid: int) -> str:
    """Create a container as the plugin does; the task."""
    values = {"vmid": vmid, "ostemplate": TEMPLATE, "rootfs": "local-lvm:1", "unprivileged": 1, "hostname": "a.b"}
    return client.wait_task(client._send("POST", ("nodes", "pve", "lxc"), values)).upid


def gone(client: Proxmox, vmid: int) -> None:
    client.wait_task(client._send("DELETE", ("nodes", "pve", "lxc", vmid)))


def test_the_keys_of_a_container_are_told_and_not_those_of_the_one_before(client: Proxmox) -> None:
    told = [line for line in client.task_lines(made(client, 301)) if line.startswith("done: ")]
    assert len(told) == 3
    assert all(line.endswith(" root@a") for line in told)
    first = made_host_keys(client, "pve", 301)
    assert {line.split()[1] for line in told} == first
    assert made_host_keys(client, "pve", 302) == set()
    gone(client, 301)
    assert made_host_keys(client, "pve", 301) == set()
    made(client, 301)
    second = made_host_keys(client, "pve", 301)
    gone(client, 301)
    assert len(second) == 3
    assert not second & first


def test_what_somebody_else_made_tells_a_token_no_keys(lab: LabServer, client: Proxmox) -> None:
    """A token sees its own tasks; of others it needs Sys.Audit (facts proxmox 13), which is none of the eleven."""
    secret = lab.cluster.access.add_token("root@pam", "hands", privsep=False)
    theirs = connection(lab, PROXMOX_VE_CA_FILE=str(lab.ca_file), PROXMOX_VE_API_TOKEN=f"root@pam!hands={secret}")
    with Proxmox(theirs, QUICK) as root:
        task = made(root, 303)
        assert len(made_host_keys(root, "pve", 303)) == 3
        assert made_host_keys(client, "pve", 303) == set()
        with pytest.raises(PermissionDenied, match=r"Sys\.Audit"):
            client.task_lines(task)
        gone(root, 303)


# What it may do.

PRIVILEGES = sorted({(role, name) for role, names in ACCOUNT.roles.items() for name in names})


def test_the_rights_that_we_ask_for_are_those_that_the_demo_has() -> None:
    commands = grant_commands([*needed_pet(PET), *needed_cattle(CATTLE)], "pulumi@pve!lab")
    asked = commands[0].partition('"')[2].rstrip('"').split()
    assert asked == sorted({name for _, name in PRIVILEGES})
    assert len(asked) <= 12


@pytest.mark.parametrize(("role", "privilege"), PRIVILEGES)
def test_each_privilege_that_the_server_takes_away_is_named(
    lab: LabServer, client: Proxmox, role: str, privilege: str
) -> None:
    roles = lab.cluster.access.roles
    before = roles[role]
    roles[role] = before - {privilege}
    try:
        told: list[Fault] = preflight_pet(client, PET) + preflight_cattle(client, CATTLE)
    finally:
        roles[role] = before
    assert any(privilege in str(fault) for fault in told), told


@pytest.mark.usefixtures("guests")
def test_a_refused_write_names_the_privilege(lab: LabServer, client: Proxmox) -> None:
    roles = lab.cluster.access.roles
    before = roles["LabGuests"]
    roles["LabGuests"] = before - {"VM.PowerMgmt"}
    try:
        with pytest.raises(PermissionDenied, match="refused POST") as told:
            ensure_power(client, PowerSpec(105, client.guest_status("pve", 105).running is False))
    finally:
        roles["LabGuests"] = before
    assert "/vms/105, VM.PowerMgmt" in told.value.why


def test_the_probe_finds_what_is_wrong_with_the_way_and_is_soon_done_where_nothing_is(
    lab: LabServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"PROXMOX_VE_CA_FILE": str(lab.ca_file)}
    with monkeypatch.context() as patch:
        # Where all is well the client is not even made.
        patch.setattr("proxmox.client.Proxmox", None)
        prove(connection(lab, **good))
    wrong = lab.seed_access().api_token.partition("=")[0] + "=00000000-0000-0000-0000-000000000000"
    with pytest.raises(AuthenticationFailed):
        prove(connection(lab, **good, PROXMOX_VE_API_TOKEN=wrong))
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    with pytest.raises(TlsUntrusted):
        prove(connection(lab, PROXMOX_VE_CA_FILE=str(other)))
    with pytest.raises(Unreachable):
        prove(connection(lab, **good, PROXMOX_VE_ENDPOINT="https://127.0.0.1:9"))
    with pytest.raises(NodeUnusable, match="Node pve9 can't be used") as told:
        prove(connection(lab, **good, PROXMOX_VE_NODE="pve9"))
    assert "must be a node of the cluster: pve" in told.value.why
