"""What the two stacks declare: the rules of the facts that live in the graph itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
import pytest

from applications.hermes import phases as hermes_phases
from applications.hermes.application import PRINTS_API_KEY
from applications.hermes.guest.names import MANAGED_ENV
from applications.hermes.phases import Built, render_agent, render_configure
from applications.hermes.settings import AgentStack
from components.cattle import Cattle
from components.naming import GUARD_SAYS
from components.parts import Access
from components.pet import PetStorage
from components.preflight import cattle_check, host_spec, pet_check
from components.providers.attachment import AttachmentProvider
from components.providers.host_mounts import HostMountsProvider
from components.providers.messages import UNKNOWN
from components.providers.power import PowerProvider
from components.state import OwnState
from provisioning.plans import PhasePlan
from proxmox.planning import AttachSpec
from settings.outputs import outputs_of
from settings.read import KEY_FILE_VARIABLE
from tests.settings import ENVIRONMENT
from tests.settings import cattle as of_cattle
from tests.settings import pet as of_pet

if TYPE_CHECKING:
    from components.providers.base import Provider
    from tests.graph.conftest import Declare, Graph

CANARY = "canary-5f1c"
DISK = "local-lvm:vm-999-disk-1"
IMAGE = "nousresearch/hermes-agent:v2026.7.20@sha256:" + "0123456789abcdef" * 4
ATTACH = AttachSpec(105, "pve", DISK, "/home/hermes", 999)
SECRET_SIGNATURE = "4dabf18193072939515e22adb298388d"  # what marks a secret on the wire to the engine


def environment() -> dict[str, str]:
    return {**ENVIRONMENT, KEY_FILE_VARIABLE: os.environ[KEY_FILE_VARIABLE]}


def settings(**given: Any) -> AgentStack:
    return of_cattle(environment=environment(), **{"agentSource": "pypi", "agentVersion": "0.19.0", **given})


def pet(declare: Declare, **given: object) -> Graph:
    def program() -> None:
        read = of_pet(environment=environment(), **given)
        PetStorage("pet", read, pet_check(read, OwnState()).volumes)

    return declare(program)


def cattle(declare: Declare, seen: dict[str, Any] | None = None, /, **given: object) -> Graph:
    """`seen`: gets the outputs."""

    def program() -> None:
        read = settings(**given)
        host = host_spec(read, OwnState())
        check = cattle_check(read, OwnState(), owner=999, volid=DISK if read.cattle.volume else None, host=host)
        made = Cattle("cattle", read, attach=check.attach, host=host, ssh_public_keys=["ssh-ed25519 AAAA"])
        if seen is not None:
            pulumi.Output.all(**made.exports).apply(seen.update)

    return declare(program)


def test_the_pet_is_protected_three_times_over(declare: Declare) -> None:
    """By Proxmox, by Pulumi's protect, and retained if it ever leaves the program."""
    graph = pet(declare)
    container = graph.resources["pet-container"]
    assert container.inputs["protection"] is True
    assert graph.options("pet-container").protect is True
    assert graph.options("pet-container").retainOnDelete is True


def test_the_pet_is_as_small_as_the_design_says(declare: Declare) -> None:
    inputs = pet(declare).resources["pet-container"].inputs
    assert inputs["vmId"] == 999
    assert inputs["cpu"] == {"cores": 1}
    assert inputs["memory"] == {"dedicated": 256, "swap": 0}
    assert inputs["disk"] == {"datastoreId": "local-lvm", "size": 2}
    assert inputs["unprivileged"] is True
    assert inputs["started"] is False


@pytest.mark.parametrize(("stack", "name"), [(pet, "pet-container"), (cattle, "cattle-container")])
def test_no_container_declares_mounts_and_each_ignores_them_and_its_power(
    declare: Declare, stack: Any, name: str
) -> None:
    """mount_points is force-new as a whole, started would stop what we started (facts pulumi)."""
    graph = stack(declare)
    assert "mountPoints" not in graph.resources[name].inputs
    assert graph.resources[name].inputs["started"] is False
    assert {"mountPoints", "started"} <= set(graph.options(name).ignoreChanges)


