"""scripts/try-release: see docs/operations.md, "Upgrade the agent"."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import yaml

from applications.hermes.held import Held, look, lost
from applications.hermes.phases import (
    Built,
    own_uv,
    render_agent,
    render_backups,
    render_baseline,
    render_configure,
    render_verify,
)
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import BareMetalAgent, DockerAgent
from applications.hermes.settings.copies import CopySettings
from applications.hermes.settings.source import SourceSettings
from lab.bench import VOLUME_SIZE, Bench, a_bench, clear
from lab.instance import CACHE, CHECKOUT
from lab.services.model import MODEL
from lab.services.source import SOURCE_CACHE, ensure_source
from provisioning.errors import ProvisioningError
from provisioning.job import LargeFile, PayloadFile, sha256_of
from provisioning.plans import PhasePlan, run_phase
from provisioning.ssh import SshTarget, connect, wait_for_ssh
from proxmox.errors import Faults
from pvelab.ending import end_with
from pvelab.place import LabError
from pvelab.runtime import RuntimeFault
from settings.read import read_stack, stack_file, usable_settings
from settings.section import default_of
from settings.shared import shared_config, with_shared
from trial.decisions import (
    Running,
    Verdict,
    agent_notes,
    bare_metal,
    changes,
    detached,
    faults_of_arguments,
    left_out,
    what_runs_in,
)

STATE = CACHE / "try-release"
PHASE_SECONDS = 1800.0
BACKUP_SECONDS = 1800.0
OWN = Path(__file__).resolve().parent
# The settings need an endpoint and a token. A trial contacts no Proxmox.
NOBODY = {
    "PROXMOX_VE_ENDPOINT": "https://proxmox.invalid:8006",
    "PROXMOX_VE_API_TOKEN": "nobody@pve!none=00000000-0000-0000-0000-000000000000",
}

UPSTREAM = default_of(SourceSettings, "repository")
OF_COPIES = frozenset(str(each.alias) for each in CopySettings.model_fields.values())


class TrialError(Exception):
    """The trial can't run, or can't judge. The text says why."""


def say(text: str) -> None:
    print(f"try-release: {text}", flush=True)


# ---- what is asked for ----------------------------------------------------------------------------------------------


def settings_of(stack: str) -> AgentStack:
    """The settings in a stack's file, without its secrets. Raises TrialError with all faults."""
    project = yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text())["name"]
    file = stack_file(stack, os.environ, CHECKOUT)
    try:
        own = (yaml.safe_load(file.read_text()) or {}).get("config") or {}
        given = with_shared(own, shared_config(file, project), project)
    except Faults as faults:
        raise TrialError(str(faults)) from None
    except (OSError, yaml.YAMLError) as error:
        raise TrialError(f"the settings {file} can't be read: {error}") from None
    # Nothing of the stack's own surroundings is looked at: a certificate's file or a password may be elsewhere.
    # A second copy needs secrets, and a trial makes none.
    inward = {key: value for key, value in usable_settings(given, project).items() if key not in OF_COPIES}
    try:
        found = read_stack(stack, inward, {**os.environ, **NOBODY})
    except Faults as faults:
        raise TrialError(str(faults)) from None
    if not isinstance(found, AgentStack):
        raise TrialError(f"stack {stack} has no agent")
    return found


def releases_of(
    stack: AgentStack, options: argparse.Namespace, url: str | None
) -> tuple[BareMetalAgent, BareMetalAgent]:
    """The release that runs, and the one to try. Raises TrialError if they are the same."""
    if isinstance(stack.agent, DockerAgent) and not options.over:
        raise TrialError(what_runs_in(stack.agent.container.image, UPSTREAM))
    old = bare_metal(stack.agent)
    if url is not None:
        old = of_source(old, old.version, repository=url)
    if options.over:
        old = of_source(old, "", source="git", tag=options.over[0], commit=options.over[1])
    new = of_source(old, options.version or "", source="git", tag=options.tag, commit=options.commit)
    if old.install.source == new.install.source and old.install.commit == new.install.commit:
        raise TrialError(
            f"{options.tag} is what the stack runs already. To update from another release: --from TAG COMMIT"
        )
    return old, new


def of_source(agent: BareMetalAgent, version: str, **source: str) -> BareMetalAgent:
    """The same agent from another source. `version`: empty, its word is taken."""
    return agent.model_copy(update={"version": version, "install": agent.install.model_copy(update=source)})


