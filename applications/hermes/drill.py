"""A drill: the newest backup in a cattle beside the real one. The agent is asked there, and the cattle is removed.

The cattle of a drill is a stack of its own, drill-STACK, with the settings of the real one but those that lead out of
it. It has no volume: its home is on its root file system, so there is never a second writer. Nothing of the real cattle
is changed: root reads the backup there as the agent's user, and notes down in the end how it went.

The order: container and build; walls, proved; the backup; only then does the agent start, on the restored home.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import urlsplit

import yaml

from applications.hermes.guest.copies import BESIDE, Snapshot, chosen
from applications.hermes.guest.drilled import note_line, noted_path
from applications.hermes.guest.inputs import Drill, DrillContainer, Place
from applications.hermes.guest.names import KEPT_FOLDER
from applications.hermes.guest.records import NAME
from applications.hermes.guest.update import WANTED, newest_of
from applications.hermes.held import Held, look, lost
from applications.hermes.phases import BACKUPS_PATH, GUEST, facts_of, render_backups
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import DockerAgent
from applications.hermes.settings.copies import CopySettings
from applications.hermes.settings.dashboard import DashboardSettings
from applications.hermes.settings.messengers import MessengerSettings
from applications.hermes.talk import ask
from provisioning.console import (
    PROJECT,
    AgentError,
    Guest,
    guest_of,
    init_stack,
    known_stacks,
    pulumi_environment,
    request_of,
    said,
    ssh_command,
)
from provisioning.errors import ProvisioningError
from provisioning.guest.common import Refusal
from provisioning.job import LargeFile, sha256_of, store_path
from provisioning.plans import ROOT, PhasePlan, guest_main, guest_package, plan_of, run_phase
from provisioning.ssh import SshTarget, connect
from proxmox.client import Proxmox
from proxmox.errors import ProxmoxError
from proxmox.facts import read_guest
from proxmox.ownership import is_claimed
from settings.read import CONFIG_FILE_VARIABLE, read_stack, stack_file, usable_settings
from settings.shared import shared_config, with_shared

PLACE = ROOT / ".cache" / "drills"
CLAIM_TYPE = "pulumi-python:dynamic/proxmox:Claim"
CONTAINER_TYPE = "proxmoxve:index/containerLegacy:ContainerLegacy"
WITHOUT_AGENT = ("--exclude", "**cattle-agent-configure", "--exclude-dependents")
"""Container and build, and nothing that starts the agent."""
CONTAINER_ALONE = ("--exclude", "**cattle-ssh", "--exclude-dependents")
OPTIONS = "agentExtraOptions"
SECONDS = 1800.0
INTERRUPT_SECONDS = 300
"""So long the engine has to end what it is at and to write its state."""
ROOM = {"bare-metal": 2, "docker": 8}
"""GB beside the system for the agent's code, by agentMode. The backup is there three times: archive, backup, home."""
SLACK = 64 << 20
"""Bytes that an archive has at most beside its files, and 2 KB for each file."""

# What leads out of the real cattle, or belongs to it alone.
LEFT_OUT = frozenset(
    {
        *("claim", "cattleTakeOver", "cattleHardwareAddress", "cattleSshHostKey", "cattleHostMounts", "cattleKeyctl"),
        *("cattleAddress6", "cattleGateway6", "agentMcpServers", "agentApiHost"),
        *("agentExtraVolumes", "agentPublishedBindIp"),
        *(
            str(each.alias)
            for section in (MessengerSettings, DashboardSettings, CopySettings)
            for each in section.model_fields.values()
        ),
    }
)


OPTIONS_LEFT_OUT = frozenset({"devices", "gpus", "ports"})
"""Of agentExtraOptions: what the real cattle's guest has, and the drill's has not."""


class DrillError(AgentError):
    """The drill did not pass, or can't be done. The text says why."""


FAILURES = (ProvisioningError, ProxmoxError, OSError)


# ---- what is decided ------------------------------------------------------------------------------------------------


def name_of(stack: str) -> str:
    """The drill's own stack."""
    return f"drill-{stack}"