def test_each_volume_is_a_resource_of_its_own_and_the_guard_depends_on_all(declare: Declare) -> None:
    volumes = [
        {"name": "one", "storage": "local-lvm", "size": 1, "path": "/mnt/one"},
        {"name": "two", "storage": "local-lvm", "size": 2, "path": "/mnt/two"},
    ]
    graph = pet(declare, petVolumes=volumes)
    assert {"pet-volume-one", "pet-volume-two"} <= set(graph.resources)
    for name in ("pet-volume-one", "pet-volume-two"):
        # Out of the list, it is kept where it is; protect would make that an error.
        assert graph.options(name).retainOnDelete is True
        assert graph.options(name).protect is not True
    guard = graph.options(f"pet-{GUARD_SAYS}")
    assert guard.protect is True
    depended = {urn.rsplit("::", 1)[1] for urn in guard.dependencies}
    assert {"pet-container", "pet-volume-one", "pet-volume-two"} <= depended


def test_the_pet_runs_only_when_asked(declare: Declare) -> None:
    assert "pet-power" not in pet(declare).resources
    assert pet(declare, petStarted=True).resources["pet-power"].inputs["running"] is True


def test_the_cattle_has_nesting_and_no_other_feature(declare: Declare) -> None:
    """Any other feature key is refused for every token (facts proxmox 2.2)."""
    assert cattle(declare).resources["cattle-container"].inputs["features"] == {"nesting": True}


def test_the_pet_has_no_features(declare: Declare) -> None:
    assert "features" not in pet(declare).resources["pet-container"].inputs


def test_the_cattle_is_deleted_before_it_is_made_again(declare: Declare) -> None:
    """Its VMID exists once (field reports B15)."""
    assert cattle(declare).options("cattle-container").deleteBeforeReplace is True


def test_all_phases_are_replaced_with_the_container(declare: Declare) -> None:
    graph = cattle(declare)
    names = [
        "cattle-ssh",
        "cattle-agent-baseline",
        "cattle-agent-agent",
        "cattle-agent-configure",
        "cattle-agent-verify",
        "cattle-agent-login",
    ]
    for name in names:
        replaced_with = [urn.rsplit("::", 1)[1] for urn in graph.options(name).replace_with]
        assert replaced_with == ["cattle-container"], name


@pytest.mark.parametrize("provider", [AttachmentProvider, PowerProvider, HostMountsProvider])
def test_what_is_undone_on_the_guest_asks_to_go_with_it(provider: type[Provider]) -> None:
    """The engine asks, with an unknown input, whether it goes before the container; then it keeps the order."""
    olds = {"guest": "105"}
    assert provider().diff("", olds, olds).replaces == []
    assert provider().diff("", olds, {"guest": UNKNOWN}).replaces == ["guest"]


def test_what_is_undone_on_the_guest_is_not_shuffled(declare: Declare) -> None:
    """`replace_with` deletes in any order (pulumi 3.276, step_generator.go, `findDependentCascadeReplacements`)."""
    graph = cattle(declare, cattleHostMounts=MOUNTS)
    assert not graph.options("cattle-host-mounts").replace_with
    assert not graph.options("cattle-volume").replace_with
    assert not graph.options("cattle-power").replace_with
    order = ["cattle-container", "cattle-host-mounts", "cattle-volume", "cattle-power", "cattle-ssh"]
    for one, other in pairwise(order):
        assert one in {urn.rsplit("::", 1)[1] for urn in graph.options(other).dependencies}, other


def test_the_volume_is_attached_as_it_was_exported(declare: Declare) -> None:
    inputs = cattle(declare).resources["cattle-volume"].inputs
    assert (inputs["volid"], inputs["owner"], inputs["path"], inputs["slot"]) == (
        "local-lvm:vm-999-disk-1",
        999,
        "/home/hermes",
        "mp0",
    )
    # pct.conf(5), in the order in which two spellings compare: what a container's root leaves there gains nothing.
    assert inputs["options"] == "mountoptions=nodev;nosuid"


