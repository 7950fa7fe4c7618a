"""The cattle on Debian 13: Python 3.13, systemd 257, OpenSSH 10. What depends on the system, once, from end to end."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import requests

from applications.hermes.guest.copies import LOCKED, NO_REPOSITORY, WRONG_PASSWORD
from applications.hermes.guest.names import MANAGED_ENV
from lab import engine
from lab.environment import CONFIG_FILE_VARIABLE
from lab.instance import CHECKOUT
from provisioning.guest.common import LIBRARY
from tests.e2e.phase_guest import needs_root
from tests.e2e.test_stacks import Stacks, lab_with_stacks
from tests.program_copy import copy_with_webservice, ran

pytestmark = needs_root


@pytest.mark.timeout(1500)
def test_the_stacks_on_debian_13_go_and_come_back_with_their_memory(tmp_path: Path) -> None:
    """All of them in a folder of the node: loop-mounted images."""
    with lab_with_stacks(tmp_path / "lab", "--debian-13", "--storage", "hdd=dir") as stacks:
        stacks.settle_on("hdd")
        stacks.configure(template=stacks.env["HERMES_LAB_TEMPLATE_13"])
        stacks.up("pet")
        stacks.up("cattle")
        assert "trixie" in stacks.shell("cat /etc/os-release")
        assert stacks.shell("/opt/hermes/current/venv/bin/python --version").startswith("Python 3.13."), "Debian's own"
        assert stacks.shell("systemctl list-units --failed --plain --no-legend 'hermes-*' 'ssh*'") == ""
        assert stacks.outputs("cattle")["agentVersion"] == stacks.setting("agentVersion")
        stacks.agent("prompt", "remember: the hedgehog is called Bodo")
        the_agent_stays_in_its_sandbox(stacks)
        assert stacks.up("cattle").changed == {}
        another_program_reads_the_outputs(stacks, tmp_path / "consumer")
        state_and_passphrase_are_lost(stacks)
        restic_says_why_by_its_status(stacks)
        assert stacks.outputs("cattle")["volume"] == "hdd:999/vm-999-disk-1.raw"
        assert stacks.shell("findmnt --noheadings --output FSTYPE --mountpoint /home/hermes").strip() == "ext4"
        stacks.run("destroy", "cattle", "--yes", "--skip-preview")
        another_application_runs(stacks, copy_with_webservice(tmp_path / "copy"))
        stacks.up("cattle")
        assert "Bodo" in stacks.agent("prompt", "what do you remember?")


def state_and_passphrase_are_lost(stacks: Stacks) -> None:
    """docs/recovery.md 5 and 6: all that the agent knows is there, also what came after the last backup."""
    stacks.agent("backup")
    stacks.agent("prompt", "remember: the owl is called Uhu")
    process = "systemctl show --property=MainPID --property=NRestarts hermes-gateway"
    known, running = stacks.known(), stacks.shell(process)
    assert [line for line in known if line.endswith(".hermes/memories/MEMORY.md")]
    shutil.rmtree(stacks.lab.pulumi_state / ".pulumi")
    stacks.lab.passphrase_file.write_text("another one\n")
    told = stacks.adopt("--new-passphrase")
    assert "  pulumi config set --stack cattle --secret agentModelKey\n" in told
    stacks.set_secret("cattle", "agentModelKey", stacks.lab.model_key_file.read_text().strip())
    told = stacks.adopt("--yes")
    assert "cattle: CT 105 'hermes' on node pve (running), claim " in told
    assert known <= stacks.known()
    assert stacks.shell(process) == running
    assert "Uhu" in stacks.agent("prompt", "what do you remember?")


RESTIC = f"""
import json, subprocess, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, "{LIBRARY}")
from applications.hermes.guest import copies
from applications.hermes.guest.inputs import Copy
place = copies.FOLDER = copies.CACHE = Path(tempfile.mkdtemp())
(place / copies.REPOSITORY).write_text(str(place / "r"))
(place / copies.PASSWORD).write_text("one")
repository = copies.Repository(Copy(str(place / "r"), "", "", None, "", {{}}, 0))
ends = []
def ask(*words):
    done = repository.asked(*words)
    ends.append([done.returncode, copies.why_of(done)])
ask("cat", "config", "--no-lock")
ask("init")
held = subprocess.Popen([copies.RESTIC, "backup", "--quiet", "--stdin"], stdin=-1, env=repository.environment)
deadline = time.monotonic() + 30
while not list((place / "r" / "locks").iterdir()):
    assert held.poll() is None and time.monotonic() < deadline
    time.sleep(0.05)