def settings_of(
    content: Mapping[str, Any], real: AgentStack, *, vmid: int, address: str | None, gigabytes: int
) -> dict[str, Any]:
    """A drill's stack file from the real one's content. `gigabytes`: of the backup, rounded up.

    Raises DrillError where the real address is static and none is named.
    """
    cattle = real.cattle
    if cattle.network.static_ip and address is None:
        raise DrillError(
            f"the cattle's address is static, {cattle.network.address}: name a free one of its network for the drill, "
            "as in --address 192.168.1.206/24"
        )
    own = {
        "role": "cattle",
        "cattleVmid": vmid,
        "cattleHostname": f"{cattle.hostname[:57]}-drill",
        "cattleAddress": address or cattle.network.address,
        "cattleVolume": "",
        "cattleStartOnBoot": False,
        "cattleTags": [*cattle.tags, "drill"],
        "cattleDisk": max(cattle.disk, ROOM[real.agent.mode] + 6 + 3 * gigabytes),
        "agentBackupTimes": [],
        "agentExtraPackages": [*real.agent.service.extra_packages, "nftables"],
    }
    if address in ("dhcp", "manual"):
        own["cattleGateway"] = ""
    if isinstance(real.agent, DockerAgent):
        options = real.agent.container.extra_options
        own[OPTIONS] = {name: value for name, value in options.items() if name not in OPTIONS_LEFT_OUT}
    config = inward(content.get("config") or {})
    return {**content, "config": config | {f"{PROJECT}:{key}": value for key, value in own.items()}}