def test_every_phase_holds_the_server_to_its_key(declare: Declare) -> None:
    graph = cattle(declare)
    for name in ("baseline", "agent", "configure", "verify"):
        assert graph.resources[f"cattle-agent-{name}"].inputs["host_key"] == "ssh-ed25519 AAAA"


def test_the_way_in_is_in_the_state_where_the_agent_s_command_looks_for_it(declare: Declare) -> None:
    """Before the outputs are there: these are the names that tests/unit/test_agent_command.py finds in a state."""
    access = cattle(declare).resources["cattle-ssh"]
    assert access.type == "pulumi-python:dynamic/guest:Access"
    assert access.inputs["private_key_file"] == os.environ["HERMES_SSH_KEY_FILE"]
    assert {"address", "host_key", "private_key_file"} <= set(Access.__annotations__) | set(access.inputs)


def test_the_login_is_tried_with_the_pinned_key_after_the_agent_was_verified(declare: Declare) -> None:
    """Field reports F1, F2, F6; the command's own text comes back in its errors, and holds no secret (F4)."""
    graph = cattle(declare)
    login = graph.resources["cattle-agent-login"].inputs
    # The private key in it makes the connection a secret as a whole.
    assert set(login["connection"]) == {SECRET_SIGNATURE, "value"}
    connection = login["connection"]["value"]
    assert connection["hostKey"] == "ssh-ed25519 AAAA"
    assert connection["dialErrorLimit"] >= 70
    assert login["addPreviousOutputInEnv"] is False
    assert "environment" not in login
    assert login["create"].startswith("state=$(systemctl is-active hermes-gateway.service); ")
    assert " # after " in login["create"]
    assert "delete" not in login
    depends = [urn.rsplit("::", 1)[1] for urn in graph.options("cattle-agent-login").dependencies]
    assert "cattle-agent-verify" in depends


def test_what_the_environment_says_is_not_stored(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a rotated token works for destroy without an up before it (field reports E5)."""
    monkeypatch.setenv("PROXMOX_VE_ENDPOINT", "https://192.0.2.1:8006")
    monkeypatch.setenv("PROXMOX_VE_API_TOKEN", "u@pve!ci=00000000-1111-2222-3333-444444444444")
    provider = pet(declare).resources["proxmox"].inputs
    assert "apiToken" not in provider
    assert "endpoint" not in provider


def test_secrets_reach_the_engine_as_secrets_only(declare: Declare) -> None:
    """Whatever carries the model's key or the SSH key is marked secret, and nothing shown has it."""
    graph = cattle(declare, agentModelKey=CANARY)
    for resource in graph.resources.values():
        shown = {
            key: value for key, value in resource.inputs.items() if key not in ("plan", "connection", "__provider")
        }
        assert CANARY not in json.dumps(shown, default=str), resource.name
    wire = graph.options("cattle-agent-configure").object["plan"]
    assert SECRET_SIGNATURE in wire


CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"agentModel": "other"}, {"configure", "verify"}),
    ({"agentSettings": {"timezone": "UTC"}}, {"configure", "verify"}),
    ({"agentDocuments": {"SOUL.md": "I am"}}, {"configure", "verify"}),
    ({"agentEnvironment": {"A": "1"}}, {"configure", "verify"}),
    ({"agentSecretEnvironment": {"A": "1"}}, {"configure", "verify"}),
    ({"agentMcpServers": {"x": {"command": "y"}}}, {"configure", "verify"}),
    ({"agentFallbackModels": [{"provider": "openrouter", "model": "x"}]}, {"configure", "verify"}),
    ({"agentTelegramAllowedUsers": ["1"]}, {"configure", "verify"}),
    ({"agentExtraPackages": ["ffmpeg"]}, {"baseline"}),
    ({"agentExtraPythonPackages": ["httpx==0.28.1"]}, {"agent"}),
]