def archive_of(backup: Path, folder: Path) -> Path:
    """A file for trial/unpack.py: the archive itself, or a tar of the folder. Links are not followed."""
    if backup.is_file():
        return backup
    if not backup.is_dir():
        raise TrialError(f"there is no backup {backup}: name a folder, or a tar or zip file")
    target = folder / "home.tar"
    with tarfile.open(target, "w") as tar:
        tar.add(
            backup, arcname="home", filter=lambda each: each if each.isfile() or each.isdir() or each.issym() else None
        )
    return target


# ---- the place ------------------------------------------------------------------------------------------------------


@contextmanager
def a_place() -> Iterator[Path]:
    """The trial's empty folder. It removes what a killed trial left. Raises TrialError if another trial runs."""
    STATE.parent.mkdir(parents=True, exist_ok=True)
    with STATE.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TrialError("another trial runs in this checkout. Wait for its end.") from None
        _clear()
        STATE.mkdir(mode=0o700)
        try:
            yield STATE
        finally:
            _clear()


def _clear() -> None:
    if not STATE.exists():
        return
    clear(STATE)
    mounts = Path("/proc/self/mounts").read_text()
    if f" {STATE}/" in mounts:
        raise TrialError(f"something is still mounted below {STATE}. Unmount it, then try again")
    shutil.rmtree(STATE)


