"""The compose project: what is in it, what it never holds, and what makes it another container."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from applications.hermes.compose import compose_file, container_parameters, identity, reach, service
from applications.hermes.guest.inputs import Port
from applications.hermes.guest.names import IDENTITY_LABEL
from applications.hermes.phases import managed_environment, render_agent, render_configure
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import DockerAgent
from tests.settings import bare_metal, cattle, unchecked

DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = f"registry.example.org:5000/nous/hermes-agent:v2026.7.20@{DIGEST}"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - inside a container
CANARY = "canary-7d1e"
DASHBOARD = {"agentDashboard": True, "agentDashboardPassword": f"{CANARY} horse battery"}


def stack(**more: Any) -> AgentStack:
    usual = {"agentMode": "docker", "agentImage": IMAGE, "agentModelKey": f"{CANARY}-key", "agentDashboard": False}
    return cattle(**{**usual, **more})


def definition(**more: Any) -> dict[str, Any]:
    made = stack(**more)
    return service(made, docker(made))


def docker(made: AgentStack) -> DockerAgent:
    assert isinstance(made.agent, DockerAgent)
    return made.agent


def composed(**more: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(compose_file(definition(**more)))
    return document


def mounts(found: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {item["target"]: (item["source"], item.get("read_only", False)) for item in found["volumes"]}


def test_one_project_with_one_service_whose_image_is_pinned() -> None:
    document = composed()
    assert document["name"] == "hermes"
    assert list(document["services"]) == ["hermes"]
    assert document["services"]["hermes"]["image"] == IMAGE


def test_the_service_is_as_the_contract_of_the_image_wants_it() -> None:
    """facts hermes 2 and 3: no init, no entrypoint, no user; a health check, which the image has not."""
    found = composed()["services"]["hermes"]
    assert found["command"] == ["gateway", "run"]
    assert found["restart"] == "no"
    assert found["shm_size"] == "1gb"
    assert found["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
    assert not {"init", "entrypoint", "user", "privileged"} & set(found)
    assert "http://127.0.0.1:8642/health" in found["healthcheck"]["test"][-1]
    # Longer than a gateway may drain (facts hermes 3, issue 31981)
    assert found["stop_grace_period"] == "90s"


def test_the_health_check_is_words_without_blanks() -> None:
    """Podman 4.3's API for compose joins the words of the check and splits them at each blank."""
    words = composed(agentBackend="podman")["services"]["hermes"]["healthcheck"]["test"]
    assert words[:4] == ["CMD", "python3", "-I", "-c"]
    assert " ".join(words).split() == words
    compile(words[-1], "the check", "eval")


@pytest.mark.parametrize(("backend", "network"), [("docker", "bridge"), ("podman", "hermes-stack")])
def test_it_is_on_the_network_whose_mtu_follows_the_guests(backend: str, network: str) -> None:
    """Docker's own has it from daemon.json; Podman's own has no such setting, so it gets one of ours."""
    assert composed(agentBackend=backend)["services"]["hermes"]["network_mode"] == network


@pytest.mark.parametrize("backend", ["docker", "podman"])
def test_no_engine_starts_it_by_itself(backend: str) -> None:
    """It would look up the sources of the mounts with nobody to check them; the unit starts it."""
    assert composed(agentBackend=backend)["services"]["hermes"]["restart"] == "no"


def test_no_mount_has_a_part_that_the_agent_can_rename() -> None:
    """The home's own path may be used, for its parent is root's; nothing in it may."""
    for source, _ in mounts(composed(agentStateDirectory="/home/hermes/a/b")["services"]["hermes"]).values():
        assert not source.startswith("/home/hermes/")


