"""The rules of the settings (settings/): what is taken, and what each fault says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.host_settings import host_mounts_of, node_ssh_of
from components.network import network_spec
from components.node_shell import NodeSsh
from proxmox.network import NetworkSpec
from settings.agent import BareMetalAgent, DockerAgent
from settings.stack import AgentStack, PetStack, Role, role_of
from tests.repository import a_release, pasted
from tests.settings import ENVIRONMENT, MODEL, cattle, faults, pet, read

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ"


def test_the_defaults_are_the_design_s_pet() -> None:
    found = pet().pet
    assert (found.vmid, found.hostname, found.cores, found.memory, found.disk, found.started) == (
        999,
        "pet-storage",
        1,
        256,
        2,
        False,
    )


def test_the_defaults_are_the_design_s_cattle() -> None:
    found = cattle().cattle
    assert (found.vmid, found.hostname, found.disk, found.mount_path) == (105, "hermes", 20, "/home/hermes")


@pytest.mark.parametrize("stack", ["pet", "cattle"])
def test_the_committed_stack_files_are_ready_to_use_and_hold_no_secret(stack: str) -> None:
    text = (Path(__file__).parents[2] / f"Pulumi.{stack}.yaml").read_text()
    config = {key.split(":")[1]: value for key, value in yaml.safe_load(text)["config"].items()}
    assert isinstance(read(stack, **config), PetStack if stack == "pet" else AgentStack)
    assert not {"apiToken", "agentModelKey", "agentDashboardPassword"} & set(config)
    assert "secure:" not in text


@pytest.mark.parametrize(
    ("stack", "declared", "role"),
    [
        ("pet", "", Role.PET),
        ("pet-garage", "", Role.PET),
        ("cattle-alice", "", Role.CATTLE),
        ("anything", "cattle", Role.CATTLE),
        ("cattle", "pet", Role.PET),
        ("petunia", "", None),
        ("pet", "dog", None),
    ],
)
def test_the_role_is_declared_or_in_the_name(stack: str, declared: str, role: Role | None) -> None:
    assert role_of(stack, declared) is role


@pytest.mark.parametrize(
    ("stack", "key", "value"),
    [
        ("pet", "petVmid", 99),  # facts proxmox 0: 100 to 999999999
        ("pet", "petVmid", 1_000_000_000),
        ("pet", "petHostname", "bad_host"),
        ("pet", "petMemory", 8),  # facts proxmox 0: 16 at least
        ("pet", "petTags", ["a b!"]),
        ("pet", "petStorage", "/mnt"),
        ("cattle", "template", "/var/lib/vz/template/cache/x.tar.zst"),
        ("cattle", "cattleAddress", "192.168.1.205"),
        ("cattle", "cattleAddress", "192.168.1.0/24"),
        ("cattle", "cattleAddress", "example"),
        ("cattle", "cattleAddress", "192.168.1.205/255.255.255.0"),  # facts proxmox: CIDRv4, a prefix of 8 to 32
        ("cattle", "cattleAddress", "192.168.1.205/0.0.0.255"),
        ("cattle", "cattleAddress", "192.168.1.205/0"),
        ("cattle", "cattleAddress", "auto"),  # IPv6 only
        ("cattle", "cattleAddress6", "2001:db8::5"),
        ("cattle", "cattleAddress6", "192.168.1.205/24"),
        ("cattle", "cattleAddress6", "2001:db8::/64"),
        ("cattle", "cattleNameserver", "dns"),
        ("cattle", "cattleNameserver", "192.0.2.53 dns"),
        ("cattle", "cattleSearchDomain", "home_net"),
        ("cattle", "cattleVlan", 4095),
        ("cattle", "cattleMtu", 63),
        ("cattle", "cattleMtu", 65536),
        ("cattle", "cattleFirewall", "on"),
        ("cattle", "cattleHardwareAddress", "01:24:11:00:00:01"),
        ("cattle", "cattleBridge", "a-bridge-with-16"),
        ("cattle", "cattleSshHostKey", "SHA256:AjQAs5YD7uTWfzmQFt1o4SjfPfdfOuMAm7B30H8tdVg"),
        ("cattle", "cattleAddress", "192.0.2.255/24"),
        ("cattle", "cattleAddress", "169.254.7.3/16"),
        ("cattle", "cattleAddress", "127.0.0.5/8"),
        ("cattle", "cattleAddress", "224.0.0.5/24"),
        ("cattle", "cattleAddress", "192.0.2.0/24"),
        ("cattle", "cattleSshKeys", ["AAAA"]),
        ("cattle", "cattleSshKeys", ["ssh-ed25519 AAAA"]),  # half of a line, as by a bad paste
        ("cattle", "cattleSshKeys", [f"ssh-rsa {HOST_KEY.split()[1]}"]),
        ("cattle", "cattleVolume", "None or such"),
        ("cattle", "agentSource", "docker"),
        ("cattle", "agentCommit", "f97608f"),
        ("cattle", "agentVersion", "latest"),
        ("cattle", "agentModelUrl", "192.168.1.10:4000"),
        ("cattle", "agentModel", ""),
        ("cattle", "agentDashboardPort", 70000),
        ("cattle", "agentExtraPackages", ["ffmpeg; reboot"]),
        ("cattle", "petStack", "a/b"),
    ],
)
def test_a_value_outside_its_rule_is_one_fault_under_its_own_key(stack: str, key: str, value: object) -> None:
    found = faults(stack, **{**(MODEL if stack == "cattle" else {}), key: value})
    assert [name.split("[")[0] for name in found] == [key]
    rule, remedy = next((rule, remedy) for _, rule, remedy in found.values())
    assert rule
    assert remedy


@pytest.mark.parametrize(
    ("volume", "place"),
    [
        ({"name": "UP", "storage": "s1", "size": 1, "path": "/mnt/x"}, "petVolumes[0].name"),
        ({"name": "ok", "storage": "s1", "size": 0, "path": "/mnt/x"}, "petVolumes[0].size"),
        ({"name": "ok", "storage": "s1", "size": 1, "path": "/a/../b"}, "petVolumes[0].path"),
        ({"name": "ok", "storage": "s1", "size": 1, "path": "/a,b"}, "petVolumes[0].path"),
        ({"name": "ok", "storage": "s1", "size": 1}, "petVolumes[0].path"),
        ({"name": "ok", "storage": "s1", "size": 1, "path": "/x", "mp": "/y"}, "petVolumes[0].mp"),
        ({"name": "ok", "storage": "s1", "size": 1, "path": "/x", "volid": "/dev/sda"}, "petVolumes[0].volid"),
    ],
)
def test_a_fault_in_a_volume_names_its_place(volume: dict[str, object], place: str) -> None:
    assert list(faults("pet", petVolumes=[volume])) == [place]


@pytest.mark.parametrize("same", ["name", "path", "volid"])
def test_volumes_must_differ(same: str) -> None:
    one = {"name": "one", "storage": "s1", "size": 1, "path": "/one", "volid": "s1:vm-999-disk-1"}
    two = {"name": "two", "storage": "s1", "size": 1, "path": "/two", "volid": "s1:vm-999-disk-2"}
    ((_, rule, _),) = faults("pet", petVolumes=[one, {**two, same: one[same]}]).values()
    assert same in rule


def test_all_faults_are_told_at_once() -> None:
    found = faults("cattle", environment={}, cattleVmid=1, cattleGateway="x", agentModel="", cattleVmdi="7")
    assert {"cattleVmid", "cattleGateway", "agentModel", "agentModelUrl", "cattleVmdi", "endpoint", "apiToken"} == set(
        found
    )


def test_a_fault_of_one_key_hides_none_between_others() -> None:
    """The checks between keys run although another key is wrong."""
    found = faults(
        "cattle",
        **MODEL,
        cattleVmid=1,
        cattleAddress="192.168.1.205/24",
        agentCommit="x",
        agentApiPort=9119,
        agentDashboardHost="192.168.1.205",
    )
    assert {"cattleVmid", "cattleGateway", "agentCommit", "agentApiPort", "agentDashboardPassword"} == set(found)


def test_a_misspelt_key_is_told_with_the_near_one() -> None:
    assert "cattleVmid" in faults("cattle", **MODEL, cattleVmdi="7")["cattleVmdi"][2]


@pytest.mark.parametrize("key", ["apiToken", "agentModelKey", "agentDashboardPassword", "agentApiKey"])
def test_a_secret_in_clear_is_refused_and_not_repeated(key: str) -> None:
    value = "canary-canary-canary-canary-canary"
    found = faults("cattle", **MODEL, **{key: value}, in_clear=frozenset({key}))
    assert f"--secret {key}" in found[key][2]
    assert "canary" not in json.dumps(found)


def test_a_secret_that_is_not_set_may_stand_empty_in_clear() -> None:
    assert not cattle(agentModelKey="", in_clear=frozenset({"agentModelKey"})).agent.model.key


DHCP = NetworkSpec(bridge="vmbr0", ip="dhcp")


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({}, DHCP),
        (
            {"cattleAddress": "203.0.113.5/32", "cattleGateway": "198.51.100.1"},
            replace(DHCP, ip="203.0.113.5/32", gateway="198.51.100.1"),
        ),
        (
            {"cattleAddress": "10.0.0.0/31", "cattleGateway": "10.0.0.1"},
            replace(DHCP, ip="10.0.0.0/31", gateway="10.0.0.1"),
        ),
        ({"cattleAddress": "manual"}, replace(DHCP, ip="manual")),
        ({"cattleAddress6": "auto"}, replace(DHCP, ip6="auto")),
        (
            {"cattleAddress6": "2001:db8::5/64", "cattleGateway6": "fe80::1"},
            replace(DHCP, ip6="2001:db8::5/64", gateway6="fe80::1"),
        ),
        ({"cattleNameserver": "192.0.2.53, 2001:db8::53"}, replace(DHCP, nameservers=("192.0.2.53", "2001:db8::53"))),
        ({"cattleSearchDomain": "home.example.org lan"}, replace(DHCP, search="home.example.org lan")),
        ({"cattleBridge": "vmbr0.20"}, replace(DHCP, bridge="vmbr0.20")),
        ({"cattleVlan": 1, "cattleMtu": 64, "cattleFirewall": "true"}, replace(DHCP, vlan=1, mtu=64, firewall=True)),
        (
            {"cattleVlan": 4094, "cattleMtu": 65535, "cattleFirewall": "false"},
            replace(DHCP, vlan=4094, mtu=65535, firewall=False),
        ),
        (
            {"cattleHardwareAddress": "bc:24:11:00:00:01"},
            replace(DHCP, hardware_address="BC:24:11:00:00:01"),
        ),
    ],
)
def test_all_of_the_card_that_proxmox_takes_can_be_set(given: dict[str, Any], spec: NetworkSpec) -> None:
    assert network_spec(cattle(**given).cattle.network) == spec


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"cattleAddress": "192.168.1.205/24"}, "needs a gateway"),
        ({"cattleAddress": "192.168.1.205/24", "cattleGateway": "10.0.0.1"}, "outside of the network"),
        ({"cattleAddress": "192.168.1.1/24", "cattleGateway": "192.168.1.1"}, "the container's own address"),
        ({"cattleGateway6": "fe80::1"}, "static address only"),
        ({"cattleAddress6": "auto", "cattleGateway6": "fe80::1"}, "static address only"),
        ({"cattleAddress6": "2001:db8::5/64", "cattleGateway6": "2001:db8:1::1"}, "outside of the network"),
        ({"cattleAddress6": "2001:db8::5/64", "cattleNameserver": "192.0.2.53 2001:DB8:0::5"}, "own address"),
        (
            {"cattleAddress": "192.168.1.5/24", "cattleGateway": "192.168.1.1", "cattleNameserver": "192.168.1.5"},
            "the cattle's own address",
        ),
        ({"cattleAddress": "192.168.1.255/24", "cattleGateway": "192.168.1.1"}, "broadcast address of 192.168.1.0/24"),
        ({"cattleAddress": "dhcp", "cattleGateway": "192.168.1.1"}, "static address only"),
        ({"agentDashboardHost": "0.0.0.0"}, "needs a password"),  # noqa: S104 - a value to be refused
        ({"agentDashboardPassword": "elevenchars"}, "12 characters"),
        ({"agentApiPort": 9119}, "are the same"),
        ({"cattleMountPath": "/etc/hermes"}, "in /home or below"),
        ({"cattleMountPath": "/home"}, "in /home or below"),
        ({"agentStateDirectory": "/var/lib/state"}, "below the volume's mount point /home/hermes"),
        ({"agentStateDirectory": "/home/hermes/.hermes-stack"}, "below the volume's mount point"),
        ({"agentStateDirectory": "/home/hermes/.hermes-stack/x"}, "below the volume's mount point"),
        ({"agentStateDirectory": "/home/hermes/../x"}, "absolute path"),
        ({"agentWorkingDirectory": "/srv/work"}, "or below it"),
        ({"agentWorkingDirectory": "/home/hermes/.hermes/work"}, "not be in the state directory"),
        ({"agentUser": "root"}, "can't run as root"),
        ({"agentGroup": "hermes-users"}, "can't run as hermes-users"),
        ({"agentUser": "Her Mes"}, "name of an account"),
        ({"agentUid": 999}, "greater than or equal to 1000"),
        ({"agentExtraArgs": ["--replace"]}, "end each other"),
        ({"agentExtraArgs": ["a\nb"]}, "in one line"),
        ({"agentRestart": "sometimes"}, "'always'"),
        ({"agentRestartSeconds": -1}, "greater than or equal to 0"),
        ({"agentApiKey": "short"}, "32 or more"),
        ({"agentApiKey": "with a blank in it, and long enough too"}, "32 or more"),
        ({"agentApiHost": "my-host"}, "IP address"),
    ],
)
def test_settings_that_do_not_go_together(given: dict[str, object], part: str) -> None:
    found = faults("cattle", **MODEL, **given)
    assert len(found) == 1
    assert part in next(iter(found.values()))[1]


def test_a_dashboard_that_does_not_run_needs_no_password() -> None:
    assert not cattle(agentDashboard=False, agentDashboardHost="0.0.0.0").agent.dashboard.enabled  # noqa: S104 - not used


def test_tags_and_keys_are_as_proxmox_stores_them() -> None:
    """Sorted, lower case, once; white space in a key is no difference (field reports B5, B6)."""
    spaced = f"{HOST_KEY.replace(' ', '  ')}   me@x \n"
    found = cattle(cattleTags=["b", "A", "a"], cattleSshKeys=[spaced]).cattle
    assert found.tags == ["a", "b"]
    assert found.ssh_keys == [f"{HOST_KEY} me@x"]


def test_the_environment_names_the_key_file_first() -> None:
    environment = {**ENVIRONMENT, "HERMES_SSH_KEY_FILE": "/run/key"}
    assert cattle(environment=environment).ssh_private_key_file == "/run/key"


# --- Docker mode --------------------------------------------------------------------------------

IMAGE = "nousresearch/hermes-agent:v2026.7.20@sha256:" + "0123456789abcdef" * 4
DOCKER: dict[str, Any] = {**MODEL, "agentMode": "docker", "agentImage": IMAGE, "agentDashboard": False}


def test_docker_mode_reads_its_own_settings_and_the_other_mode_does_not() -> None:
    agent = cattle(**DOCKER, agentExtraVolumes=["/data:/data"], agentExtraOptions={"cpus": 2}, agentCommit="x").agent
    assert isinstance(agent, DockerAgent)
    docker = agent.container
    assert (docker.image, docker.extra_volumes, docker.extra_options) == (IMAGE, ["/data:/data"], {"cpus": 2})
    assert docker.published_ip == "127.0.0.1"
    assert isinstance(cattle(agentImage="anything").agent, BareMetalAgent)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("agentImage", "", "REPOSITORY:TAG@sha256:DIGEST"),
        ("agentImage", "nousresearch/hermes-agent:latest", "a tag alone can be moved"),
        ("agentBackend", "rkt", "must be 'docker' or 'podman'"),
        ("agentExtraVolumes", ["/data"], "HOST:CONTAINER"),
        ("agentExtraVolumes", ["/a:/x", "/b:/x"], "two volumes"),
        ("agentExtraOptions", {"user": "0"}, "start as root"),
        ("agentExtraOptions", ["cpus"], "must be an object"),
        ("agentPublishedBindIp", "everywhere", "IPv4 address"),
        ("agentInsecureRegistries", ["http://192.168.1.10"], "HOST:PORT"),
        ("agentModelUrl", "http://localhost:4000/v1", "loopback is the container's own"),
        ("agentDashboard", True, "needs a password"),
        ("agentDashboardHost", "192.168.1.205", "agentPublishedBindIp"),
        ("agentApiHost", "192.168.1.205", "agentPublishedBindIp"),
        ("agentExtraArgs", ["-v"], "for bare-metal mode"),
    ],
)
def test_a_wrong_setting_of_docker_mode_is_told(key: str, value: object, part: str) -> None:
    ((_, rule, remedy),) = faults("cattle", **{**DOCKER, key: value}).values()
    assert part in rule
    assert remedy


def test_faults_of_docker_mode_come_together_with_the_others() -> None:
    found = faults("cattle", **{**DOCKER, "agentImage": "", "cattleVmid": 1, "agentModelUrl": "http://127.0.0.1/v1"})
    assert {"agentImage", "cattleVmid", "agentModelUrl"} == set(found)


LENT = [{"source": "/mnt/pve/hdd/hermes", "path": "/data"}]
SHOWN = [{"source": "/mnt/pve/hdd/films", "path": "/media", "readOnly": True}]


@pytest.mark.parametrize(
    ("volumes", "mounts", "path", "within"),
    [
        (["/home/hermes/work:/work"], [], "/home/hermes/work", "/home/hermes"),
        (["/home/hermes/.hermes/skills:/skills:ro"], [], "/home/hermes/.hermes/skills", "/home/hermes"),
        (["/srv/ha:/home/hermes/ha"], [], "/home/hermes/ha", "/home/hermes"),
        (["/srv/ha:/opt/data/ha"], [], "/opt/data/ha", "/opt/data"),
        (["/data/films:/films"], LENT, "/data/films", "/data"),
        (["/srv:/srv", "/srv/films:/films:ro"], [], "/srv/films", "/srv"),
        (["/srv:/srv", "/films:/srv/films:ro"], [], "/srv/films", "/srv"),
        ([], [{"source": "/mnt/pve/hdd/hermes", "path": "/home/hermes/disk"}], "/home/hermes/disk", "/home/hermes"),
    ],
)
def test_a_volume_whose_path_the_agent_can_change_is_refused(
    volumes: list[str], mounts: list[dict[str, Any]], path: str, within: str
) -> None:
    """The engine looks it up as root at each start: a link in the place of a part of it leads to /etc, say."""
    found = faults("cattle", **DOCKER, agentExtraVolumes=volumes, cattleHostMounts=mounts)
    [(key, (_, rule, remedy))] = found.items()
    assert key == ("agentExtraVolumes" if volumes else "cattleHostMounts")
    assert rule == f"{path} lies in {within}, where the agent can put a link in its place"
    assert "a folder beside it" in remedy


def test_a_volume_beside_the_home_or_in_what_is_read_only_is_taken() -> None:
    volumes = ["/media/films:/films:ro", "/srv:/srv:ro", "/srv/x:/x", "/home:/people:ro", "/data-2:/data-2"]
    stack = cattle(**DOCKER, agentExtraVolumes=volumes, cattleHostMounts=[*SHOWN, *LENT])
    assert [mount.target for mount in stack.bind_mounts][-2:] == ["/media", "/data"]


# --- host mounts --------------------------------------------------------------------------------


def mount(source: str = "/mnt/pve/hdd/hermes", path: str = "/data", **more: Any) -> dict[str, Any]:
    return {"source": source, "path": path, **more}


def test_host_mounts_and_the_way_to_root() -> None:
    found = cattle(
        agentUid=12345,
        cattleHostMounts=[mount(), mount("/srv/films", "/films", readOnly=True, owner=0)],
        nodeSshHostKey=f"{HOST_KEY} root@pve",
        environment={**ENVIRONMENT, "HERMES_SSH_KEY_FILE": "/keys/one"},
    )
    first, second = host_mounts_of(found)
    # Without an owner, the agent's user: it is to write there.
    assert (first.owner, first.read_only) == (12345, False)
    assert (second.owner, second.read_only) == (0, True)
    assert node_ssh_of(found) == NodeSsh("192.0.2.10", HOST_KEY, "/keys/one", 22, "root")


def test_there_is_no_way_to_root_by_default_and_no_keyctl() -> None:
    assert node_ssh_of(cattle()) is None
    assert not cattle().keyctl
    assert cattle(cattleKeyctl=True).keyctl


@pytest.mark.parametrize(
    ("mounts", "part"),
    [
        ([mount("/")], "absolute path below /"),
        ([mount("relative")], "absolute path"),
        ([mount("/etc/pve")], "none of the node's system"),
        ([mount("/usr/share/x")], "none of the node's system"),
        ([mount("/mnt")], "two levels"),
        ([mount("/mnt/pve")], "two levels"),
        ([mount("/mnt/a,b")], "a comma"),
        ([mount("/mnt/a\nreboot")], "no line break"),
        ([mount("/mnt/x/../../etc")], "without .."),
        ([mount(path="/with blank")], "letters, digits"),
        ([mount(owner=65536)], "65536"),
        ([mount(), mount("/srv/x")], "two host mounts have the path /data"),
        ([mount("/mnt/x"), mount("/mnt/x/y", "/y")], "the source /mnt/x/y lies in the source /mnt/x"),
        ([mount("/mnt/x"), mount("/mnt/x", "/y")], "lies in the source /mnt/x"),
        ([mount(path="/home/hermes")], "would cover the volume at /home/hermes"),
        ([mount(path="/home")], "would cover the volume at /home/hermes"),
    ],
)
def test_host_mounts_that_are_refused(mounts: list[dict[str, Any]], part: str) -> None:
    [(key, (_, rule, _))] = faults("cattle", **MODEL, cattleHostMounts=mounts).items()
    assert key.startswith("cattleHostMounts")
    assert part in rule


def test_a_home_that_can_not_be_written_is_none() -> None:
    given = [mount(path="/home/hermes", readOnly=True)]
    [(_, (_, rule, _))] = faults("cattle", **MODEL, cattleVolume="", cattleHostMounts=given).items()
    assert "can't be read-only" in rule


@pytest.mark.parametrize("given", [{"nodeSshHost": "192.0.2.9"}, {"nodeSshKeyFile": "/keys/root"}])
def test_a_way_to_root_is_pinned(given: dict[str, str]) -> None:
    assert "never learnt" in faults("cattle", **MODEL, **given)["nodeSshHostKey"][1]


@pytest.mark.parametrize("value", ["SHA256:abc", "ssh-ed25519", "ssh-rsa " + HOST_KEY.split()[1]])
def test_a_host_key_is_one(value: str) -> None:
    assert "TYPE BASE64" in faults("cattle", **MODEL, nodeSshHostKey=value)["nodeSshHostKey"][1]


def test_a_cattle_without_a_volume_has_its_home_on_the_root_file_system() -> None:
    assert cattle(cattleVolume="").cattle.home_on_root
    assert not cattle(cattleVolume="", cattleHostMounts=[mount(path="/home/hermes")]).cattle.home_on_root


def test_the_example_is_a_stack_that_can_be_used() -> None:
    """The design's own: CT 118 on another node, 2 cores, 4096 + 512 MB, 24 GB, DHCP, on boot, two disks."""
    file = Path(__file__).parents[2] / "examples" / "docker-on-another-node" / "Pulumi.cattle-118.yaml"
    given = {key.partition(":")[2]: value for key, value in yaml.safe_load(file.read_text())["config"].items()}
    # All but the image's digest, which is told with the command that prints it.
    image = faults("cattle-118", **given)
    assert "imagetools inspect" in image.pop("agentImage")[2]
    assert image == {}
    stack = cattle("cattle-118", **{**given, "agentImage": "nousresearch/hermes-agent:v1@sha256:" + "0" * 64})
    found = stack.cattle
    assert (found.vmid, found.cores, found.memory, found.swap, found.disk) == (118, 2, 4096, 512, 24)
    assert (found.network.address, found.start_on_boot, found.home_on_root) == ("dhcp", True, True)
    mounts = {(one.source, one.path) for one in found.host_mounts}
    assert mounts == {("/mnt/pve/hdd/hermes", "/data"), ("/media/2tb/hermes", "/fast")}
    assert stack.keyctl