ask("prune")
held.communicate()
(place / copies.PASSWORD).write_text("two")
ask("snapshots", "--json", "--no-lock")
print(json.dumps(ends))
"""


def restic_says_why_by_its_status(stacks: Stacks) -> None:
    """Debian 12's says it in words alone. restic's documents, "Exit codes": 10, 11 and 12 since 0.17."""
    stacks.shell("DEBIAN_FRONTEND=noninteractive apt-get install -qq restic >/dev/null 2>&1")
    assert "restic 0.18." in stacks.shell("restic version")
    told = stacks.shell(f"python3 -IB -c {shlex.quote(RESTIC)}")
    assert json.loads(told) == [[10, NO_REPOSITORY], [0, None], [11, LOCKED], [12, WRONG_PASSWORD]]


def the_agent_stays_in_its_sandbox(stacks: Stacks) -> None:
    """Its shell may write where its data is, and nowhere else."""
    tried = "for place in .hermes workspace /etc/hermes /opt/hermes/current/venv; do touch $place/.try 2>/dev/null && "
    said = stacks.agent("prompt", f"run: cd /home/hermes; {{ {tried} echo $place; done; }} >workspace/let")
    assert "Done. The tool said" in said
    assert stacks.shell("cat /home/hermes/workspace/let").split() == [".hermes", "workspace"]


def another_program_reads_the_outputs(stacks: Stacks, folder: Path) -> None:
    """The example, copied to where it is a repository of its own; only its packages are not installed again."""
    key = stacks.shell(f"sed -n \"s/^API_SERVER_KEY='\\(.*\\)'$/\\1/p\" {MANAGED_ENV}").strip()
    assert len(key) == 64
    shown = engine.command("stack", "output", "--stack", "cattle", cwd=CHECKOUT, env=stacks.env)
    exported = engine.command("stack", "export", "--stack", "cattle", cwd=CHECKOUT, env=stacks.env)
    assert key not in shown + exported
    shutil.copytree(CHECKOUT / "examples" / "other-stack", folder)
    (folder / "venv").symlink_to(CHECKOUT / ".cache" / "venv")
    env = {name: value for name, value in stacks.env.items() if name != CONFIG_FILE_VARIABLE}
    engine.command("stack", "init", "home", cwd=folder, env=env)
    run = engine.pulumi(["up", "--yes", "--skip-preview", "--stack", "home"], cwd=folder, env=env)
    assert run.ok, run.explain()
    outputs = stacks.outputs("cattle")
    made = {file.name: file.read_text() for file in (folder / "made").iterdir()}
    assert made["dnsmasq.conf"] == f"host-record=hermes.lan,{outputs['address']}\n"
    assert made["known_hosts"] == f"{outputs['address']} {outputs['sshHostKey']}\n"
    # The lab's stack has its API on loopback, which another machine does not reach.
    assert made["api.env"] == f"HERMES_API_URL=\nHERMES_API_KEY={key}\n"
    assert key not in "\n".join([*run.messages, run.stderr])
    assert {file.stat().st_mode & 0o077 for file in (folder / "made").iterdir()} == {0}
    again = engine.pulumi(["preview", "--stack", "home"], cwd=folder, env=env)
    assert again.ok, again.explain()
    assert again.changed == {}


def another_application_runs(stacks: Stacks, tree: Path) -> None:
    """The web service of the examples, in a cattle without a volume; the one before is destroyed, and so is this."""
    ran(tree, "-m", "settings.generate")
    (tree / ".cache").symlink_to(CHECKOUT / ".cache")
    own = {"application": "webservice", "webText": "Hello, lab.", "cattleVolume": "", "cattleMountPath": "/srv/web"}
    before = stacks.lab.stack_config_file.read_text()
    stacks.configure(**own)

    def run(verb: str, *options: str) -> engine.Run:
        done = engine.pulumi([verb, "--stack", "cattle", *options], cwd=tree, env=stacks.env)
        assert done.ok, done.explain()
        return done

    run("up", "--yes", "--skip-preview")
    outputs = engine.outputs("cattle", cwd=tree, env=stacks.env)
    assert outputs["webState"] == "active"
    assert outputs["url"] == f"http://{outputs['address']}:8080/"
    assert requests.get(outputs["url"], timeout=20).text == "Hello, lab."
    assert run("preview").changed == {}
    run("destroy", "--yes", "--skip-preview")
    stacks.lab.stack_config_file.write_text(before)
