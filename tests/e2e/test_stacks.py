"""The stacks as the committed settings have them, an address by DHCP and the agent from git, and a changed model."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tenacity
import yaml

from applications.hermes.phases import render_agent
from lab import engine
from lab.engine import Run, pulumi
from lab.environment import environment
from lab.instance import CHECKOUT, Lab
from lab.stacks import PROJECT
from provisioning.ssh import HostKey, SshTarget, connect
from pvelab.pct import Node
from scripts.lib.preview import SECONDS, UNTOUCHED, Found, Row, comment, read_events, rows
from tests.comments import is_as_in
from tests.e2e.phase_guest import made_of
from tests.e2e.test_demo import left_behind
from tests.settings import bare_metal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")

CANARY = "canary-in-the-environment-6f80"


@dataclass
class Stacks:
    """The two stacks of a lab with real containers."""

    lab: Lab
    node: str = "pve"

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **environment(self.lab), "PROXMOX_VE_NODE": self.node}

    def configure(self, **settings: object) -> None:
        content = yaml.safe_load(self.lab.stack_config_file.read_text())
        for key, value in settings.items():
            content["config"].pop(f"{PROJECT}:{key}", None)
            if value is not None:
                content["config"][f"{PROJECT}:{key}"] = value
        self.lab.stack_config_file.write_text(yaml.safe_dump(content, sort_keys=False))

    def settle_on(self, storage: str, size: int = 10) -> None:
        """Have both root file systems and the pet's volume there. `size` in GB."""
        volume = {"name": "hermes", "storage": storage, "size": size, "path": "/mnt/hermes"}
        self.configure(petStorage=storage, cattleStorage=storage, petVolumes=[volume])

    def setting(self, key: str) -> Any:
        return yaml.safe_load(self.lab.stack_config_file.read_text())["config"][f"{PROJECT}:{key}"]

    def set_secret(self, stack: str, key: str, value: str) -> None:
        """``key``: KEY.PART of an object."""
        engine.command(
            "config", "set", "--stack", stack, "--secret", "--path", key, cwd=CHECKOUT, env=self.env, stdin=value
        )

    def run(self, verb: str, stack: str, *options: str, log: Path | None = None) -> Run:
        run = pulumi([verb, "--stack", stack, *options], cwd=CHECKOUT, env=self.env, log=log)
        assert run.ok, run.explain()
        return run

    def up(self, stack: str) -> Run:
        return self.run("up", stack, "--yes", "--skip-preview")

    def agent(self, *arguments: str) -> str:
        """What `scripts/agent` says of the cattle."""
        command = [str(CHECKOUT / "scripts" / "agent"), "--stack", "cattle", *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def adopt(self, *arguments: str) -> str:
        """What `scripts/adopt` says."""
        command = [str(CHECKOUT / "scripts" / "adopt"), *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def known(self) -> frozenset[str]:
        """What the agent has: its sessions and their messages, by its own word, and its files with their sums."""
        files = " -o ".join(f"-path '{path}'" for path in OF_THE_AGENT)
        sums = f"find .hermes workspace -type f ! -name '*.lock' \\( {files} \\) -exec sha256sum {{}} +"
        export = f"cd /tmp && hermes sessions export - | python3 -c {shlex.quote(SESSIONS)}"
        return frozenset(self.shell(f"{export}; cd /home/hermes && {sums}").splitlines())

    def shell(self, command: str) -> str:
        """Run a command in the cattle, as root."""
        outputs = self.outputs("cattle")
        key = HostKey.parse(outputs["sshHostKey"])
        target = SshTarget(outputs["address"], key, private_key_file=outputs["sshKeyFile"])
        with contextlib.closing(connect(target)) as connection:
            done = connection.run(command, timeout_s=120)
        assert done.status == 0, done.stderr.decode()
        return str(done.stdout.decode())

    def outputs(self, stack: str) -> dict[str, Any]:
        return engine.outputs(stack, cwd=CHECKOUT, env=self.env)


OF_THE_AGENT = (
    *(".hermes/memories/*", ".hermes/skills/*/SKILL.md", ".hermes/SOUL.md", ".hermes/.env", ".hermes/auth.json"),
    "workspace/*",
)
SESSIONS = """
import hashlib, json, sys
for row in map(json.loads, (line for line in sys.stdin if line.startswith("{"))):
    print("session", row["id"])
    for each in row.get("messages") or ():
        told = json.dumps([each.get(name) for name in ("role", "content", "timestamp")])
        print("message", row["id"], hashlib.sha256(told.encode()).hexdigest())
"""


def lost_is_what_came_after(kept: frozenset[str], late: frozenset[str], after: frozenset[str]) -> None:
    """As `known` tells it: `kept` when the backup was made, `late` before the loss, `after` the recovery."""
    assert kept <= after, kept - after
    assert late - kept, "nothing came after the backup"
    assert not (late - kept) & after


@contextlib.contextmanager
def lab_with_stacks(folder: Path, *options: str) -> Iterator[Stacks]:
    """A lab of its own in ``folder``, made with these options of ``scripts/lab up``; nothing of it is left."""
    lab = Lab(folder)
    named = {**os.environ, "HERMES_LAB_DIR": str(lab.state_dir)}
    try:
        subprocess.run([CHECKOUT / "scripts" / "lab", "up", *options], env=named, check=True, timeout=600)
        yield Stacks(lab)
    finally:
        subprocess.run([CHECKOUT / "scripts" / "lab", "destroy"], env=named, check=True, timeout=120)
    assert left_behind(lab.place) == {}


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Stacks]:
    """Pet and cattle on ZFS-like storage: the root file systems and the volume are folders that are bound.

    There is a second node, which is empty.
    """
    with lab_with_stacks(tmp_path / "a lab", "--nodes", "2", "--storage", "tank=zfspool") as made:
        made.settle_on("tank")
        yield made


def a_reviewer_is_told(found: Found) -> None:
    """The rows of a real preview that changes the model, a document and the packages."""
    packages, settings = rows(found)
    assert packages == Row("packages and account in the cattle", "changed: extra_packages")
    assert (settings.what, settings.why) == ("the agent's settings", "changed: documents.SOUL.md, model.name")
    assert settings.restarts.startswith("hermes-gateway")
    assert (settings.offline, settings.data) == (SECONDS, UNTOUCHED)
    text, good = comment([found])
    assert good
    assert "digest" not in text
    assert "another-model" in text
    is_as_in("a_setting_that_restarts.md", text)


@pytest.mark.timeout(1500)
def test_an_address_by_dhcp_an_agent_from_git_and_a_changed_model(stacks: Stacks) -> None:
    stacks.configure(cattleAddress="dhcp", cattleGateway=None, cattleNameserver=None, agentApi=False)
    stacks.set_secret("cattle", "agentSecretEnvironment.LAB_SECRET", CANARY)
    stacks.up("pet")
    first = stacks.up("cattle")
    # The log of its creation told the host key, and nothing had to be taken as it came.
    assert not [told for told in first.messages if "is taken as it is" in told]
    outputs = stacks.outputs("cattle")
    subnet = str(stacks.lab.ready().subnet).rpartition(".")[0]
    assert outputs["address"].startswith(f"{subnet}.")
    assert outputs["agentVersion"] == stacks.lab.ready().source_version
    assert outputs["agentState"] == "active"
    assert stacks.up("cattle").changed == {}
    a_folder_is_the_volume_and_grows_in_use(stacks)
    # As a stack is by default: no API and no dashboard, and no port for them.
    assert outputs["api"] == ""
    listening = set(stacks.shell("ss -Hltn | awk '{print $4}'").split())
    assert listening == {"0.0.0.0:22", "[::]:22"}

    greeting = stacks.shell("printf 'exit\\n' | script -qec 'login -f root' /dev/null")
    assert "This container is made by hermes-homelab, stack cattle." in greeting

    # The preview names the phases that a change concerns, why they run, and what restarts: of a build as well, which
    # only the run itself is going to know.
    commit = stacks.setting("agentCommit")
    stacks.configure(agentDocuments={"SOUL.md": "You are in a lab."}, agentCommit="abcdef0123" * 4)
    told = "\n".join(stacks.run("preview", "cattle").messages)
    assert "cattle-agent-agent runs again (changed: git_commit)" in told
    assert "cattle-agent-configure runs again (changed: agent_directory, documents.SOUL.md); restarts hermes-" in told
    stacks.configure(agentModel="another-model", agentCommit=commit, agentExtraPackages=["tree"])
    events = stacks.lab.state_dir / "preview.log"
    preview = stacks.run("preview", "cattle", log=events)
    a_reviewer_is_told(read_events("cattle", events.read_text().splitlines()))
    told = "\n".join(preview.messages)
    assert "cattle-agent-baseline runs again (changed: extra_packages)" in told
    assert "cattle-agent-configure runs again (changed: documents.SOUL.md, model.name); restarts hermes-" in told
    assert preview.changed == {"update": 4}
    assert {span.name for span in preview.spans if span.op == "update"} == {
        "cattle-agent-baseline",
        "cattle-agent-configure",
        "cattle-agent-verify",
        "cattle-agent-login",
    }
    # The lab's endpoint knows no such model: that is said first, and nothing is installed or restarted.
    runs = "systemctl show --property=ActiveEnterTimestampMonotonic,MainPID hermes-gateway; command -v tree || true"
    before = stacks.shell(runs)
    failed = pulumi(["up", "--yes", "--skip-preview", "--stack", "cattle"], cwd=CHECKOUT, env=stacks.env)
    assert not failed.ok
    assert "Traceback" not in failed.explain()
    assert "agentModel = another-model\n" in failed.explain()
    assert "nothing was changed, and what ran still runs" in failed.explain()
    assert stacks.shell(runs) == before
    # Set right again, it goes on.
    stacks.configure(agentModel=stacks.lab.ready().model)
    again = stacks.up("cattle")
    assert set(again.changed) <= {"update", "create"}
    assert stacks.up("cattle").changed == {}
    a_version_that_does_not_start_is_gone_back_from(stacks)
    # It was changed, and never written down in clear: not in the stack's file, nor in the state and its history.
    stacks.set_secret("cattle", "agentSecretEnvironment.LAB_SECRET", f"another-{CANARY}")
    told = "\n".join(stacks.run("preview", "cattle", "--diff").messages)
    assert "cattle-agent-configure runs again (changed: secret_environment.LAB_SECRET); restarts hermes-" in told
    stacks.up("cattle")
    kept = [stacks.lab.stack_config_file, *(file for file in stacks.lab.pulumi_state.rglob("*") if file.is_file())]
    assert [file for file in kept if CANARY.encode() in file.read_bytes()] == []
    assert CANARY not in told
    what_is_on_the_volume_outlives_the_cattle(stacks)
    a_drill_tells_a_good_backup_from_a_bad_one(stacks)
    what_is_lost_comes_back(stacks)
    stacks.run("destroy", "cattle", "--yes", "--skip-preview")


def a_folder_is_the_volume_and_grows_in_use(stacks: Stacks) -> None:
    """As on ZFS: a bind mount with the options of a mount, and a size that is a property (ZFSPoolPlugin.pm)."""
    assert stacks.outputs("cattle")["volume"] == "tank:subvol-999-disk-1"
    options = stacks.shell("findmnt --noheadings --output OPTIONS --mountpoint /home/hermes").strip().split(",")
    assert {"nosuid", "nodev", "rw"} <= set(options)
    volume = {"storage": "tank", "size": 11, "path": "/mnt/hermes"}
    stacks.configure(petVolumes=[{"name": "hermes", **volume}])
    stacks.up("pet")
    assert stacks.outputs("pet")["volumes"]["hermes"] == {"volid": "tank:subvol-999-disk-1", **volume}


def a_version_that_does_not_start_is_gone_back_from(stacks: Stacks) -> None:
    """The run fails with the reason, the old version serves; set back, a run does nothing to the guest."""
    good = {key: stacks.setting(key) for key in ("agentSource", "agentVersion")}
    wanted = render_agent(bare_metal(agentSource="pypi", agentVersion="0.20.7"))
    build_id = next(json.loads(file.content)["build_id"] for file in wanted.files if file.path == "inputs.json")
    build = stacks.shell("readlink /opt/hermes/current").strip()
    dead = {"gateway/run.py": ("import asyncio\n", 'raise SystemExit("not today")\n')}
    made_of(stacks.shell, build, "0.20.7", dead, build_id)
    sessions = stacks.shell("hermes sessions list --limit 50")

    stacks.configure(agentSource="pypi", agentVersion="0.20.7")
    failed = pulumi(["up", "--yes", "--skip-preview", "--stack", "cattle"], cwd=CHECKOUT, env=stacks.env)
    assert not failed.ok
    told = failed.explain()
    assert "Traceback" not in told
    for words in (
        "the update to 0.20.7 was taken back",
        "not today",
        "The data had not been migrated and stayed as it is.",
        f"{good['agentVersion']} runs again",
    ):
        assert words in told, told

    # The old one serves; that the new one is still to come, the preview says.
    def serving() -> str:
        return stacks.shell(
            "readlink /opt/hermes/current; systemctl show -p MainPID -p NRestarts -p ActiveState 'hermes-*.service'; "
            "stat -c '%n %i %Y' /etc/hermes/* /etc/systemd/system/hermes-*"
        )

    before = serving()
    assert before.splitlines()[0] == build
    assert "HERMES-OK" in stacks.agent("prompt", "say HERMES-OK")
    assert stacks.shell("hermes sessions list --limit 50").count("\n") > sessions.count("\n")
    events = stacks.lab.state_dir / "pending.log"
    pending = stacks.run("preview", "cattle", log=events)
    text, _ = comment([read_events("cattle", events.read_text().splitlines())])
    # The values below the table are of the release that the lab serves.
    is_as_in("another_version.md", text.partition("<details>")[0])
    assert "cattle-agent-configure" in {span.name for span in pending.spans if span.op == "update"}

    stacks.configure(**good)
    back = stacks.up("cattle")
    assert {span.name for span in back.spans if span.op == "update"} == {"cattle-agent-agent"}
    assert serving() == before


STATE = "/home/hermes/.hermes"
SKILL = r"---\nname: lab\ndescription: a skill of the lab\n---\nBe kind.\n"
# By name: how it is made, as the agent or its user would.
WRITTEN = {
    f"{STATE}/config.yaml": "hermes config set agent.max_turns 9",
    f"{STATE}/cron/jobs.json": "hermes cron create 'every 12h' 'say hello' --name greet",
    f"{STATE}/skills/lab/SKILL.md": f"printf '{SKILL}' | runuser -u hermes -- "
    f"sh -c 'umask 077; mkdir {STATE}/skills/lab; cat >{STATE}/skills/lab/SKILL.md'",
    f"{STATE}/.env": "hermes config set OPENROUTER_API_KEY of-the-user",
    f"{STATE}/auth.json": f"runuser -u hermes -- sh -c 'umask 077; echo {{}} >{STATE}/auth.json'",
    "/home/hermes/workspace/note.txt": "hermes -z 'write file note.txt: hello there'",
    f"{STATE}/memories/MEMORY.md": "hermes -z 'remember: the cat is called Miez'",
}
# The folders, and what the stack and the agent themselves keep there, with their modes.
LAYOUT = {
    "/home/hermes": 750,
    STATE: 700,
    **{f"{STATE}/{folder}": 700 for folder in ("memories", "sessions", "skills", "cron", "logs", "hooks")},
    "/home/hermes/workspace": 700,
    "/home/hermes/.hermes-stack": 700,
    f"{STATE}/state.db": 600,
    f"{STATE}/SOUL.md": 600,
}
MADE_ANEW = ("/usr/local/bin", "/opt/hermes", "/etc/hermes", "/etc/systemd/system", "/usr/local/lib/hermes-stack")


def what_is_lost_comes_back(stacks: Stacks) -> None:
    """Node and state are gone; what is left is an archive, made while the agent worked, and the settings.

    Another node, with another name, takes them (docs/recovery.md 4). The database in the archive is then torn, as one
    that a node's tar has read while it was written.
    """
    node, other = Node(stacks.lab.state_dir), "pve2"

    def done(method: str, path: str, **params: str) -> list[str]:
        found = node.call(method, path, **params)
        return list(node.follow(found)) if isinstance(found, str) and found.startswith("UPID:") else []

    stacks.agent("backup")
    notes = node.call("GET", "/nodes/pve/lxc/105/config")["description"]
    assert re.search(r"^Last backup of the data: 20\d\d-\d\d-\d\d \d\d:\d\d UTC, seen 20", notes, re.MULTILINE)
    kept = stacks.known()
    # To a storage of another machine.
    told = done("POST", "/nodes/pve/vzdump", vmid="999", storage="shared", mode="snapshot")
    assert "INFO: backup mode: stop" in told
    assert stacks.outputs("cattle")["agentState"] == "active"
    stacks.agent("prompt", "remember: this comes too late")
    late = stacks.known()

    done("POST", "/nodes/pve/lxc/105/status/stop")
    done("DELETE", "/nodes/pve/lxc/105")
    done("PUT", "/nodes/pve/lxc/999/config", protection="0")
    done("DELETE", "/nodes/pve/lxc/999", purge="1")
    shutil.rmtree(stacks.lab.pulumi_state / ".pulumi" / "stacks")
    assert node.call("GET", "/cluster/resources", type="vm") == []
    for name in ("vm-999-disk-0", "vm-999-disk-1"):
        done("POST", f"/nodes/{other}/storage/local-lvm/content", vmid="999", filename=name, size="1G")
    [archive] = [row["volid"] for row in node.call("GET", f"/nodes/{other}/storage/shared/content", content="backup")]
    done("POST", f"/nodes/{other}/lxc", vmid="999", ostemplate=archive, restore="1", storage="local-lvm")
    # On another storage, as the page says.
    stacks.settle_on("local-lvm", stacks.setting("petVolumes")[0]["size"])
    shells = stacks.lab.ready().node_ssh
    assert shells is not None
    stacks.configure(node=other, nodeSshPort=shells[other]["port"], nodeSshHostKey=shells[other]["host_key"])
    stacks.node = other

    adopted = stacks.adopt("--yes")
    assert f"pet: CT 999 'pet-storage' on node {other} (stopped)" in adopted
    assert stacks.outputs("pet")["volumes"]["hermes"]["volid"] == "local-lvm:vm-999-disk-3"
    # The lab has one file of settings for both stacks.
    stacks.configure(claim=None)
    stacks.up("cattle")
    assert stacks.outputs("cattle")["volume"] == "local-lvm:vm-999-disk-3"
    assert [row["node"] for row in node.call("GET", "/cluster/resources", type="vm")] == [other, other]

    tear = f"printf torn | dd of={STATE}/state.db bs=1 seek=100 conv=notrunc 2>/dev/null"
    stacks.shell(f"systemctl stop 'hermes-*' && runuser -u hermes -- sh -c '{tear}; rm -f {STATE}/state.db-*'")
    assert "answers a prompt" in stacks.agent("restore", "latest")
    lost_is_what_came_after(kept, late, stacks.known())
    assert "Miez" in stacks.agent("prompt", "what do you remember?")
    assert "this comes too late" not in stacks.shell(f"cat {STATE}/memories/MEMORY.md")


DRILL = "106"


def a_drill(stacks: Stacks, *arguments: str) -> subprocess.Popen[str]:
    command = [str(CHECKOUT / "scripts" / "agent"), "--stack", "cattle", "drill", "--vmid", DRILL, *arguments]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen(command, env=stacks.env, **how)  # type: ignore[call-overload, no-any-return]


def killed_in_the_middle(node: Node, drill: subprocess.Popen[str]) -> None:
    """kill -9, the engine with it, once Proxmox makes the drill's container: no state tells of it."""
    for attempt in tenacity.Retrying(stop=tenacity.stop_after_delay(120), wait=tenacity.wait_fixed(0.1)):
        with attempt:
            assert DRILL in {str(row["vmid"]) for row in node.call("GET", "/cluster/resources", type="vm")}
    # A child's session is told in field 6 of its line, its parent in field 4 (proc(5)).
    rows = [file.read_text().rpartition(")")[2].split() for file in Path("/proc").glob("[0-9]*/stat")]
    engines = {int(row[3]) for row in rows if int(row[1]) == drill.pid}
    for session in (*engines, drill.pid):
        engine.kill_session(session)
    drill.communicate()


def with_a_torn_database(stacks: Stacks, name: str, folder: Path) -> Path:
    """A copy of a backup whose database was damaged already when it was made: its manifest has the sum of that."""
    packed = stacks.shell(f"runuser -u hermes -- tar -C /home/hermes/.hermes-stack/backups -c {name} | base64 -w0")
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as tar:
        tar.extractall(folder, filter="fully_trusted")  # noqa: S202 - of a test's own agent
    database, manifest = folder / name / "data" / "state.db", folder / name / "manifest.json"
    with database.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xff" * 8192)
    content = json.loads(manifest.read_text())
    content["files"]["state.db"]["sha256"] = hashlib.sha256(database.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))
    return folder / name