def end_by_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise an exception, so that everything is removed."""
    raise SystemExit(128 + number)


# ---- the trial ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Build:
    """What the agent phase has installed."""

    directory: str
    version: str

    @classmethod
    def of(cls, results: dict[str, Any]) -> Build:
        return cls(str(results["directory"]), str(results["version"]))


class Trial:
    """One container, two releases, one copy of a home."""

    def __init__(self, bench: Bench, stack: AgentStack, verdict: Verdict, key: str) -> None:
        self.bench = bench
        self.stack = detached(stack, bench.model.base_url, MODEL, key)
        self.verdict = verdict
        self.heard: list[str] = []

    # --- the guest ---

    def target(self) -> SshTarget:
        where, key = self.bench.address, str(self.bench.key)
        found = wait_for_ssh(where, private_key_file=key, timeout_s=120, on_line=lambda _: None)
        return SshTarget(where, found, private_key_file=key)

    def run(self, plan: PhasePlan, timeout_s: float = PHASE_SECONDS) -> dict[str, Any]:
        """Run a phase. Show its lines and keep them in `heard`."""
        self.heard = []

        def hear(line: str) -> None:
            self.heard.append(line)
            print(f"  {line}", flush=True)

        return run_phase(self.target(), plan, on_line=hear, timeout_s=timeout_s).outputs

    def shell(self, command: str, timeout_s: float = 300) -> str:
        """Run a command as root in the guest. Returns its output; raises TrialError if it fails."""
        with closing(connect(self.target())) as connection:
            done = connection.run(command, timeout_s=timeout_s)
        if done.status != 0:
            raise TrialError(f"`{command[:60]}` failed in the trial's container: {done.words}")
        return done.text

    # --- its steps ---

    def switch_to(self, directory: str) -> dict[str, Any]:
        """Run this build. If another one ran before, this is an update with all its checks."""
        return self.run(render_configure(self.stack, Built(directory)))

    def verify(self, build: Build, **more: Any) -> None:
        self.run(render_verify(self.stack, version=build.version, **more))

    def bring_home(self, archive: Path) -> None:
        """Unpack the copy as the home, as the agent's user: the archive is not trusted."""
        large = LargeFile(archive, sha256_of(archive), mode=0o600)
        stored = f"/var/lib/hermes-provision/store/{large.sha256}"
        script = (
            "#!/bin/sh\nset -eu\n"
            f'exec runuser --user {self.stack.agent.service.user} -- python3 -IB -c "$(cat "$HP_JOB/unpack.py")" '
            f"{shlex.quote(self.stack.state_directory)} <{stored}\n"
        )
        files = (
            PayloadFile("main", script.encode(), 0o700),
            PayloadFile("unpack.py", (OWN / "unpack.py").read_bytes()),
        )
        self.run(PhasePlan("home", files, {}, large.sha256, {}, (large,)))

    def look(self, directory: str) -> Held:
        """What the home holds, as the release in `directory` reads it."""
        return look(self.target(), self.stack, directory, self.stack.state_directory)

    def running(self, build: Build, configured: dict[str, Any]) -> Running:
        """The release that runs, with its ports, size and versions."""
        directory = build.directory
        record = json.loads(self.shell(f"cat {directory}/install.json"))
        skills = f"find {directory} -path '*/skills/*' -name SKILL.md -not -path '*/optional-skills/*' | wc -l"
        exe = "/proc/$(systemctl show --property=MainPID --value hermes-gateway.service)/exe"
        return Running(
            version=build.version,
            python=self.shell(f'"$(readlink --canonicalize {exe})" --version').strip().removeprefix("Python "),
            ports=frozenset(self.shell("ss --no-header --listening --tcp --numeric | awk '{print $4}'").split()),
            megabytes=int(self.shell(f"du --summarize --block-size=1M {directory}").split()[0]),
            schema=int(record["config_version"]),
            unknown_settings=frozenset(configured.get("unknown_settings") or ()),
            dashboard_available=bool(record.get("dashboard_available")),
            bundled_skills=int(self.shell(skills)),
        )

    def begin_home(self, build: Build) -> None:
        """Make what a user would have: sessions, a memory, a cron job."""
        word = f"heron-{secrets.token_hex(3)}"
        self.verify(build, prompt=f"remember: the trial's bird is {word}", expect="")
        self.verify(build, prompt="what do you remember?", expect=word)
        self.shell("cd / && hermes cron create 'every 30d' 'say hello' --name trial --deliver local")

    # --- the whole ---

    def judge(self, old: BareMetalAgent, new: BareMetalAgent, archive: Path | None) -> None:
        """Fill in the verdict. Raises TrialError or ProvisioningError if there can be none."""
        say("installing the container's packages and account")
        self.run(render_baseline(self.stack))
        say("installing the release to update from")
        first = Build.of(self.run(render_agent(old, own_uv())))
        self.verdict.over = first.version
        # It runs on an empty home first: the agent phase keeps a build that is in use.
        self.switch_to(first.directory)
        say(f"installing the release, {new.install.tag}")
        began = time.monotonic()
        try:
            second = Build.of(self.run(render_agent(new, own_uv())))
        except ProvisioningError as error:
            self._no(f"it can't be installed: {error}")
            return
        self.verdict.figures["seconds of its installation"] = round(time.monotonic() - began, 1)
        self.verdict.release = f"{second.version} ({new.install.tag}, {new.install.commit[:8]})"
        self.verdict.proved.append("installed from its pinned commit, beside the old one")
        say("cutting the container off from every network except the lab's model")
        self.bench.network.close()
        was, before = self._settle(first, archive)
        backup = self._update(first, second, was, before)
        if backup is not None:
            self._go_back(first, before, backup)

    def _settle(self, first: Build, archive: Path | None) -> tuple[Running, Held]:
        """Bring up the stack as it is now, the old release on the home. Raises an error if that does not work."""
        if archive is not None:
            say("unpacking the copy of the home")
            self.shell("systemctl stop 'hermes-*'")
            self.bring_home(archive)
        say(f"starting {first.version} on it, as in the stack")
        settled = self.switch_to(first.directory)
        if archive is None:
            self.begin_home(first)
        self.verify(first)
        held = self.look(first.directory)
        if not all(each.sound for each in held.databases.values()):
            raise TrialError("the copy of the home has damaged databases, so the trial can't judge")
        return self.running(first, settled), held

    def _update(self, first: Build, second: Build, old: Running, before: Held) -> str | None:
        """Make the update. Returns the name of its backup, or None if the verdict is no."""
        say(f"updating to {second.version}")
        try:
            updated = self.switch_to(second.directory)
        except ProvisioningError as error:
            self._no(str(error))
            self._after_failure(first, before)
            return None
        notes = agent_notes(self.heard)
        try:
            self.verify(second)
        except ProvisioningError as error:
            self._no(f"it answers, but a check fails: {error}")
            return None
        new, after = self.running(second, updated), self.look(second.directory)
        self.verdict.figures["seconds offline"] = float(updated.get("offline_seconds") or 0)
        self.verdict.figures["MB of its installation"] = new.megabytes
        dashboard = ", dashboard" if self.stack.agent.dashboard.enabled else ""
        self.verdict.proved.append(f"the update: gateway, version, a real prompt{dashboard}")
        self.verdict.changes = [*notes, *changes(old, new, before, after)]
        if gone := lost(before, after):
            self._no(*gone)
            return None
        memories = sum(path.startswith("memories/") for path in before.memories)
        held = f"{len(before.sessions)} sessions, {before.messages} messages, {memories} memories"
        self.verdict.proved.append(f"kept: {held}, {len(before.cron)} cron jobs")
        return str(updated["backup"])

    def _go_back(self, first: Build, before: Held, backup: str) -> None:
        say(f"going back to {first.version}")
        try:
            self.switch_to(first.directory)
            self.run(render_backups("restore", backup, request=secrets.token_hex(16)), BACKUP_SECONDS)
            self.verify(first)
        except ProvisioningError as error:
            self._no(f"going back fails: {error}")
            return
        if gone := lost(before, self.look(first.directory)):
            self._no(*[f"after going back: {reason}" for reason in gone])
            return
        self.verdict.proved.append(f"back to {first.version} and its data, by the backup from before the update")
        self.verdict.answer = True

    def _no(self, *reasons: str) -> None:
        self.verdict.answer = False
        self.verdict.reasons += reasons

    def _after_failure(self, first: Build, before: Held) -> None:
        """Check that the failed update was taken back and nothing is lost."""
        say(f"checking that {first.version} serves again")
        try:
            self.verify(first)
        except ProvisioningError as error:
            self._no(f"{first.version} does not serve again: {error}")
            return
        if gone := lost(before, self.look(first.directory)):
            self._no(*[f"after the update was taken back: {reason}" for reason in gone])
        else:
            self.verdict.proved.append(f"the update was taken back: {first.version} serves with all its data")


