"""What can be declared about Hermes: the stack, and where the agent's rules meet the cattle's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from applications import Declared, Group
from applications.hermes.settings.agent import AgentSettings, BareMetalAgent, DockerAgent
from applications.hermes.settings.backups import BackupSettings
from applications.hermes.settings.copies import CopySettings
from applications.hermes.settings.dashboard import DashboardSettings
from applications.hermes.settings.declaration import DeclarationSettings
from applications.hermes.settings.docker import DATA, BindMount, ContainerSettings, image_path
from applications.hermes.settings.messengers import MessengerSettings
from applications.hermes.settings.model import ApiSettings, ModelSettings
from applications.hermes.settings.service import ServiceSettings
from applications.hermes.settings.source import SourceSettings
from proxmox.errors import Fault
from settings.cattle import HostMountSettings
from settings.kinds import plain_path
from settings.section import Output, Section, rule, setting
from settings.stack import ApplicationStack, CattleStack

# The sandbox makes all of a system read-only or hides it; a home can lie where none of it is.
HOMES = ("/home", "/srv", "/mnt", "/data", "/var/lib/hermes")
KEPT_FOLDER = ".hermes-stack"
"""What this program keeps in the agent's home."""


class HermesCattle(CattleStack):
    """A cattle for Hermes."""

    mode: Literal["bare-metal", "docker", "none"] = setting(
        "agentMode",
        "bare-metal",
        "How Hermes runs: bare-metal (under systemd) or docker (upstream's image, as a compose project). "
        "none: the container with its volume and without an agent.",
    )
    runs: ClassVar[str] = "Hermes Agent"

    @property
    def outputs(self) -> dict[str, str]:
        return {"agentMode": self.mode}


class AgentStack(HermesCattle, ApplicationStack):
    """A cattle with an agent in it."""

    agent: BareMetalAgent | DockerAgent

    @property
    def keyctl(self) -> bool:
        """Whether the cattle has keyctl; with Docker always (field reports H2)."""
        return self.cattle.keyctl or isinstance(self.agent, DockerAgent)

    @property
    def keyctl_key(self) -> str:
        return "cattleKeyctl" if self.cattle.keyctl else "agentMode"

    @property
    def uid(self) -> int:
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
    def copy_mount(self) -> HostMountSettings | None:
        """The host mount that holds the second copy of the backups; None where that is elsewhere."""
        repository = self.agent.copies.repository if self.agent.copies.kind == "folder" else ""
        mounts = self.cattle.extra_host_mounts
        return next((each for each in mounts if repository == each.path or _below(repository, each.path)), None)

    @property
    def agents_host_mounts(self) -> list[HostMountSettings]:
        """The host mounts beside the home that the agent gets: not that of the second copy."""
        return [mount for mount in self.cattle.extra_host_mounts if mount != self.copy_mount]

    @property
    def writable(self) -> tuple[str, ...]:
        """Folders beside the home that the agent may write to: host mounts."""
        return tuple(mount.path for mount in self.agents_host_mounts if not mount.read_only)

    @property
    def bind_mounts(self) -> tuple[BindMount, ...]:
        """What the container of Docker mode sees of the guest beside the home: its volumes, and the host mounts."""
        if not isinstance(self.agent, DockerAgent):
            return ()
        own = self.agent.container.bind_mounts
        taken = {volume.target for volume in own}
        return (*own, *(_same_path(mount) for mount in self.agents_host_mounts if mount.path not in taken))

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
    def _images_are_bare_metal(self) -> Iterator[Fault]:
        if self.makes_image and isinstance(self.agent, DockerAgent):
            text = "a golden template has a bare-metal agent: engine and image are made in each cattle"
            yield self.fault("mode", text, "set agentMode to bare-metal, or make the cattle without goldenTemplate")

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
    def _copy_is_out_of_the_agents_reach(self) -> Iterator[Fault]:
        """Root writes there. And what the agent can write it can remove, or lead elsewhere by a link."""
        copies, home, mount = self.agent.copies, self.home, self.copy_mount
        if copies.kind != "folder":
            return
        remedy = "name a folder in a host mount of cattleHostMounts that has owner 0, beside the home"
        if mount is None or mount.read_only:
            rule = (
                "lies on the cattle's own disk, and goes with it" if mount is None else "is in a read-only host mount"
            )
            yield copies.fault("repository", rule, remedy)
        elif self.owner_of(mount) != 0:
            yield copies.fault("repository", f"is in a host mount that belongs to user {self.owner_of(mount)}", remedy)
        if copies.repository == home or _below(copies.repository, home):
            yield copies.fault("repository", "lies in the agent's home", remedy)
        if isinstance(self.agent, DockerAgent):
            for volume in self.agent.container.bind_mounts:
                mine, theirs = (mount.path if mount else copies.repository), volume.source
                if mine == theirs or _below(mine, theirs) or _below(theirs, mine):
                    yield copies.fault("repository", f"is given to the agent's container by {theirs}", remedy)

    @rule
    def _host_mounts_fit_the_image(self) -> Iterator[Fault]:
        if isinstance(self.agent, DockerAgent):
            for mount in self.agents_host_mounts:
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
        container, mounts = self.agent.container, self.agents_host_mounts
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