@pytest.mark.parametrize(("change", "phases"), CHANGES, ids=[next(iter(change)) for change, _ in CHANGES])
def test_a_change_runs_the_phases_that_it_concerns_and_no_other(
    declare: Declare, change: dict[str, Any], phases: set[str]
) -> None:
    """And nothing of it reaches the container or its volume: nothing is replaced."""

    def digests(graph: Graph) -> dict[str, Any]:
        found = {
            name: graph.resources[f"cattle-agent-{name}"].inputs.get("digest")
            for name in ("baseline", "agent", "configure", "verify")
        }
        others = {name: graph.resources[name].inputs for name in ("cattle-container", "cattle-volume", "cattle-ssh")}
        return found | others

    before, after = digests(cattle(declare)), digests(cattle(declare, **change))
    assert {name for name in before if before[name] != after[name]} == phases


def test_each_plan_is_rendered_once(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the cause is told by is the one that runs, where the state knows what the agent phase reports."""
    rendered: list[str] = []

    def counted(render: Callable[..., PhasePlan]) -> Callable[..., PhasePlan]:
        def made(*given: Any) -> PhasePlan:
            plan = render(*given)
            rendered.append(plan.name)
            return plan

        return made

    for name in ("render_baseline", "render_agent", "render_configure", "render_verify"):
        monkeypatch.setattr(hermes_phases, name, counted(getattr(hermes_phases, name)))

    def program() -> None:
        read = settings()
        # As conftest's agent phase reports it.
        known = {"declared": render_agent(read.agent).declared, "results": {"directory": "/opt/hermes/0.19.0"}}
        Cattle("c", read, attach=ATTACH, ssh_public_keys=["k"], phases={"c-agent-agent": known})

    declare(program)
    assert sorted(rendered) == ["agent", "baseline", "configure", "verify"]


@pytest.mark.parametrize("given", [{}, {"agentApi": True}, {"agentMode": "docker", "agentImage": IMAGE}])
def test_the_outputs_are_the_promised_ones_whatever_the_stack_is(declare: Declare, given: dict[str, object]) -> None:
    seen: dict[str, Any] = {}
    cattle(declare, seen, **{"agentDashboard": False, **given})
    promised = outputs_of("hermes")
    assert seen.keys() == promised.keys()
    shapes = {"string": str, "integer": int, "object": dict}
    assert [key for key, output in promised.items() if not isinstance(seen[key], shapes[output.kind])] == []
    assert (seen["agentVersion"], seen["agentState"], seen["address"]) == ("0.19.0", "active", "192.0.2.5")


def test_the_key_of_the_api_is_a_secret_and_no_log_shows_it(declare: Declare) -> None:
    """Made in the cattle, the login reads it; declared, it is the setting."""
    secrets: dict[str, Any] = {}

    def exported(**given: object) -> Graph:
        def run() -> None:
            made = Cattle("cattle", settings(**given), attach=ATTACH, ssh_public_keys=["k"])
            key = pulumi.Output.from_input(made.exports["apiKey"])
            pulumi.Output.all(key, key.is_secret(), pulumi.Output.from_input(made.exports["agentState"])).apply(
                lambda found: secrets.update(key=found[0], secret=found[1], state=found[2])
            )

        return declare(run)

    off = exported()
    assert secrets == {"key": "", "secret": False, "state": "active"}
    assert "API_SERVER_KEY" not in off.resources["cattle-agent-login"].inputs["create"]
    made = exported(agentApi=True)
    login = made.resources["cattle-agent-login"]
    assert (login.inputs["logging"], secrets["secret"]) == ("stderr", True)
    assert "stdout" in made.options("cattle-agent-login").additionalSecretOutputs
    assert "API_SERVER_KEY" in login.inputs["create"]
    declared = "a-key-of-one-s-own-with-32-letters-"
    own = exported(agentApi=True, agentApiKey=declared)
    assert secrets == {"key": declared, "secret": True, "state": "active"}
    assert declared not in str(own.resources["cattle-agent-login"].inputs)


def test_the_line_that_reads_the_key_prints_it_alone(tmp_path: Path) -> None:
    """After the state, and only what is written as configure writes it."""
    key = "0123456789abcdef0123456789abcdef-_"
    file = tmp_path / ".env"
    file.write_text(f"A='b'\nAPI_SERVER_KEY='{key}'\nX_API_SERVER_KEY='other'\n")
    script = PRINTS_API_KEY.replace(str(MANAGED_ENV), str(file))
    done = subprocess.run(["sh", "-c", f"echo active; {script} # after 01"], capture_output=True, text=True, check=True)
    assert done.stdout == f"active\n{key}\n"


def test_without_a_dashboard_none_is_started_and_none_is_promised(declare: Declare) -> None:
    seen: dict[str, Any] = {}

    def program() -> None:
        read = settings(agentDashboard=False)
        assert not read.agent.dashboard.enabled
        made = Cattle("c", read, attach=ATTACH, ssh_public_keys=["k"])
        pulumi.Output.all(**made.exports).apply(seen.update)

    declare(program)
    assert seen["dashboard"] == ""


# --- Docker mode --------------------------------------------------------------------------------

IN_DOCKER = {"agentMode": "docker", "agentImage": IMAGE, "agentDashboard": False}


def in_docker(declare: Declare, seen: dict[str, Any] | None = None, /, **given: object) -> Graph:
    return cattle(declare, seen, **{**IN_DOCKER, **given})


def phases(graph: Graph) -> dict[str, Any]:
    return {
        name: graph.resources[f"cattle-agent-{name}"].inputs.get("digest")
        for name in ("baseline", "agent", "configure")
    }


def identity_shown(graph: Graph) -> str:
    return str(graph.resources["cattle-agent-configure"].inputs["declared"]["container"]["identity"])


def test_docker_mode_has_the_same_phases_with_other_contents(declare: Declare) -> None:
    bare, docker = cattle(declare, agentDashboard=False), in_docker(declare)
    assert set(docker.resources) - set(bare.resources) == {"cattle-host-mounts"}  # keyctl
    assert set(bare.resources) <= set(docker.resources)
    assert phases(bare)["baseline"] == phases(docker)["baseline"]
    assert docker.resources["cattle-agent-agent"].inputs["declared"]["image"] == IMAGE
    verify = docker.resources["cattle-agent-verify"].inputs["declared"]
    assert verify["container"] is True


@pytest.mark.parametrize(
    ("given", "rerun", "recreated"),
    [
        ({"agentModel": "other"}, {"configure"}, False),
        ({"agentModelKey": CANARY}, {"configure"}, False),
        ({"agentExtraVolumes": ["/data:/data"]}, {"configure"}, True),
        ({"agentExtraOptions": {"cpus": 1}}, {"configure"}, True),
        ({"agentPublishedBindIp": "192.0.2.5"}, {"configure"}, True),
        ({"agentImage": IMAGE.replace("@sha256:0", "@sha256:f")}, {"agent", "configure"}, True),
        ({"agentInsecureRegistries": ["192.0.2.1:5000"]}, {"agent"}, False),
    ],
)
def test_the_preview_tells_a_new_container_from_a_restart(
    declare: Declare, given: dict[str, object], rerun: set[str], recreated: bool
) -> None:
    before, after = in_docker(declare), in_docker(declare, **given)
    assert {name for name, digest in phases(before).items() if digest != phases(after)[name]} == rerun
    assert (identity_shown(before) != identity_shown(after)) is recreated


# --- host mounts --------------------------------------------------------------------------------

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ"
MOUNTS = [
    {"source": "/mnt/pve/hdd/hermes", "path": "/data"},
    {"source": "/srv/films", "path": "/films", "readOnly": True},
]


def dependencies(graph: Graph, name: str) -> set[str]:
    return {urn.rsplit("::", 1)[1] for urn in graph.options(name).dependencies}


def test_without_host_mounts_nothing_asks_for_root(declare: Declare) -> None:
    assert not [name for name in cattle(declare, nodeSshHostKey=HOST_KEY).resources if "host" in name]


def test_host_mounts_come_before_the_first_start_and_are_proved_after_it(declare: Declare) -> None:
    graph = cattle(declare, cattleHostMounts=MOUNTS, nodeSshHostKey=HOST_KEY, nodeSshPort=2222)
    wish = graph.resources["cattle-host-mounts"].inputs
    assert wish["keyctl"] is False
    assert wish["mounts"] == [
        {"source": "/mnt/pve/hdd/hermes", "path": "/data", "readOnly": False, "owner": 10000},
        {"source": "/srv/films", "path": "/films", "readOnly": True, "owner": 10000},
    ]
    # The endpoint's host, the key that logs in to the cattle.
    key = {
        "host": "192.0.2.10",
        "port": 2222,
        "user": "root",
        "hostKey": HOST_KEY,
        "keyFile": os.environ["HERMES_SSH_KEY_FILE"],
    }
    assert wish["ssh"] == key
    assert "cattle-host-mounts" in dependencies(graph, "cattle-volume")
    assert {"cattle-power", "cattle-host-mounts"} <= dependencies(graph, "cattle-host-mounts-proof")
    assert "cattle-host-mounts-proof" in dependencies(graph, "cattle-ssh")
    replaced_with = graph.options("cattle-host-mounts-proof").replace_with
    assert [urn.rsplit("::", 1)[1] for urn in replaced_with] == ["cattle-container"]


def test_nobody_is_root_without_a_pinned_key(declare: Declare) -> None:
    graph = cattle(declare, cattleHostMounts=MOUNTS)
    assert graph.resources["cattle-host-mounts"].inputs.get("ssh") is None
    assert "cattle-host-mounts-proof" not in graph.resources


def test_features_beyond_nesting_are_never_the_plugins(declare: Declare) -> None:
    """It would send all four, and be refused (facts proxmox 15)."""
    for given in ({}, {"cattleKeyctl": True}):
        graph = cattle(declare, **given)
        assert graph.resources["cattle-container"].inputs["features"] == {"nesting": True}
        assert "features" in graph.options("cattle-container").ignoreChanges


def test_docker_shows_the_containers_identity(declare: Declare) -> None:
    seen: dict[str, Any] = {}
    in_docker(declare, seen)
    assert seen["agentIdentity"] == "0123abcd"


def test_an_update_that_was_ended_in_the_middle_is_told_to_configure_in_docker_too() -> None:
    """Else a run with the old image set again would find nothing to do, and leave the new one's half."""
    declared = render_configure(
        settings(**IN_DOCKER), Built.of({"directory": IMAGE, "unfinished_update": "12-34"})
    ).declared
    assert declared["unfinished_update"] == "12-34"
    assert declared["agent_directory"] is None


def test_docker_has_keyctl(declare: Declare) -> None:
    assert in_docker(declare).resources["cattle-host-mounts"].inputs["keyctl"] is True


def test_docker_has_the_host_mounts_where_the_guest_has_them(declare: Declare) -> None:
    graph = in_docker(declare, cattleHostMounts=MOUNTS, agentExtraVolumes=["/srv:/srv"])
    service = graph.resources["cattle-agent-configure"].inputs["declared"]["container"]["service"]
    assert {"/data:/data", "/films:/films:ro", "/srv:/srv"} <= {_volume_text(volume) for volume in service["volumes"]}


def _volume_text(volume: Any) -> str:
    if isinstance(volume, str):
        return volume
    return f"{volume['source']}:{volume['target']}{':ro' if volume.get('read_only') else ''}"


def test_without_a_volume_the_power_comes_after_the_host_mounts(declare: Declare) -> None:
    graph = cattle(declare, cattleVolume="", cattleHostMounts=MOUNTS)
    assert "cattle-volume" not in graph.resources
    assert graph.resources["cattle-power"].inputs["running"] is True
    assert "cattle-host-mounts" in dependencies(graph, "cattle-power")
    assert graph.resources["cattle-agent-baseline"].inputs["declared"]["home_on_root"] is True
    assert "cattle-power" in dependencies(graph, "cattle-ssh")