def test_it_has_the_capabilities_that_the_images_init_needs_and_no_more() -> None:
    """facts hermes 3 (zacheryph/k8s-gitops#3374): s6 and the hook before it; FOWNER for the modes that it mends."""
    found = composed()["services"]["hermes"]
    assert found["cap_drop"] == ["ALL"]
    assert set(found["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"}
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert 0 < found["pids_limit"] < 32768


def test_nothing_of_the_agents_comes_before_the_images_own_programs() -> None:
    """The image's hooks and `docker exec` begin as root, and look for `id`, `chown` and the like by PATH."""
    path = composed()["services"]["hermes"]["environment"]["PATH"].split(":")
    writable = [place for place in path if place.startswith(("/opt/data", "/home"))]
    assert path[-len(writable) :] == writable
    assert path[:2] == ["/opt/hermes/bin", "/opt/hermes/.venv/bin"]
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(path)


def test_declared_capabilities_add_to_these() -> None:
    found = composed(agentExtraOptions={"cap_add": ["NET_ADMIN", "KILL"], "security_opt": ["apparmor:x"]})["services"]
    assert found["hermes"]["cap_add"][-1] == "NET_ADMIN"
    assert found["hermes"]["cap_add"].count("KILL") == 1
    assert found["hermes"]["security_opt"] == ["no-new-privileges:true", "apparmor:x"]


def test_the_home_is_the_one_of_bare_metal_and_the_managed_scope_is_read_only() -> None:
    found = mounts(composed()["services"]["hermes"])
    # Where the guest mounts /home/hermes/.hermes: applications.hermes.guest.walls.
    assert found["/opt/data"] == ("/run/hermes-stack/data", False)
    assert found["/home/hermes"] == ("/home/hermes", False)
    assert found["/etc/hermes/config.yaml"] == ("/etc/hermes/config.yaml", True)
    assert found["/etc/hermes/.env"] == ("/etc/hermes/.env", True)


def test_no_folder_is_invented_where_a_mount_is_missing() -> None:
    for item in composed()["services"]["hermes"]["volumes"]:
        assert item["bind"] == {"create_host_path": False}


def test_without_a_wish_nothing_is_published_beyond_the_guest() -> None:
    ports = composed()["services"]["hermes"]["ports"]
    assert ports == [{"target": 8642, "published": "8642", "host_ip": "127.0.0.1", "protocol": "tcp"}]


@pytest.mark.parametrize(
    ("address", "published"),
    [
        ("127.0.0.1", {("127.0.0.1", 8642), ("127.0.0.1", 9119)}),
        ("192.0.2.7", {("127.0.0.1", 8642), ("192.0.2.7", 8642), ("192.0.2.7", 9119)}),
        (EVERYWHERE, {(EVERYWHERE, 8642), (EVERYWHERE, 9119)}),
    ],
)
def test_the_address_of_the_ports_is_the_declared_one(address: str, published: set[tuple[str, int]]) -> None:
    """The API answers on the guest's loopback in each case: verify and the prompt of scripts/agent ask there."""
    found = composed(**DASHBOARD, agentPublishedBindIp=address)["services"]["hermes"]["ports"]
    assert {(port["host_ip"], port["target"]) for port in found} == published


@pytest.mark.parametrize(
    ("address", "asked"), [("127.0.0.1", "127.0.0.1"), (EVERYWHERE, "127.0.0.1"), ("192.0.2.7", "192.0.2.7")]
)
def test_where_a_published_port_is_asked_for(address: str, asked: str) -> None:
    assert reach(address) == asked


def test_the_dashboard_is_in_the_same_container() -> None:
    """Read before Python starts, so only the container's environment counts (facts hermes 1, "Env precedence")."""
    environment = composed(**DASHBOARD)["services"]["hermes"]["environment"]
    assert environment["HERMES_DASHBOARD"] == "1"
    assert environment["HERMES_DASHBOARD_HOST"] == EVERYWHERE
    assert environment["HERMES_DASHBOARD_PORT"] == "9119"
    assert "HERMES_DASHBOARD" not in composed()["services"]["hermes"]["environment"]


def test_the_api_listens_where_a_published_port_can_reach_it() -> None:
    assert managed_environment(stack().agent)["API_SERVER_HOST"] == EVERYWHERE
    assert managed_environment(bare_metal(agentApi=True))["API_SERVER_HOST"] == "127.0.0.1"


def test_a_dollar_stays_a_dollar() -> None:
    """compose takes $NAME and ${NAME} for variables, in keys of its own JSON and YAML alike; $$ is one dollar."""
    options = {"environment": {"PRICE": "$5 ${HOME} $$"}, "extra_hosts": ["a$b:192.0.2.3"]}
    document = composed(agentExtraOptions=options)["services"]["hermes"]
    assert document["environment"]["PRICE"] == "$$5 $${HOME} $$$$"
    assert document["extra_hosts"] == ["a$$b:192.0.2.3"]


# compose-spec, "Interpolation": $$ is a dollar; $NAME and ${...} are variables; any other dollar is an error.
INTERPOLATION = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\}|())")