def model_of(config: Mapping[str, Any]) -> tuple[type[CattleStack], Mapping[str, type[Section]]]:
    """The stack's class, and the agent's by its mode."""
    mode = config.get("agentMode")
    if mode == "none":
        return HermesCattle, {}
    return AgentStack, {"agent": DockerAgent if mode == "docker" else BareMetalAgent}


OUTPUTS = {
    "agentMode": Output(
        "string", "`bare-metal`, `docker` or `none`. With `none` all other outputs of this table are empty."
    ),
    "api": Output(
        "string",
        "The base URL of the agent's API, which other machines can reach. Empty while it is off or on loopback.",
    ),
    "apiInGuest": Output("string", "The base URL inside the cattle, for a tunnel.", since="0.2.0"),
    "apiKey": Output("string", "The API's key. Empty while `agentApi` is false.", since="0.2.0", secret=True),
    "dashboard": Output(
        "string",
        "The dashboard's URL, which other machines can reach. Empty while it is off or on loopback.",
    ),
    "dashboardInGuest": Output("string", "The dashboard's URL inside the cattle, for a tunnel.", since="0.2.0"),
    "agentVersion": Output("string", "The version that the agent reports."),
    "agentIdentity": Output("string", "Docker mode: a digest of all that the container is made of."),
    "agentState": Output(
        "string",
        "What the last `up` found: `active` of systemd, `running` of an engine.",
        stable=False,
    ),
    "backup": Output("string", "The newest backup that the stack has made: its name on the volume.", stable=False),
    "backupState": Output(
        "string",
        "How the last verification found the backups on schedule: `made`, `waiting`, `overdue`, `failed`, `off`.",
        "0.2.0",
    ),
    "copyState": Output(
        "string",
        "How the last verification found the backups' second copy: `made`, `waiting`, `overdue`, `failed`, `off`.",
        "0.2.0",
    ),
}

DECLARED = Declared(
    groups=(
        Group(
            "The agent",
            (
                *(HermesCattle, AgentSettings, SourceSettings, ModelSettings),
                *(ServiceSettings, BackupSettings, CopySettings, DashboardSettings, ApiSettings),
            ),
        ),
        Group(
            "What is declared about the agent",
            (DeclarationSettings, MessengerSettings),
            "With an example, and what becomes of it: [Declare the agent's settings, documents and models]"
            "(operations.md#declare-the-agents-settings-documents-and-models).",
        ),
        Group(
            "The agent in Docker",
            (ContainerSettings,),
            "Read with `agentMode: docker` only; what the modes share is above.",
        ),
    ),
    model=model_of,
    outputs=OUTPUTS,
    not_in_images={"agentModel": "any", "agentModelUrl": "http://model.invalid/v1"},
)