def with_hosts(content: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """The drill's settings, and in Docker mode with the model's names: the container can ask nobody for them.

    `hosts`: HOST:ADDRESS each.
    """
    key = f"{PROJECT}:{OPTIONS}"
    options = content["config"].get(key)
    if options is None or not hosts:
        return dict(content)
    given = options.get("extra_hosts", [])
    own = [f"{host}:{address}" for host, address in given.items()] if isinstance(given, dict) else given
    return {**content, "config": {**content["config"], key: {**options, "extra_hosts": [*own, *hosts]}}}


def inward(config: Mapping[str, Any]) -> dict[str, Any]:
    """A stack file's `config` without what leads out of the cattle, whose secrets are not read either."""
    kept = {key: value for key, value in config.items() if key.removeprefix(f"{PROJECT}:") not in LEFT_OUT}
    # In a container it would need the password that was left out.
    return kept | {f"{PROJECT}:agentDashboard": False}


def model_places(stack: AgentStack, allowed: Sequence[str] = ()) -> tuple[Place, ...]:
    """Where the agent's models are, by its settings, and what is `allowed` besides, HOST:PORT each.

    Raises DrillError where the settings name none: the agent knows the address then.
    """
    agent, declared = stack.agent, stack.agent.declared
    urls = [
        agent.model.url,
        *(each.base_url for each in declared.providers.values()),
        *(each.base_url for each in declared.fallback_models),
        *(each.base_url for each in declared.auxiliary_models.values()),
    ]
    found = {place_of(url) for url in urls if url and "${" not in url} | {place_of(f"//{one}") for one in allowed}
    if not found:
        raise DrillError(
            f"the settings do not say where the model of {agent.model.provider} is: name it, as in "
            "--allow openrouter.ai:443"
        )
    return tuple(sorted(found, key=str))


def place_of(url: str) -> Place:
    """Host and port of a URL. Raises DrillError for one that has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or port is None:
        raise DrillError(f"{url.removeprefix('//')} has to be a host and a port: write it like openrouter.ai:443")
    return Place(parts.hostname, port)


def elsewhere_of(real: Mapping[str, Any], endpoint: str) -> tuple[Place, ...]:
    """What the agent of a drill has to be kept from, to try: the real cattle, and Proxmox."""
    return (Place(str(real["address"]), 22), place_of(endpoint))


def free_number(taken: Callable[[int], bool], after: int) -> int:
    """The first VMID after `after` that no guest has. Raises DrillError when a hundred are taken."""
    for vmid in range(after + 1, after + 101):
        if not taken(vmid):
            return vmid
    raise DrillError(f"no VMID from {after + 1} to {after + 100} is free: name one with --vmid")


def newest(backups: Sequence[Mapping[str, Any]], stack: str) -> Mapping[str, Any]:
    """The newest backup that the stack made. Raises DrillError when there is none."""
    name = newest_of(backups)
    if name is None:
        raise DrillError(
            f"there is no backup that the stack made and nobody changed since: scripts/agent --stack {stack} backup"
        )
    return next(each for each in backups if each["name"] == name)


def damaged(name: str, held: Held, databases: Sequence[str]) -> list[str]:
    """What is wrong with a restored backup, each in words. `databases`: by its manifest."""
    found = [f"{path}, a database of the backup {name}, is none" for path in databases if path not in held.databases]
    return found + [
        f"the backup {name} has a damaged database: {path}" for path, each in held.databases.items() if not each.sound
    ]


def counted(held: Held) -> str:
    """What a home holds, in numbers."""
    memories = sum(path.startswith("memories/") for path in held.memories)
    numbers = {
        "sessions": len(held.sessions),
        "messages": held.messages,
        "memories": memories,
        "databases": len(held.databases),
    }
    return ", ".join(f"{what} {count}" for what, count in numbers.items())


@dataclass(frozen=True)
class Left:
    """What the drill's stack knows of its guest. `made`: whether the state has the container."""

    claim: str | None
    vmid: int | None
    made: bool


def left_of(exported: Mapping[str, Any]) -> Left:
    """From an exported state."""
    found: dict[str, Mapping[str, Any]] = {}
    for resource in (exported.get("deployment") or {}).get("resources") or ():
        found[resource["type"]] = resource
    claim = found.get(CLAIM_TYPE, {})
    vmid = (claim.get("inputs") or {}).get("vmid")
    return Left(
        (claim.get("outputs") or {}).get("claim"), int(vmid) if vmid is not None else None, CONTAINER_TYPE in found
    )


# ---- a backup -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backup:
    """A backup as a tar on this machine. `total`: the SHA-256 of its manifest; empty where nobody has noted it."""

    name: str
    archive: Path
    total: str = ""

    @property
    def gigabytes(self) -> int:
        return -(-self.archive.stat().st_size // (1 << 30))


def from_cattle(guest: Guest, stack: AgentStack, folder: Path) -> Backup:
    """The newest that the stack made, read over SSH as the agent's user. It is not unpacked here."""
    with request_of(guest.stack, "list", "for a drill") as request:
        listed = run_phase(guest.target, render_backups("list", request=request), on_line=lambda _: None)
    found = newest(listed.outputs["backups"], guest.stack)
    name, files = str(found["name"]), int(found["files"]) + int(found.get("home", 0))
    most = int(found["bytes"]) + 2048 * files + SLACK
    archive = folder / "backup.tar"
    own = ("runuser", "--user", stack.agent.service.user, "--", "/usr/bin/tar", "--create", "--directory")
    command = shlex.join([*own, f"{stack.home}/{KEPT_FOLDER}/backups", "--file", "-", name])
    fetch(guest.target, f"cd / && {command}", archive, most)
    return Backup(name, archive, str(found["sum"]))


def from_copy(guest: Guest, which: str, folder: Path) -> Backup:
    """One of the second copy: root reads it in the real cattle, where the keys are. Nothing is written there."""
    with request_of(guest.stack, "copies", "for a drill") as request:
        listed = run_phase(guest.target, render_backups("copies", request=request), on_line=lambda _: None)
    found = [Snapshot(**each) for each in listed.outputs["copies"]]
    try:
        wanted = chosen(found, guest.stack, which)
    except Refusal as refusal:
        raise DrillError(str(refusal)) from None
    archive = folder / "backup.tar"
    fetch(guest.target, shlex.join([BACKUPS_PATH, "dump", wanted.id]), archive, wanted.bytes + BESIDE)
    return Backup(wanted.set, archive, wanted.sum)


def fetch(target: SshTarget, command: str, file: Path, most: int) -> None:
    """Write what a command in the guest prints into a new file.

    DrillError if it fails, or prints more than `most` bytes, or there is no room for these.
    """
    free = shutil.disk_usage(file.parent).free
    if free < most:
        raise DrillError(f"the backup needs up to {most >> 20} MB in {file.parent}, which has {free >> 20} MB free")
    argv = ssh_command(target, command, options=("-T",))
    with (
        file.open("xb") as stream,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child,
    ):
        if child.stdout is None:
            raise RuntimeError("its output was asked for")
        try:
            while chunk := child.stdout.read(1 << 20):
                stream.write(chunk)
                if stream.tell() > most:
                    raise DrillError("the cattle sends more than the backup has: is the agent at work on it?")
            if child.wait():
                raise DrillError("the backup can't be read in the cattle: the lines above say why")
        finally:
            child.kill()


def from_file(given: Path, folder: Path) -> Backup:
    """A folder, or a tar, of one backup. DrillError for anything else."""
    wrong = DrillError(f"{given} is no backup: name a folder of one, with its manifest.json, or a tar of that folder")
    if given.is_dir():
        if not NAME.match(given.resolve().name) or not (given / "manifest.json").is_file():
            raise wrong
        archive = folder / "backup.tar"
        with tarfile.open(archive, "x") as tar:
            tar.add(given.resolve(), arcname=given.resolve().name)
        return Backup(given.resolve().name, archive)
    try:
        with tarfile.open(given) as tar:
            tops = {member.name.removeprefix("./").partition("/")[0] for member in tar} - {"", "."}
    except (OSError, tarfile.TarError):
        raise wrong from None
    if len(tops) != 1 or not NAME.match(top := tops.pop()):
        raise wrong
    return Backup(top, given)


def render(stack: AgentStack, backup: Backup, model: tuple[Place, ...], elsewhere: tuple[Place, ...]) -> PhasePlan:
    """Walls, and the backup into the home: what runs in the drill's guest before the agent."""
    large = LargeFile(backup.archive, sha256_of(backup.archive), mode=0o600)
    archive, container = store_path(large.sha256), container_of(stack)
    given = Drill(facts_of(stack), backup.name, backup.total, archive, model, elsewhere, container)
    main = guest_main(f"{GUEST}.drill")
    plan = plan_of("drill", main, {}, declared={}, given=given, more=guest_package(GUEST))
    return replace(plan, large_files=(large,))


def container_of(stack: AgentStack) -> DrillContainer | None:
    """What the guest has to know of Docker mode; None in bare-metal mode."""
    if not isinstance(stack.agent, DockerAgent):
        return None
    container = stack.agent.container
    return DrillContainer(container.backend, container.image, stack.agent.service.gid, stack.agent.api.port)


# ---- the drill ------------------------------------------------------------------------------------------------------


class Engine:
    """The drill's stack. `lock`: an open file, locked as long as the engine runs, also when this program is killed."""

    def __init__(self, stack: str, folder: Path, lock: int) -> None:
        self.stack = stack
        self.folder = folder
        self.file = folder / "settings.yaml"
        self._lock = lock

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """The CLI reads the drill's settings meanwhile."""
        before = os.environ.get(CONFIG_FILE_VARIABLE)
        os.environ[CONFIG_FILE_VARIABLE] = str(self.file)
        try:
            yield
        finally:
            if before is None:
                del os.environ[CONFIG_FILE_VARIABLE]
            else:
                os.environ[CONFIG_FILE_VARIABLE] = before

    def run(self, verb: str, *options: str, quiet: bool = False) -> None:
        """Run the engine in this terminal; `quiet`: it is shown only if it fails. DrillError then.

        Interrupted, it ends in order before this does.
        """
        how = ("--yes", "--skip-preview", "--non-interactive", "--suppress-progress", "--suppress-outputs")
        with (self.folder / "engine.log").open("w+b") as log:
            child = subprocess.Popen(
                ["pulumi", verb, "--stack", self.stack, *how, *options],
                cwd=ROOT,
                env=pulumi_environment(ROOT),
                stdin=subprocess.DEVNULL,
                stdout=log if quiet else sys.stderr,
                stderr=log if quiet else None,
                start_new_session=True,
                pass_fds=(self._lock,),
            )
            try:
                status = child.wait()
            except BaseException:
                child.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(INTERRUPT_SECONDS)
                child.kill()
                raise
            if status:
                log.seek(0)
                print(log.read().decode("utf-8", "replace"), end="", file=sys.stderr)
                raise DrillError(f"pulumi {verb} of the drill failed: the lines above say why")

    def remove(self, client: Proxmox) -> None:
        """Remove guest and stack. Safe to repeat. Only a guest with the claim that this stack has made is removed."""
        said("cancel", "--yes", "--stack", self.stack)
        left = left_of(json.loads(said("stack", "export", "--stack", self.stack)))
        if not left.made and self._is_there(client, left):
            # A killed run had it created, and could not write that down. As after any killed run, it is adopted.
            self.run("up", *CONTAINER_ALONE, quiet=True)
        self.run("destroy", quiet=True)
        if self._is_there(client, left):
            raise DrillError(f"CT {left.vmid} of the drill is still there. The same command goes on")
        said("stack", "rm", "--yes", "--preserve-config", self.stack)

    def _is_there(self, client: Proxmox, left: Left) -> bool:
        if left.claim is None or left.vmid is None:
            return False
        found = read_guest(client, left.vmid)
        if found is not None and found.config.get("lock") == "create":
            # Until it is made it has no notes.
            client.wait_unlocked(found.node, left.vmid)
            found = read_guest(client, left.vmid)
        return found is not None and is_claimed(found, left.claim)


@contextlib.contextmanager
def a_place(stack: str) -> Iterator[tuple[Path, int]]:
    """A folder of the drill's own for this stack, and its lock. DrillError while another drill is at work."""
    PLACE.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = PLACE / stack
    with (PLACE / f"{stack}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DrillError(
                f"another drill of {stack} is at work, or what a killed one has started. Wait for its end"
            ) from None
        yield folder, lock.fileno()


@dataclass(frozen=True)
class Asked:
    """The command line."""

    vmid: int | None
    address: str | None
    file: Path | None
    copy: str | None
    allow: tuple[str, ...]
    prompt: str
    clean_up: bool


def real_settings(stack: str) -> tuple[dict[str, Any], AgentStack]:
    """A stack's file, and what it says without its secrets. Raises DrillError, or Faults."""
    file = stack_file(stack, os.environ, ROOT)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        # The drill's own file lies elsewhere, without what the stacks share beside it.
        content["config"] = with_shared(content.get("config") or {}, shared_config(file, PROJECT), PROJECT)
        config = usable_settings(inward(content["config"]), PROJECT)
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise DrillError(f"{file} can't be read as a stack's settings: {error}") from None
    found = read_stack(stack, config, os.environ)
    if not isinstance(found, AgentStack):
        raise DrillError(f"stack {stack} has no agent")
    if isinstance(found.agent, DockerAgent) and not found.node_ssh.host_key:
        raise DrillError(
            "with agentMode docker the drill's cattle needs keyctl, which only root on the node may set: set "
            "nodeSshHostKey (docs/operations.md, Big disks of the node)"
        )
    return content, found


def drill(guest: Guest, asked: Asked) -> int:
    """The whole command. Returns its exit status."""
    content, real = real_settings(guest.stack)
    with a_place(guest.stack) as (folder, lock), Proxmox(real.connection) as client:
        engine = Engine(name_of(guest.stack), folder, lock)
        if clear(engine, content, client, anyhow=asked.clean_up):
            print("drill: what an earlier one had left is removed")
        if asked.clean_up:
            print("drill: nothing of a drill is left")
            return 0
        folder.mkdir(mode=0o700)
        attempt, fault, words = Attempt(guest, real, content, engine, client), "", ""
        try:
            words = attempt.carry_out(asked)
        except FAILURES as error:
            fault = str(error)
        finally:
            print("drill: removing its cattle")
            try:
                clear(engine, content, client, anyhow=False)
            except FAILURES as error:
                left = f"what the drill made is not removed: {error}\nThe same command goes on; or --clean-up"
                fault = "\n".join(filter(None, [fault, left]))
        attempt.note(fault)
    if fault:
        raise DrillError(f"the drill did not pass: {fault}")
    print(f"drill: passed. {words}")
    return 0


def clear(engine: Engine, content: Mapping[str, Any], client: Proxmox, *, anyhow: bool) -> bool:
    """Have nothing of a drill be left. Returns whether there was a stack.

    DrillError for a stack that this machine did not make, unless `anyhow`.
    """
    if there := engine.stack in known_stacks():
        if not engine.folder.exists() and not anyhow:
            raise DrillError(
                f"the backend has a stack {engine.stack} that was not made here: another machine is at a drill, or was "
                "killed at one. To remove what it left: the same command with --clean-up"
            )
        engine.folder.mkdir(mode=0o700, exist_ok=True)
        if not engine.file.exists():
            # Its number and all else that counts is in the state.
            engine.file.write_text(yaml.safe_dump(dict(content)), encoding="utf-8")
        with engine.chosen():
            engine.remove(client)
    if engine.folder.exists():
        shutil.rmtree(engine.folder)
    return there


class Attempt:
    """One drill, from an empty folder on."""

    def __init__(
        self, guest: Guest, real: AgentStack, content: Mapping[str, Any], engine: Engine, client: Proxmox
    ) -> None:
        self.guest = guest
        self.real = real
        self.content = content
        self.engine = engine
        self.client = client
        self.backup = ""

    def carry_out(self, asked: Asked) -> str:
        """Answers what was proved, in words."""
        engine, model = self.engine, model_places(self.real, asked.allow)
        vmid = asked.vmid or free_number(self.client.vmid_taken, self.real.cattle.vmid)
        # Before anything is read or made.
        settings_of(self.content, self.real, vmid=vmid, address=asked.address, gigabytes=0)
        if asked.file:
            backup = from_file(asked.file, engine.folder)
        elif asked.copy:
            backup = from_copy(self.guest, asked.copy, engine.folder)
        else:
            backup = from_cattle(self.guest, self.real, engine.folder)
        self.backup = f"{backup.name}, from the copy" if asked.copy else backup.name
        print(f"drill: {self.backup} goes into CT {vmid}")
        settings = settings_of(self.content, self.real, vmid=vmid, address=asked.address, gigabytes=backup.gigabytes)
        stack = read_stack(engine.stack, usable_settings(settings["config"], PROJECT), os.environ)
        if not isinstance(stack, AgentStack):
            raise DrillError(f"stack {self.guest.stack} has no agent")
        text = init_stack(engine.stack, yaml.safe_dump(settings, allow_unicode=True), [CONFIG_FILE_VARIABLE])
        engine.file.write_text(text, encoding="utf-8")
        with engine.chosen():
            engine.run("up", *WITHOUT_AGENT)
            target = guest_of(engine.stack).target
            elsewhere = elsewhere_of(self.guest.outputs, self.real.connection.endpoint)
            done = run_phase(target, render(stack, backup, model, elsewhere), on_line=print, timeout_s=SECONDS).outputs
            for place in done["closed"]:
                print(f"drill: {place} answered before, and does not any more")
            named = with_hosts(yaml.safe_load(engine.file.read_text(encoding="utf-8")), done["hosts"])
            engine.file.write_text(yaml.safe_dump(named, allow_unicode=True), encoding="utf-8")
            kept = f"{stack.home}/{KEPT_FOLDER}/backups/{backup.name}/data"
            before = look(target, stack, str(WANTED), kept)
            if wrong := damaged(backup.name, before, done["databases"]):
                raise DrillError("\n".join(wrong))
            engine.run("up")
            answer = ask(target, asked.prompt)
            after = look(target, stack, str(WANTED), stack.state_directory)
        # Its jobs were set aside.
        if gone := lost(replace(before, cron=frozenset()), after):
            raise DrillError(f"the agent runs on {backup.name}, and it is not all there: {'; '.join(gone)}")
        if not answer.strip():
            raise DrillError(f"the agent runs on {backup.name}, and answers nothing")
        print(f"drill: asked {asked.prompt!r}, the agent says:\n{answer}")
        return f"{self.backup}: files {done['written']}, {counted(before)}; the agent answers"

    def note(self, fault: str) -> None:
        """In the real cattle, where only root writes: when the last drill was, and how it went."""
        if not self.backup:
            return
        line = note_line(datetime.now(UTC), self.backup, fault)
        path = shlex.quote(str(noted_path()))
        try:
            with closing(connect(self.guest.target)) as connection:
                done = connection.run(f"umask 077; cat >{path}.part && mv {path}.part {path}", stdin=line.encode())
            wrong = done.words if done.status else ""
        except ProvisioningError as error:
            wrong = str(error)
        if wrong:
            print(f"drill: it can't be noted down in the cattle: {wrong}", file=sys.stderr)


# ---- the command line -----------------------------------------------------------------------------------------------


def command(guest: Guest, options: argparse.Namespace) -> int:
    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    asked = Asked(
        vmid=options.vmid,
        address=options.address,
        file=options.file,
        copy=options.from_copy,
        allow=tuple(options.allow),
        prompt=options.prompt,
        clean_up=options.clean_up,
    )
    try:
        return drill(guest, asked)
    except ProxmoxError as error:
        raise AgentError(str(error)) from None
    except KeyboardInterrupt:
        print("\ndrill: interrupted", file=sys.stderr)
        return 130