# ---- the command ----------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="scripts/try-release",
        description="Try a release of the agent in the lab, on a copy of a home, before a stack runs it.",
        epilog="Exit code 0: yes, 1: no, 2: it can't judge. The stack and its home do not change.",
    )
    made.add_argument("tag", help="the release's tag")
    made.add_argument("commit", help="the tag's commit, 40 hex digits")
    made.add_argument("--version", help="the version that the release must report (agentVersion); without it any")
    made.add_argument(
        "--backup", type=Path, help="a copy of a home: a folder, a tar or a zip file; without it the trial makes one"
    )
    made.add_argument(
        "--from", dest="over", nargs=2, metavar=("TAG", "COMMIT"), help="the release to update from, if not the stack's"
    )
    made.add_argument("--stack", default="cattle", help="the stack whose settings to try (cattle)")
    made.add_argument("--repository", help="the address of both releases (agentRepository), or `lab`: the lab's own")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the verdict to FILE as well")
    return made


def attempt(options: argparse.Namespace, verdict: Verdict) -> None:
    """Run the trial. Raises TrialError, ProvisioningError, LabError or RuntimeFault if it can't."""
    stack = settings_of(options.stack)
    own = stack.agent.install.repository if isinstance(stack.agent, BareMetalAgent) else UPSTREAM
    place = own if options.repository in (None, "lab") else options.repository
    if faults := faults_of_arguments(options.tag, options.commit, options.over, place):
        raise TrialError("\n".join(faults))
    if os.geteuid() != 0:
        raise TrialError("real containers need root: use sudo")
    releases_of(stack, options, None)
    source = ensure_source(SOURCE_CACHE, say) if options.repository == "lab" else None
    key = secrets.token_urlsafe(32)
    with a_place() as folder:
        archive = None if options.backup is None else archive_of(options.backup, folder)
        size = max(VOLUME_SIZE, 6 * archive.stat().st_size if archive else 0)
        repository = None if source is None else source.repository
        say("making a container in the lab")
        with a_bench(Bench, folder, stack.home, model_key=key, repository=repository, volume_size=size) as bench:
            url = options.repository if source is None else bench.git_url(source.repository)
            old, new = releases_of(stack, options, url)
            verdict.left_out = left_out(stack)
            trial = Trial(bench, stack, verdict, key)
            trial.judge(old, new, archive)


def main() -> int:
    options = parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    home = f"on a copy of {options.backup}" if options.backup else "on a home that the trial made"
    verdict = Verdict(f"{options.tag} ({options.commit[:8]})", "what the stack runs", home)
    try:
        attempt(options, verdict)
    except (TrialError, ProvisioningError, LabError, RuntimeFault) as error:
        verdict.answer = None
        verdict.reasons.append(str(error))
    except KeyboardInterrupt:
        print("try-release: interrupted. Everything was removed.", file=sys.stderr)
        return 130
    print()
    print(verdict.text())
    if options.json:
        options.json.write_text(verdict.as_json(), encoding="utf-8")
    return verdict.status


if __name__ == "__main__":
    end_with(main)