def a_drill_tells_a_good_backup_from_a_bad_one(stacks: Stacks) -> None:
    """Beside the real agent, which is not disturbed; and nothing of a drill is left, whatever became of it."""
    node, folder = Node(stacks.lab.state_dir), stacks.lab.state_dir.parent / "torn"
    address = stacks.outputs("cattle")["address"]
    name = stacks.agent("backup").partition("backups/")[2].split()[0]

    def real() -> str:
        show = "systemctl show -p MainPID -p NRestarts hermes-gateway; findmnt -no SOURCE,OPTIONS /home/hermes"
        return stacks.shell(
            f"{show}; stat -c '%n %i %Y' {STATE}/memories/MEMORY.md; ls /home/hermes/.hermes-stack/backups"
        )

    def left() -> list[str]:
        guests = [f"CT {row['vmid']}" for row in node.call("GET", "/cluster/resources", type="vm")]
        known = json.loads(engine.command("stack", "ls", "--json", cwd=CHECKOUT, env=stacks.env))
        volumes = [row["volid"] for row in node.call("GET", "/nodes/pve/storage/tank/content")]
        drills = [str(file) for file in (CHECKOUT / ".cache" / "drills").glob("*") if not file.name.endswith(".lock")]
        return sorted([*guests, *(row["name"] for row in known), *volumes, *drills])

    before, there = real(), left()
    killed_in_the_middle(node, a_drill(stacks))
    assert left() != there
    assert real() == before

    bad = a_drill(stacks, "--file", str(with_a_torn_database(stacks, name, folder)))
    said, errors = bad.communicate(timeout=600)
    assert "drill: what an earlier one had left is removed" in said
    assert f"the drill did not pass: the backup {name} has a damaged database: state.db" in errors, errors
    assert bad.returncode == 1
    assert (left(), real()) == (there, before)
    assert "FAILED" in stacks.agent("status")

    good = a_drill(stacks)
    said, errors = good.communicate(timeout=600)
    assert good.returncode == 0, errors
    # What answers beside it, and does not to the agent of a drill.
    assert f"drill: {address}:22 answered before, and does not any more" in said
    assert "Miez" in said
    assert f"drill: passed. {name}: files " in said
    assert (left(), real()) == (there, before)
    status = stacks.agent("status")
    assert re.search(rf"^drill +passed: .* {name}$", status, re.MULTILINE), status


