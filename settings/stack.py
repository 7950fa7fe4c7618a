"""A stack's settings: read once, typed, every fault reported at once.

Nothing here talks to Pulumi's engine or to Proxmox, so every rule is a table test. `read_stack` is the door.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic.fields import FieldInfo

from applications.hermes.settings import AgentSettings, BareMetalAgent, DockerAgent
from applications.hermes.settings.backups import BackupSettings
from applications.hermes.settings.dashboard import DashboardSettings
from applications.hermes.settings.declaration import DeclarationSettings
from applications.hermes.settings.docker import DATA, BindMount, ContainerSettings, image_path
from applications.hermes.settings.messengers import MessengerSettings
from applications.hermes.settings.model import ApiSettings, ModelSettings
from applications.hermes.settings.service import ServiceSettings
from applications.hermes.settings.source import SourceSettings
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.errors import Fault, Faults
from settings.cattle import CattleSettings, HostMountSettings
from settings.connection import ConnectionSettings, NodeSshSettings
from settings.kinds import Claim, LocalFile, Template, plain_path
from settings.network import NetworkSettings
from settings.pet import PetSettings
from settings.section import (
    HIDDEN,
    UNREAD,
    Reading,
    Section,
    broken_rules,
    default_of,
    is_secret,
    is_tree,
    own_settings,
    read_section,
    rule,
    setting,
)

KEY_FILE_VARIABLE = "HERMES_SSH_KEY_FILE"
# The sandbox makes all of a system read-only or hides it; a home can lie where none of it is.
HOMES = ("/home", "/srv", "/mnt", "/data", "/var/lib/hermes")
KEPT_FOLDER = ".hermes-stack"
"""What this program keeps in the agent's home."""


class Role(StrEnum):
    """What a stack is."""

    PET = "pet"
    CATTLE = "cattle"


class Stack(Section):
    """What both kinds of stacks have. `name`: the stack's."""

    name: str
    connection: Connection
    role: Literal["", "pet", "cattle"] = setting(
        "role", "", "The kind of this stack, pet or cattle. Empty: from its name (pet, pet-*, cattle, cattle-*)."
    )
    template: Template = setting(
        "template",
        "local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst",
        "The volid of the container template, Debian 12 or 13. Empty: the newest of them on the node, for a new guest.",
    )
    claim: Claim = setting(
        "claim",
        "",
        "The claim in the notes of a guest that this stack has made and its state has forgotten: pulumi up adopts that "
        "guest. scripts/adopt sets it. Empty: a new stack.",
    )
    ssh_private_key_file: LocalFile = setting(
        "sshPrivateKeyFile",
        "~/.ssh/id_ed25519",
        "The private key that logs in to the cattle as root. HERMES_SSH_KEY_FILE in the environment wins.",
    )

    @rule
    def _has_a_key_file(self) -> Iterator[Fault]:
        if not self.ssh_private_key_file:
            yield self.fault("ssh_private_key_file", "must not be empty", "leave the key out: ~/.ssh/id_ed25519")


class PetStack(Stack):
    """A pet: the guest that owns the volumes."""

    pet: PetSettings


class CattleStack(Stack):
    """A cattle, and nothing in it."""

    mode: Literal["bare-metal", "docker", "none"] = setting(
        "agentMode",
        "bare-metal",
        "How Hermes runs: bare-metal (under systemd) or docker (upstream's image, as a compose project). "
        "none: the container with its volume and without an agent.",
    )
    cattle: CattleSettings
    node_ssh: NodeSshSettings

    @property
    def keyctl(self) -> bool:
        """Whether the cattle has keyctl."""
        return self.cattle.keyctl

    @property
    def agent_uid(self) -> int:
        """Whose the folders of the node are; without an agent, its usual user's."""
        return int(default_of(ServiceSettings, "uid"))

    def owner_of(self, mount: HostMountSettings) -> int:
        """Whose a folder of the node is in the cattle."""
        return self.agent_uid if mount.owner is None else mount.owner