def test_the_agents_folders_are_on_its_volume_wherever_that_is() -> None:
    stack = cattle(cattleMountPath="/srv/hermes", agentWorkingDirectory="/srv/hermes")
    assert (stack.state_directory, stack.working_directory) == ("/srv/hermes/.hermes", "/srv/hermes")


def test_the_api_is_off_unless_it_is_asked_for() -> None:
    agent = cattle().agent
    assert not agent.serves_api
    assert list(agent.warnings()) == []


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"agentRestart": "on-failure"}, "agentRestart is on-failure"),
        ({"agentRestart": "no"}, "agentRestart is no"),
        ({"agentApi": True, "agentApiHost": "0.0.0.0"}, "plain HTTP"),  # noqa: S104 - a value to be warned of
        ({"agentApi": True, "agentApiHost": "::"}, "plain HTTP"),
    ],
)
def test_what_is_seldom_meant_is_warned_of(given: dict[str, Any], part: str) -> None:
    (warning,) = cattle(**given).agent.warnings()
    assert part in warning


@pytest.mark.parametrize("annotated", [True, False])
def test_the_remedy_for_a_commit_prints_one_that_is_taken(tmp_path: Path, annotated: bool) -> None:
    commit = a_release(tmp_path, "v1", annotated=annotated)
    given = {**MODEL, "agentRepository": tmp_path.as_uri(), "agentTag": "v1"}
    ((_, rule, remedy),) = faults("cattle", **given, agentCommit="v1").values()
    assert rule == "must be a full commit"
    assert pasted(remedy) == commit
    agent = cattle(**given, agentCommit=pasted(remedy)).agent
    assert isinstance(agent, BareMetalAgent)
    assert agent.install.commit == commit


def test_the_installer_is_refused_with_what_to_set() -> None:
    _, rule, remedy = faults("cattle", **MODEL, agentSource="installer")["agentSource"]
    assert "install.sh is no source any more" in rule
    assert remedy.startswith("set it to git")


@pytest.mark.parametrize(
    ("given", "built"),
    [
        ({}, True),
        ({"agentDashboard": False}, False),
        ({"agentDashboard": False, "agentWebUi": "build"}, True),
        ({"agentWebUi": "prebuilt"}, False),
        # Its package brings one.
        ({"agentSource": "pypi"}, False),
    ],
)
def test_when_the_web_interface_is_built(given: dict[str, Any], built: bool) -> None:
    agent = cattle(**given).agent
    assert isinstance(agent, BareMetalAgent)
    assert agent.builds_web_ui is built


@pytest.mark.parametrize("address", ["mirror.example.org", "ftp://mirror.example.org", "https://me:word@example.org/x"])
def test_a_mirror_for_pythons_is_an_address(address: str) -> None:
    assert "agentPythonMirror" in faults("cattle", **MODEL, agentPythonMirror=address)