def what_is_on_the_volume_outlives_the_cattle(stacks: Stacks) -> None:
    """Sessions, memories, skills, cron jobs, credentials, the user's keys and files; and nothing of the rest."""

    def found() -> list[str]:
        return stacks.shell(f"stat -c '%n %U:%G %a' {' '.join([*LAYOUT, *WRITTEN])}").splitlines()

    for command in WRITTEN.values():
        stacks.shell(command)
    before = found()
    modes = LAYOUT | dict.fromkeys(WRITTEN, 600)
    assert before == [f"{name} hermes:hermes {mode}" for name, mode in modes.items()]
    host_key = stacks.outputs("cattle")["sshHostKey"]
    known = stacks.known()
    assert [line for line in known if line.startswith("message ")]
    assert [line for line in known if line.endswith("workspace/note.txt")]
    stacks.shell(f"for folder in {' '.join(MADE_ANEW)}; do touch $folder/of-the-old-container; done; useradd alice")

    stacks.run("destroy", "cattle", "--yes", "--skip-preview")
    stacks.up("cattle")

    assert known <= stacks.known(), "nothing of it is lost"
    assert found() == before
    assert stacks.outputs("cattle")["sshHostKey"] != host_key
    assert stacks.shell("getent passwd alice || command -v tree") == "/usr/bin/tree\n"
    assert "of-the-user" in stacks.shell(f"cat {STATE}/.env")
    assert "Miez" in stacks.agent("prompt", "what do you remember?")
    assert "greet" in stacks.shell("hermes cron list")
    assert "lab" in stacks.shell("hermes skills list")
    assert stacks.shell("hermes config get agent.max_turns").strip() == "9"
    assert stacks.shell("cat /home/hermes/workspace/note.txt") == "hello there\n"
    left = stacks.shell(f"ls {' '.join(f'{folder}/of-the-old-container' for folder in MADE_ANEW)} 2>/dev/null || true")
    assert left == ""
    status = stacks.agent("status")
    assert "active (running)" in status
    assert "hermes (10000)" in status
    assert "backed up: /home/hermes/.hermes-stack/backups/" in stacks.agent("backup")
    kept = stacks.known()
    stacks.agent("prompt", "remember: the dog came later")
    late = stacks.known()
    stacks.shell(f"rm {STATE}/memories/MEMORY.md /home/hermes/workspace/note.txt")
    assert "answers a prompt" in stacks.agent("restore", "latest")
    lost_is_what_came_after(kept, late, stacks.known())
    assert "Miez" in stacks.shell(f"cat {STATE}/memories/MEMORY.md")
    assert stacks.agent("backups").count("before going back to ") == 1
