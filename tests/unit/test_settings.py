"""The rules of the settings (settings/): what is taken, and what each fault says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import BareMetalAgent, DockerAgent
from components.host_settings import host_mounts_of, node_ssh_of
from components.network import network_spec
from components.node_shell import NodeSsh
from proxmox.network import NetworkSpec
from settings.stack import PetStack, Role, role_of
from tests.repository import a_release, pasted
from tests.settings import DOCKER, ENVIRONMENT, OIDC, cattle, faults, pet, read
from tests.tables import cases

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


BASES: dict[str, dict[str, Any]] = {"pet": {}, "cattle": {}, "oidc": OIDC, "docker": DOCKER}


@pytest.mark.parametrize(("table", "case"), cases("settings.yaml", *BASES, keys="given key of rule remedy hidden"))
def test_what_can_not_be_is_one_fault_that_tells_why(table: str, case: dict[str, Any]) -> None:
    found = faults("pet" if table == "pet" else "cattle", **{**BASES[table], **case["given"]})
    [(key, (value, rule, remedy))] = found.items()
    assert key == case.get("key", key)
    assert key.partition("[")[0] == case.get("of", key.partition("[")[0])
    assert rule
    assert case.get("rule", "") in rule
    assert "None" not in rule
    assert remedy
    assert case.get("remedy", "") in remedy
    assert not case.get("hidden") or value in ("(hidden)", "(empty)")
    assert "canary" not in str(found)


def test_all_faults_are_told_at_once() -> None:
    given = {"cattleVmid": 1, "cattleGateway": "x", "agentModelUrl": "", "agentModel": "", "cattleVmdi": "7"}
    found = faults("cattle", environment={}, **given)
    assert {"cattleVmid", "cattleGateway", "agentModel", "agentModelUrl", "cattleVmdi", "endpoint", "apiToken"} == set(
        found
    )


def test_a_fault_of_one_key_hides_none_between_others() -> None:
    """The checks between keys run although another key is wrong."""
    found = faults(
        "cattle",
        cattleVmid=1,
        cattleAddress="192.168.1.205/24",
        agentCommit="x",
        agentApiPort=9119,
        agentDashboardHost="192.168.1.205",
    )
    assert {"cattleVmid", "cattleGateway", "agentCommit", "agentApiPort", "agentDashboardPassword"} == set(found)


def test_a_misspelt_key_is_told_with_the_near_one() -> None:
    assert "cattleVmid" in faults("cattle", cattleVmdi="7")["cattleVmdi"][2]


@pytest.mark.parametrize("key", ["apiToken", "agentModelKey", "agentDashboardPassword", "agentApiKey"])
def test_a_secret_in_clear_is_refused_and_not_repeated(key: str) -> None:
    value = "canary-canary-canary-canary-canary"
    found = faults("cattle", **{key: value}, in_clear=frozenset({key}))
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


def test_docker_mode_reads_its_own_settings_and_the_other_mode_does_not() -> None:
    agent = cattle(**DOCKER, agentExtraVolumes=["/data:/data"], agentExtraOptions={"cpus": 2}, agentCommit="x").agent
    assert isinstance(agent, DockerAgent)
    docker = agent.container
    assert (docker.image, docker.extra_volumes, docker.extra_options) == (
        DOCKER["agentImage"],
        ["/data:/data"],
        {"cpus": 2},
    )
    assert docker.published_ip == "127.0.0.1"
    assert isinstance(cattle(agentImage="anything").agent, BareMetalAgent)


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
    given = {"agentRepository": tmp_path.as_uri(), "agentTag": "v1"}
    ((_, rule, remedy),) = faults("cattle", **given, agentCommit="v1").values()
    assert rule == "must be a full commit"
    assert pasted(remedy) == commit
    agent = cattle(**given, agentCommit=pasted(remedy)).agent
    assert isinstance(agent, BareMetalAgent)
    assert agent.install.commit == commit


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