class AgentStack(CattleStack):
    """A cattle with an agent in it."""

    agent: BareMetalAgent | DockerAgent

    @property
    def keyctl(self) -> bool:
        """Whether the cattle has keyctl; with Docker always (field reports H2)."""
        return self.cattle.keyctl or isinstance(self.agent, DockerAgent)

    @property
    def agent_uid(self) -> int:
        return self.agent.service.uid

    @property
    def home(self) -> str:
        """The agent's home: where the volume is mounted."""
        return self.cattle.mount_path

    @property
    def state_directory(self) -> str:
        """HERMES_HOME."""
        return self.agent.service.state_directory or f"{self.home}/.hermes"

    @property
    def working_directory(self) -> str:
        """Where the agent's tools work unless they are told otherwise."""
        return self.agent.service.working_directory or f"{self.home}/workspace"

    @property
    def writable(self) -> tuple[str, ...]:
        """Folders beside the home that the agent may write to: host mounts."""
        return tuple(mount.path for mount in self.cattle.extra_host_mounts if not mount.read_only)

    @property
    def bind_mounts(self) -> tuple[BindMount, ...]:
        """What the container of Docker mode sees of the guest beside the home: its volumes, and the host mounts."""
        if not isinstance(self.agent, DockerAgent):
            return ()
        own = self.agent.container.bind_mounts
        taken = {volume.target for volume in own}
        return (*own, *(_same_path(mount) for mount in self.cattle.extra_host_mounts if mount.path not in taken))

    @rule
    def _home_is_where_it_can_be(self) -> Iterator[Fault]:
        home = self.home
        if not any(home == place or home.startswith(f"{place}/") for place in HOMES) or home == "/home":
            yield self.cattle.fault(
                "mount_path",
                f"with an agent the volume is mounted in /home or below one of {', '.join(HOMES[1:])}",
                "leave the key out: /home/hermes",
            )
        elif (unfit := _problem(plain_path, home)) is not None:
            yield self.cattle.fault("mount_path", unfit, "leave the key out: /home/hermes")

    @rule
    def _state_is_on_the_volume(self) -> Iterator[Fault]:
        home, state, kept = self.home, self.state_directory, f"{self.home}/{KEPT_FOLDER}"
        if not _below(state, home) or state == kept or _below(state, kept):
            text = (
                f"must be below the volume's mount point {home} (and not {kept}), or the data is lost with the cattle"
            )
            yield self.agent.service.fault("state_directory", text, f"leave the key out: {home}/.hermes", state)

    @rule
    def _work_is_on_the_volume(self) -> Iterator[Fault]:
        home, working, kept = self.home, self.working_directory, f"{self.home}/{KEPT_FOLDER}"
        remedy = f"leave the key out: {home}/workspace"
        if not (working == home or _below(working, home)) or working == kept or _below(working, kept):
            text = f"must be the volume's mount point {home} or below it (and not {kept})"
            yield self.agent.service.fault("working_directory", text, remedy, working)
        if working == self.state_directory or _below(working, self.state_directory):
            text = f"must not be in the state directory {self.state_directory}"
            yield self.agent.service.fault("working_directory", text, remedy, working)

    @rule
    def _host_mounts_fit_the_image(self) -> Iterator[Fault]:
        if isinstance(self.agent, DockerAgent):
            for mount in self.cattle.extra_host_mounts:
                if (problem := _problem(image_path, mount.path)) is not None:
                    yield self.cattle.fault("host_mounts", problem, "choose another path", mount.path)

    @rule
    def _volumes_leave_the_home(self) -> Iterator[Fault]:
        if isinstance(self.agent, DockerAgent):
            for volume in self.agent.container.bind_mounts:
                if volume.target == self.home:
                    text = f"{volume.target} is where the agent's home is mounted"
                    yield self.agent.container.fault("extra_volumes", text, "choose another path", volume.target)

    @rule
    def _volumes_are_out_of_the_agents_reach(self) -> Iterator[Fault]:
        """A part of a volume's path that the agent can rename, on either side.

        The engine looks it up as root, at each start of the container: a link in its place would lead it elsewhere.
        """
        if not isinstance(self.agent, DockerAgent):
            return
        container, mounts = self.agent.container, self.cattle.extra_host_mounts
        every = [(container, "extra_volumes", volume) for volume in container.bind_mounts]
        lasting = [mount for mount in mounts if _problem(image_path, mount.path) is None]
        every += [(self.cattle, "host_mounts", _same_path(mount)) for mount in lasting]  # type: ignore[misc]
        outside = {self.home, *(volume.source for _, _, volume in every if not volume.read_only)}
        inside = {self.home, DATA, *(volume.target for _, _, volume in every if not volume.read_only)}
        for section, field, volume in every:
            for path, writable in ((volume.source, outside), (volume.target, inside)):
                above = sorted(folder for folder in writable if _below(path, folder))
                if above:
                    text = f"{path} lies in {above[0]}, where the agent can put a link in its place"
                    remedy = "name a folder beside it (/data:/data), or the outer one alone, or that read-only"
                    yield section.fault(field, text, remedy, path)
                    break


def _below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _same_path(mount: HostMountSettings) -> BindMount:
    return BindMount(mount.path, mount.path, mount.read_only)


def _problem(check: Any, value: str) -> str | None:
    """What a validator refuses about a value; None when it takes it."""
    try:
        check(value)
    except ValueError as error:
        return str(error)
    return None


# --- which settings there are -------------------------------------------------------------------