def as_compose_reads(value: Any) -> Any:
    """Each text of the document as compose takes it; an error for a variable, and for a dollar that is none."""

    def literal(match: re.Match[str]) -> str:
        assert match[1] == "$", f"compose would put something else in place of {match[0]!r}"
        return "$"

    if isinstance(value, str):
        return INTERPOLATION.sub(literal, value)
    if isinstance(value, dict):
        return {name: as_compose_reads(item) for name, item in value.items()}
    return [as_compose_reads(item) for item in value] if isinstance(value, list) else value


TEXTS = st.lists(st.sampled_from(["$", "$$", "{", "}", "${", "HOME", "_", ":-", " ", "\n", "'", '"', "#", "ß"])).map(
    "".join
)


@given(TEXTS, TEXTS, TEXTS)
def test_whatever_is_declared_compose_reads_it_as_it_is(value: str, path: str, host: str) -> None:
    """In values of the environment, in paths, lists and maps; in the label and the command it is the same walk."""
    made = definition(agentExtraOptions={"environment": {"V": value}, "extra_hosts": [host], "sysctls": {"s": value}})
    made["volumes"][0]["source"] = path
    made["command"] = ["gateway", value]
    document = as_compose_reads(yaml.safe_load(compose_file(made)))
    labels = {"labels": {IDENTITY_LABEL: identity(made)}}
    assert document["services"]["hermes"] == json.loads(json.dumps({**made, **labels}))


def with_authorities(text: str) -> dict[str, Any]:
    made = unchecked(stack(), agent__model__authorities=text)
    return service(made, docker(made))


def test_an_authority_of_ones_own_is_trusted_in_the_container_too() -> None:
    store = "/etc/ssl/certs/ca-certificates.crt"
    plain, one, other = (with_authorities(text) for text in ("", "one", "other"))
    assert store not in mounts(plain)
    assert "SSL_CERT_FILE" not in plain["environment"]
    assert mounts(one)[store] == (store, True)
    assert one["environment"]["SSL_CERT_FILE"] == one["environment"]["REQUESTS_CA_BUNDLE"] == store
    # A mounted file that was replaced outside stays the old one inside, so another authority is another container.
    assert len({identity(found) for found in (plain, one, other)}) == 3


def test_more_volumes_and_options_reach_the_service() -> None:
    found = composed(
        agentExtraVolumes=["/data:/data", "/media/films:/films:ro"],
        agentExtraOptions={"cpus": 1.5, "ports": ["8644:8644"], "environment": {"TZ": "Europe/Berlin"}},
    )["services"]["hermes"]
    assert mounts(found)["/data"] == ("/data", False)
    assert mounts(found)["/films"] == ("/media/films", True)
    assert found["cpus"] == 1.5
    assert found["ports"][-1] == "8644:8644"
    assert found["environment"]["TZ"] == "Europe/Berlin"
    # The image lets the agent's file tools write below its own folder only; read-only folders are not added.
    assert found["environment"]["HERMES_WRITE_SAFE_ROOT"] == "/opt/data:/home/hermes:/data"