GROUPS: dict[str, tuple[type[Section], ...]] = {
    "The Proxmox": (ConnectionSettings, Stack),
    "The pet": (PetSettings,),
    "The cattle": (CattleSettings, NetworkSettings, NodeSshSettings),
    "The agent": (
        CattleStack,
        AgentSettings,
        SourceSettings,
        ModelSettings,
        ServiceSettings,
        BackupSettings,
        DashboardSettings,
        ApiSettings,
    ),
    "What is declared about the agent": (DeclarationSettings, MessengerSettings),
    "The agent in Docker": (ContainerSettings,),
}
"""Every section, in the order of the documents."""
SETTINGS: dict[str, FieldInfo] = {
    key: found for group in GROUPS.values() for section in group for key, found in own_settings(section).items()
}
"""Every setting by its key."""
SECRETS = frozenset(key for key, found in SETTINGS.items() if is_secret(found))
"""What must be stored with --secret."""
TREES = frozenset(key for key, found in SETTINGS.items() if key not in SECRETS and is_tree(found))
"""What reaches the preview and the state in clear, with whatever is in it: a secret among it would, too."""


# --- reading ------------------------------------------------------------------------------------


def role_of(stack: str, declared: str | None) -> Role | None:
    """The role that a stack declares or has by its name; None when neither tells."""
    if declared:
        return Role(declared) if declared in set(Role) else None
    return next((role for role in Role if stack == role or stack.startswith(f"{role}-")), None)


def read_stack(
    stack: str,
    config: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    in_clear: frozenset[str] = frozenset(),
    with_secrets: frozenset[str] = frozenset(),
) -> PetStack | CattleStack:
    """Read a stack's settings; a cattle that has an agent is an `AgentStack`.

    `config` holds the project's keys without its name, as texts of Pulumi's or as YAML has them; what is not in it has
    its default. `in_clear`: the keys that are stored unencrypted, for a part of an object with its path
    (agentSecretEnvironment.NAME); `with_secrets`: the keys that hold something stored encrypted.

    Raises proxmox.errors.Faults with every fault that there is.
    """
    config = {key: _text(value) for key, value in config.items() if value is not None}
    reading = Reading(f"correct it in Pulumi.{stack}.yaml; docs/options.md describes the key")
    reading.faults += [*_unknown_keys(config), *_in_clear(config, in_clear, stack), *_encrypted_trees(with_secrets)]
    if environment.get(KEY_FILE_VARIABLE):
        config["sshPrivateKeyFile"] = environment[KEY_FILE_VARIABLE]
    given: dict[str, Any] = {"name": stack, "connection": UNREAD}
    try:
        sources = {key: config.get(key, _text(SETTINGS[key].default)) for key in ENVIRONMENT}
        given["connection"] = Connection.from_sources(environment, sources)
    except Faults as error:
        reading.faults += error.faults
    model: type[Stack] = Stack
    role = role_of(stack, config.get("role"))
    if role is None:
        declared = config.pop("role", "")
        reading.faults.append(
            Fault(
                "role",
                declared or f"(empty, and the stack is called {stack})",
                "must be pet or cattle, or the stack be called pet, pet-NAME, cattle or cattle-NAME",
                f"pulumi config set --stack {stack} role cattle",
            )
        )
    elif role is Role.PET:
        model = PetStack
    elif config.get("agentMode") == "none":
        model = CattleStack
    else:
        model, given["agent"] = AgentStack, DockerAgent if config.get("agentMode") == "docker" else BareMetalAgent
    found = read_section(model, config, reading, **given)
    reading.faults += broken_rules(found)
    if reading.faults or not isinstance(found, PetStack | CattleStack):
        raise Faults(reading.faults, what=f"The settings of stack {stack} can't be used")
    return found


def _text(value: Any) -> Any:
    """A scalar as Pulumi hands it over."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _in_clear(config: Mapping[str, Any], in_clear: frozenset[str], stack: str) -> Iterator[Fault]:
    """Secrets, or parts of them, that are stored unencrypted."""
    found = [key for key in sorted(in_clear) if key in SECRETS and config.get(key) not in (None, "", "{}", {})]
    found += [path for path in sorted(in_clear) if path.partition(".")[0] in SECRETS and "." in path]
    for key in found:
        # Its parts are reported one by one.
        if not any(other.startswith(f"{key}.") for other in found):
            remedy = f"pulumi config set --stack {stack} --secret {'--path ' if '.' in key else ''}{key}"
            yield Fault(key, HIDDEN, "a secret must not be stored in clear", remedy)


def _encrypted_trees(with_secrets: frozenset[str]) -> Iterator[Fault]:
    for key in sorted(TREES & with_secrets):
        yield Fault(
            key,
            HIDDEN,
            "is shown in the preview and stored in clear, so it can't hold a secret",
            "set agentSecretEnvironment.NAME with --secret --path, and write ${NAME} here",
        )


def _unknown_keys(config: Mapping[str, Any]) -> Iterator[Fault]:
    for key in sorted(set(config) - set(SETTINGS)):
        near = difflib.get_close_matches(key, SETTINGS, n=1)
        remedy = f"did you mean {near[0]}?" if near else "docs/options.md lists every key"
        yield Fault(key, str(config[key]), "is no key of this project", remedy)