# -- identity ----------------------------------------------------------------------------------------------------------

RECREATES: dict[str, dict[str, Any]] = {
    "backend": {"agentBackend": "podman"},
    "image": {"agentImage": IMAGE.replace("@sha256:0", "@sha256:f")},
    "volume": {"agentExtraVolumes": ["/data:/data"]},
    "read-only": {"agentExtraVolumes": ["/data:/data:ro"]},
    "option": {"agentExtraOptions": {"cpus": 2}},
    "address": {"agentPublishedBindIp": "192.0.2.7"},
    "port": {"agentApiPort": 8700},
    "dashboard": DASHBOARD,
}
IN_PLACE: dict[str, dict[str, Any]] = {
    "model": {"agentModelUrl": "http://192.0.2.9/v1", "agentModel": "other", "agentModelKey": ""},
    "settings": {"agentSettings": {"agent": {"max_turns": 3}}},
    "environment": {"agentEnvironment": {"TZ": "UTC"}},
    "secret": {"agentSecretEnvironment": {"TELEGRAM_BOT_TOKEN": "t"}},
    "key": {"agentApiKey": "k" * 32},
}


@pytest.mark.parametrize("change", RECREATES)
def test_only_what_needs_another_container_changes_the_identity(change: str) -> None:
    assert identity(definition(**RECREATES[change])) != identity(definition())


@pytest.mark.parametrize("change", IN_PLACE)
def test_what_goes_in_place_leaves_the_identity(change: str) -> None:
    assert identity(definition(**IN_PLACE[change])) == identity(definition())


@pytest.mark.parametrize("change", IN_PLACE)
def test_what_goes_in_place_changes_the_configuration(change: str) -> None:
    assert render_configure(stack(**IN_PLACE[change])).digest != render_configure(stack()).digest


def test_a_new_dashboard_password_is_no_new_container() -> None:
    other = {**DASHBOARD, "agentDashboardPassword": "another long password"}
    assert identity(definition(**other)) == identity(definition(**DASHBOARD))


def test_the_identity_is_on_the_container_and_in_what_the_preview_shows() -> None:
    expected = identity(definition())
    assert len(expected) == 64
    assert composed()["services"]["hermes"]["labels"] == {IDENTITY_LABEL: expected}
    assert render_configure(stack()).declared["container"]["identity"] == expected


def test_the_guest_is_told_which_ports_and_folders_to_prove() -> None:
    made = stack(**DASHBOARD, agentExtraVolumes=["/data:/d"])
    found = container_parameters(made, docker(made), service(made, docker(made)))
    assert found.ports == (Port("127.0.0.1", 8642, "API server"), Port("127.0.0.1", 9119, "dashboard"))
    assert found.sources == ("/data",)
    assert found.limit_memory is True


def test_a_declared_limit_of_memory_is_the_limit() -> None:
    made = stack(agentExtraOptions={"mem_limit": "2g"})
    assert container_parameters(made, docker(made), service(made, docker(made))).limit_memory is False


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_no_secret_is_in_the_project_nor_in_what_is_shown() -> None:
    plan = render_configure(stack(**DASHBOARD, agentSecretEnvironment={"A_TOKEN": f"{CANARY}-token"}))
    for file in plan.files:
        assert CANARY.encode() not in file.content, file.path
    assert CANARY not in json.dumps(plan.declared)
    assert any(CANARY in value for value in plan.secrets.values())


# -- the agent phase ---------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"agentImage": IMAGE.replace("@sha256:0", "@sha256:f")},
    {"agentVersion": "0.19.0"},
    {"agentBackend": "podman"},
    {"agentInsecureRegistries": ["192.0.2.1:5000"]},
    {"agentUid": 12000},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_phase_runs_again_for_another_image_version_registry_or_account(change: dict[str, Any]) -> None:
    usual = render_agent(stack().agent).digest
    assert render_agent(stack(**change).agent).digest != usual
    assert render_agent(stack().agent).digest == usual
