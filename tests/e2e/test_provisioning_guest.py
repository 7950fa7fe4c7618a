"""The phases in a real container: whole path, lost connections, killed controllers, another container on the same home.

Needs root on a machine where the lab can run containers (scripts/lab); it makes a lab of its own and removes it.

The tests tell one story, in this order: each finds the container as the one before has left it. It begins with a web
interface, for the dashboard; what comes after the killed controller does without.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.talk import ask
from lab.bench import GUEST_ROOT, VOLUME_SIZE
from provisioning.errors import HostKeyMismatch, PhaseFailed, WrongMachine
from provisioning.plans import run_phase
from provisioning.ssh import Card, connect, wait_for_ssh
from proxmox.hostkeys import fingerprints
from pvelab.runtime import Mount
from tests.attacks.attack import Scene, attacks, carry_out
from tests.e2e.docked import BARE, sessions
from tests.e2e.phase_guest import CHECKOUT, MODEL_KEY, Guest, Proxy, backups_plan, needs_root, run_cut, through

pytestmark = needs_root

PASSWORD = "canary horse battery staple"
PYPI_VERSION = "0.19.0"  # the last one that there is
COPY_PASSWORD = "canary staple horse battery"
COPIES = "/mnt/copies"
TO_A_FOLDER: dict[str, Any] = {
    "cattleHostMounts": [{"source": "/srv/copies", "path": COPIES, "owner": 0}],
    "agentCopyRepository": f"{COPIES}/hermes",
    "agentCopyPassword": COPY_PASSWORD,
}


def test_a_home_that_is_no_mount_is_refused_and_nothing_is_changed(guest: Guest) -> None:
    guest.discard()
    guest.up(with_volume=False)
    with pytest.raises(PhaseFailed) as refused:
        guest.run(guest.baseline())
    assert "nothing is mounted at /home/hermes" in str(refused.value)
    assert guest.shell("getent passwd hermes || echo none").strip() == "none"
    assert guest.shell("command -v git || echo none").strip() == "none"
    guest.renew()


def test_a_home_of_another_owner_is_refused(guest: Guest) -> None:
    guest.shell("chown 1234 /home/hermes")
    with pytest.raises(PhaseFailed) as refused:
        guest.run(guest.baseline())
    assert "belongs to uid 1234, expected 10000" in str(refused.value)
    guest.shell("chown 0:0 /home/hermes")


OF_OURS = "ls -A /run/hermes-provision /var/lib/hermes-provision /opt/hermes /etc/hermes /home/hermes 2>&1 || true"


def test_a_machine_that_is_not_the_container_is_refused_and_not_written_to(guest: Guest) -> None:
    """It has the address and takes the key, as another cattle does, a NAS, or the node."""
    before = guest.shell(OF_OURS)
    with pytest.raises(WrongMachine, match=r"(?s)not CT 107.*bc:24:11:00:00:07.*bc:24:11:00:00:05"):
        run_phase(
            replace(guest.target(), card=Card("CT 107", "BC:24:11:00:00:07")),
            guest.baseline(),
            on_line=lambda _: None,
        )
    assert guest.shell(OF_OURS) == before
    with contextlib.closing(connect(replace(guest.target(), card=Card("CT 105", "BC:24:11:00:00:05")))) as own:
        assert own.run("hostname").stdout == b"hermes\n"


def test_the_container_shows_a_key_that_its_creation_told_and_another_machine_does_not(guest: Guest) -> None:
    told = fingerprints(guest.creation)
    assert len(told) == 3
    first_contact = partial(wait_for_ssh, guest.address, private_key_file=str(guest.key), timeout_s=60)
    assert first_contact(made=told).fingerprint in told
    guest.renew()
    with pytest.raises(HostKeyMismatch, match="Nothing was sent"):
        first_contact(made=told, card=Card("CT 105", "BC:24:11:00:00:05"))
    assert first_contact(made=fingerprints(guest.creation)).fingerprint not in told


def test_baseline_and_agent_survive_cut_connections(guest: Guest) -> None:
    run_cut(guest, guest.baseline(), "packages: installing")
    built = run_cut(guest, guest.agent(agentWebUi="build"), "agent: building")
    assert (built["dashboard_available"], built["terminal_available"]) == (True, True)
    assert guest.shell("stat -c %u:%g:%a /home/hermes /home/hermes/.hermes/memories").split() == [
        "10000:10000:750",
        "10000:10000:700",
    ]
    assert guest.shell("id -nG hermes").strip() == "hermes"
    # What nobody has built of the web interface is root's, and nothing of nobody's is left.
    assert guest.shell("find /opt/hermes ! -user root | head").strip() == ""
    assert guest.shell("ls -d /var/tmp/hermes-build.* 2>/dev/null || true; pgrep --euid nobody || true") == ""
    # The terminal interface has a Node to run on.
    assert guest.shell(f"{built['directory']}/node/bin/node --version").startswith("v24.")


def test_configure_and_verify_prove_a_working_agent(guest: Guest) -> None:
    outputs = run_cut(guest, guest.configure(agentDashboard=True), "services: ")
    assert outputs["restarted"] == ["hermes-gateway.service", "hermes-dashboard.service"]
    assert "HERMES-OK" in str(run_cut(guest, guest.proof(), "verify: gateway")["answer"])
    page = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9119/').status)"
    assert guest.shell(f'python3 -I -c "{page}"').strip() == "200"
    assert guest.shell("stat -c %U:%G:%a /etc/hermes /etc/hermes/.env /etc/hermes/config.yaml").split() == [
        "root:hermes:750",
        "root:hermes:640",
        "root:hermes:640",
    ]


def test_both_services_are_sandboxed_and_what_is_looser_has_its_reason(guest: Guest) -> None:
    for unit in ("hermes-gateway.service", "hermes-dashboard.service"):
        overall = guest.shell(f"systemd-analyze security --no-pager {unit} | tail -n 1")
        assert float(overall.split(": ")[1].split()[0]) <= 1.3, overall
        report = json.loads(guest.shell(f"systemd-analyze security --json=short --no-pager {unit}"))
        looser = [row["name"] for row in report if float(row.get("exposure") or 0)]
        assert looser
        text = guest.shell(f"systemctl cat {unit}")
        reasons = " ".join(line for line in text.splitlines() if line.startswith("#"))
        # PrivateNetwork=, RootDirectory=/RootImage=, RestrictAddressFamilies=~AF_(INET|INET6)
        names = [name.rpartition("~")[2].replace("(INET|INET6)", "INET").partition("=")[0] for name in looser]
        assert [name for name in names if name not in reasons] == []


def test_a_second_run_changes_nothing(guest: Guest) -> None:
    def stamp() -> str:
        units = "hermes-gateway.service hermes-dashboard.service"
        return guest.shell(
            f"systemctl show -p MainPID --value {units}; stat -c '%n %i %Y' /etc/hermes/* /etc/hermes/.env "
            "/etc/systemd/system/hermes-* /opt/hermes/* /opt/hermes/current /var/lib/dpkg/status /var/lib/apt/lists"
        )

    before = stamp()
    configure = guest.configure(agentDashboard=True)
    for plan in (guest.baseline(), guest.agent(agentWebUi="build"), configure):
        outputs = guest.run(plan)
        assert outputs.get("restarted", []) == []
    assert stamp() == before


def test_a_new_dashboard_password_restarts_the_dashboard_only(guest: Guest) -> None:
    everywhere = "0.0.0.0"  # noqa: S104 - of a container in a lab
    opened: dict[str, Any] = {
        "agentDashboard": True,
        "agentDashboardHost": everywhere,
        "agentDashboardPassword": PASSWORD,
    }
    assert guest.run(guest.configure(**opened))["restarted"] == ["hermes-dashboard.service"]
    status, _, err = guest.verify()
    assert status == 0, err
    # The salt is random, the hash is kept: the same password is no change.
    assert guest.run(guest.configure(**opened))["restarted"] == []
    guest.run(guest.configure(agentDashboard=True))


def test_what_is_declared_wins_and_the_users_file_stays_as_it_is(guest: Guest) -> None:
    # The lab's model answers to its own name only: an answer proves which of the two names was used.
    theirs = "# my words\nmodel:\n  default: another-model\nagent:\n  max_turns: 7\n"
    guest.shell(f"runuser -u hermes -- sh -c 'printf %s \"$1\" >/home/hermes/.hermes/config.yaml' sh '{theirs}'")
    guest.shell("systemctl restart hermes-gateway.service hermes-dashboard.service")
    guest.run(guest.configure(agentDashboard=True))
    status, _, err = guest.verify()
    assert status == 0, err
    # DEFAULT_CONFIG in hermes_cli/config.py.
    schema = {"0.19.0": 33, "0.20.3": 37}[guest.release.version]
    assert f"schema 0, the agent knows {schema}" in err
    assert guest.shell("cat /home/hermes/.hermes/config.yaml") == theirs


def test_port_that_is_taken_is_told_with_its_holder(guest: Guest) -> None:
    guest.shell("systemctl stop hermes-dashboard.service")
    guest.shell("systemd-run --quiet --collect --unit=squatter python3 -m http.server --bind 127.0.0.1 9119")
    guest.shell("for i in $(seq 100); do ss -ltn 'sport = :9119' | grep -q LISTEN && exit; sleep 0.1; done; exit 1")
    with pytest.raises(PhaseFailed) as refused:
        guest.run(guest.configure(agentDashboard=True))
    assert "the dashboard can't listen on 127.0.0.1 port 9119" in str(refused.value)
    assert "python3" in str(refused.value)
    guest.shell("systemctl stop squatter.service")
    assert guest.run(guest.configure(agentDashboard=True))["restarted"] == ["hermes-dashboard.service"]


def test_a_killed_controller_leaves_a_job_that_the_next_run_picks_up(guest: Guest) -> None:
    plan, target = guest.agent(), guest.target()
    program = (
        "import sys; import base64, pickle; from provisioning.plans import run_phase\n"
        "target, plan = pickle.loads(base64.b64decode(sys.stdin.readline()))\n"
        "run_phase(target, plan, on_line=lambda line: print(line, flush=True), timeout_s=300)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(base64.b64encode(pickle.dumps((target, plan))).decode() + "\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("git: fetching"):
            child.send_signal(signal.SIGKILL)
            break
    child.wait(timeout=30)
    child.stdin.close()
    child.stdout.close()
    result = run_phase(target, plan, on_line=lambda _: None, timeout_s=300)
    assert result.picked_up
    assert result.outputs["commit"] == guest.release.commit
    assert guest.started(plan) == 1
    assert guest.run(guest.configure())["restarted"] == ["hermes-gateway.service"]
    assert guest.shell("systemctl is-active hermes-dashboard.service || true").strip() == "inactive"
    status, _, err = guest.verify()
    assert status == 0, err


RUNNING = "readlink /opt/hermes/current; systemctl show -p MainPID --value hermes-gateway.service"


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"agentCommit": "0123456789" * 4}, "the tag {tag} is at commit {commit}"), ({"agentTag": "v9"}, "no tag v9")],
)
def test_a_release_that_was_moved_or_removed_is_refused_and_what_runs_stays(
    guest: Guest, settings: dict[str, Any], words: str
) -> None:
    before = guest.shell(RUNNING)
    assert before.split()[1] != "0"
    with pytest.raises(PhaseFailed) as refused:
        guest.run(guest.agent(**settings))
    assert words.format(tag=guest.release.tag, commit=guest.release.commit) in str(refused.value)
    assert guest.shell(RUNNING) == before


def test_checkout_that_calls_itself_otherwise_is_not_switched_to(guest: Guest) -> None:
    before = guest.shell(RUNNING)
    with pytest.raises(PhaseFailed, match=re.escape(f"calls itself {guest.release.version}, but 9.9.9 is declared")):
        # Of few packages: it is not to be used.
        guest.run(guest.agent(extras=("mcp",), agentVersion="9.9.9"))
    assert guest.shell(RUNNING) == before


def test_what_an_interrupted_build_left_is_swept_away(guest: Guest) -> None:
    guest.shell("mkdir -p /opt/hermes/.building/src/.git && echo half >/opt/hermes/.building/src/.git/HEAD")
    # The package index's, with its interface in it; a folder without its certificate.
    index, current = f"/opt/hermes/{PYPI_VERSION}", guest.shell("readlink /opt/hermes/current")
    guest.shell(f"mkdir {index}")
    installed = guest.run(guest.agent(agentSource="pypi", agentVersion=PYPI_VERSION))
    assert (installed["directory"], installed["version"], installed["dashboard_available"]) == (
        index,
        PYPI_VERSION,
        True,
    )
    assert f"Hermes Agent v{PYPI_VERSION}" in guest.shell(
        f"cd / && runuser -u hermes -- {index}/venv/bin/hermes --version"
    )
    assert guest.shell("find /opt/hermes -maxdepth 1 -name '.*'") == ""
    assert guest.shell("readlink /opt/hermes/current") == current
    # What was there before is taken as it is, and what nobody wants any more goes.
    assert guest.run(guest.agent())["directory"] == current.strip()
    assert guest.run(guest.configure())["restarted"] == []
    assert guest.shell(f"ls -d {index} 2>/dev/null || true") == ""


def test_a_checkout_without_web_ui_says_so(guest: Guest) -> None:
    assert guest.run(guest.agent())["dashboard_available"] is False
    with pytest.raises(PhaseFailed, match="has no web UI"):
        guest.run(guest.configure(agentDashboard=True))
    assert guest.shell("systemctl is-active hermes-gateway.service").strip() == "active"
    guest.run(guest.configure())


def test_units_of_the_user_are_refused(guest: Guest) -> None:
    folder = "/home/hermes/.config/systemd/user"
    guest.shell(f"runuser -u hermes -- sh -c 'mkdir -p {folder} && touch {folder}/hermes-gateway.service'")
    with pytest.raises(PhaseFailed, match="a second gateway on the same data"):
        guest.run(guest.configure())
    guest.shell("rm -r /home/hermes/.config")


# A shell under the sandbox writes down where it may write.
LET = ".hermes /tmp /root workspace"
NOT_LET = "/etc/hermes /etc/systemd/system /opt/hermes/current/venv /usr/local/bin /var/lib/hermes-provision"
TRY = f"for place in {LET} {NOT_LET}; do touch $place/.try 2>/dev/null && echo $place; done"
SHELL = f"run: cd /home/hermes; {{ {TRY}; }} >workspace/let"


def test_the_agent_uses_its_tools_inside_the_sandbox(guest: Guest) -> None:
    for prompt, expect in (
        ("remember: the cat is called Miez", "Entry added"),
        ("write file note.txt: hello there", "bytes_written"),
        ("what do you remember?", "the cat is called Miez"),
        (SHELL, "Done. The tool said"),
    ):
        status, _, err = guest.verify(prompt=prompt, expect=expect)
        assert status == 0, err
    assert "Miez" in guest.shell("cat /home/hermes/.hermes/memories/*.md")
    assert guest.shell("cat /home/hermes/workspace/note.txt") == "hello there\n"
    assert guest.shell("cat /home/hermes/workspace/let").split() == LET.split()
    # Its /tmp and /root are its own.
    assert guest.shell("ls /tmp/.try /root/.try 2>/dev/null || true") == ""


# -- attacks by its own shell: tests/attacks ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene(guest: Guest) -> Scene:
    def up() -> None:
        for plan in (guest.baseline(), guest.agent(), guest.configure()):
            guest.run(plan)

    def renew() -> None:
        guest.renew()
        up()

    up()
    return Scene("bare-metal", guest, guest.verify, renew)


@pytest.mark.parametrize("attack", attacks("bare-metal"))
def test_an_attack_is_held(scene: Scene, attack: str) -> None:
    carry_out(attack, scene)


def test_a_silent_network_is_noticed_and_survived(guest: Guest, proxy: Proxy) -> None:
    target = through(proxy, guest.target())
    plan = guest.baseline(agentExtraPackages=["tree"])
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith("packages: installing"):
            proxy.stalled.set()
        if "connecting again" in line:
            proxy.stalled.clear()

    run_phase(target, plan, on_line=hear, timeout_s=300)
    assert any("connecting again" in line for line in lines)
    assert guest.started(plan) == 1
    assert guest.shell("command -v tree").strip() == "/usr/bin/tree"


def test_a_model_that_refuses_is_told_before_anything_is_changed(guest: Guest) -> None:
    guest.run(guest.configure())
    started = "systemctl show --property=ActiveEnterTimestampMonotonic,MainPID hermes-gateway.service"
    before = guest.shell(started), guest.shell("cat /etc/hermes/.env /etc/hermes/config.yaml | sha256sum")
    faults = {
        "agentModelKey": ("sk-wrong-canary-77", r"agentModelKey = \(hidden\)\n.*401"),
        "agentModel": ("another-model", r"agentModel = another-model\n.*it lists: 'lab-model'"),
        "agentModelUrl": (guest.model.base_url.removesuffix("/v1"), "there are models at http://.*/v1"),
    }
    for key, (wrong, told) in faults.items():
        with pytest.raises(PhaseFailed, match=told) as failed:
            guest.run(guest.configure(**{key: wrong}))
        assert "sk-wrong-canary-77" not in str(failed.value)
        assert "no setting of the agent was changed, and what ran still runs" in str(failed.value)
    assert (guest.shell(started), guest.shell("cat /etc/hermes/.env /etc/hermes/config.yaml | sha256sum")) == before
    guest.configure()
    status, _, err = guest.verify()
    assert status == 0, err


def test_a_new_container_on_the_same_home_goes_on_where_the_old_one_ended(guest: Guest) -> None:
    key = guest.shell("cat /home/hermes/.hermes-stack/api-server-key")
    guest.shell("runuser -u hermes -- sh -c 'echo kept >/home/hermes/.hermes/memories/note.md'")
    old = guest.target().host_key
    guest.discard()
    # A folder of the node, for the copies.
    folder = guest.state / "copies"
    guest.runtime.own_folder(make_folder(folder), GUEST_ROOT)
    guest.spec = replace(guest.spec, mounts=(*guest.spec.mounts, Mount("mp1", COPIES, host_folder=folder)))
    guest.up()
    assert guest.target().host_key != old
    began = time.monotonic()
    for plan in (guest.baseline(), guest.agent(), guest.configure()):
        guest.run(plan)
    status, _, err = guest.verify()
    assert status == 0, err
    assert guest.shell("cat /home/hermes/.hermes/memories/note.md").strip() == "kept"
    assert guest.shell("cat /home/hermes/.hermes-stack/api-server-key") == key
    assert time.monotonic() - began < 300


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def status_line(guest: Guest, of: str) -> str:
    text = guest.shell("python3 -IB /usr/local/lib/hermes-stack/status.py")
    return next(line for line in text.splitlines() if line.startswith(f"{of} "))


def test_a_second_copy_is_made_by_root_alone_and_only_where_it_was_begun(guest: Guest) -> None:
    guest.run(guest.baseline(**TO_A_FOLDER))
    plan = guest.configure(**TO_A_FOLDER)
    guest.run(plan)
    made = guest.run(backups_plan("make"))
    with pytest.raises(
        PhaseFailed, match=r"there is no copy at /mnt/copies/hermes yet(?s:.)*scripts/agent copy --init"
    ):
        guest.run(backups_plan("copy"))
    assert "FAILED: there is none yet, at /mnt/copies/hermes" in status_line(guest, "copy")
    assert guest.run(backups_plan("copy", "--init")) == {"set": made["name"], "pushed": True}
    assert f"({made['name']}), at /mnt/copies/hermes, checked " in status_line(guest, "copy")
    status, out, err = guest.verify()
    assert (status, json.loads(out)["copy"]) == (0, "made"), err
    # Nothing is done twice, by hand or by the timer, or configured again.
    before = guest.shell("find /mnt/copies -type f | sort | sha256sum")
    assert guest.run(backups_plan("copy"))["pushed"] is False
    guest.shell("systemctl start agent-copy.service")
    assert guest.shell("find /mnt/copies -type f | sort | sha256sum") == before
    assert guest.run(plan)["restarted"] == []
    assert guest.shell("systemctl is-active agent-copy.timer") == "active\n"

    # A backup brings its copy about.
    again = guest.run(backups_plan("make"))
    wait = "until systemctl show -P ActiveState agent-copy.service | grep -q inactive; do sleep 0.2; done"
    guest.shell(f"{wait}; systemctl show -P Result agent-copy.service | grep -q success")
    assert str(again["name"]) in status_line(guest, "copy")
    assert [each["set"] for each in copies(guest)] == [again["name"], made["name"]]

    # The agent reads neither the password nor the copy, and removes nothing there.
    for command in ("cat /etc/hermes-stack/copy/password", "ls /mnt/copies/hermes", "rm -r /mnt/copies/hermes"):
        assert "denied" in guest.shell(f"runuser -u hermes -- {command} 2>&1 || true").lower()
    assert "/mnt/copies" not in guest.shell("systemctl cat hermes-gateway.service")
    guest.run(guest.configure(**{**TO_A_FOLDER, "agentCopyPassword": "another horse battery"}))
    # Nobody is asked while there is nothing to do.
    guest.run(backups_plan("make"))
    with pytest.raises(PhaseFailed, match="was made with another password"):
        guest.run(backups_plan("copy"))


def copies(guest: Guest) -> list[dict[str, Any]]:
    """Newest first."""
    found = guest.run(backups_plan("copies"))["copies"]
    assert isinstance(found, list)
    return found


def test_a_copy_goes_by_sftp_to_the_one_server_that_has_the_pinned_key(guest: Guest) -> None:
    key = guest.state / "copy-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=30)
    guest.shell("cat >>/root/.ssh/authorized_keys", stdin=key.with_suffix(".pub").read_bytes())
    place = {
        "agentCopyRepository": f"sftp:root@{guest.address}:{COPIES}/by-sftp",
        "agentCopyPassword": COPY_PASSWORD,
        "agentCopySshKey": key.read_text(),
        "agentCopySshHostKey": guest.target().host_key.line,
    }
    guest.run(guest.baseline(**place))
    guest.run(guest.configure(**{**place, "agentCopySshHostKey": key.with_suffix(".pub").read_text()}))
    # restic prints what ssh says when it comes to it before it ends.
    refused = "Host key verification failed|unable to start the sftp session"
    with pytest.raises(PhaseFailed, match=refused):
        guest.run(backups_plan("copy", "--init"))
    assert guest.shell("ls /mnt/copies") == "hermes\n"
    guest.run(guest.configure(**place))
    done = guest.run(backups_plan("copy", "--init"))
    assert [each["set"] for each in copies(guest)] == [done["set"]]
    assert key.read_text().splitlines()[1] not in guest.shell("grep -rs . /var/lib/hermes-provision /var/log || true")


def what_it_knows(guest: Guest) -> str:
    """Sessions, memories, files: by the agent's own word, and by sums. Its lock files are empty, and in no backup."""
    found = sorted(sessions(guest, BARE))
    files = "$(ls .hermes/memories/* .hermes/skills/*/*/SKILL.md workspace/* | grep -v '\\.lock$')"
    return f"{found}" + guest.shell(f"cd /home/hermes && sha256sum {files}")


def test_another_node_goes_on_from_the_copy_when_all_else_is_gone(guest: Guest) -> None:
    assert ask(guest.target(), "remember: the cat is called Miez")
    guest.shell("runuser -u hermes -- sh -c 'echo mine >/home/hermes/workspace/mine.txt'")
    guest.run(guest.configure(**TO_A_FOLDER))
    last = guest.run(backups_plan("make"))
    assert guest.run(backups_plan("copy"))["set"] == last["name"]
    before = what_it_knows(guest)
    assert "the cat is called Miez" in ask(guest.target(), "what do you remember?")
    assert ask(guest.target(), "remember: this comes too late")
    assert what_it_knows(guest) != before

    guest.discard()
    guest.volume.unlink()
    guest.runtime.format_volume(guest.volume, VOLUME_SIZE, root_owner=GUEST_ROOT, log=lambda _: None)
    guest.up()
    for plan in (guest.baseline(**TO_A_FOLDER), guest.agent(), guest.configure(**TO_A_FOLDER)):
        guest.run(plan)
    # What is new and empty takes no place of the last that there was.
    guest.run(backups_plan("make"))
    with pytest.raises(
        PhaseFailed, match=rf"(?s)all of another volume; the newest is {last['name']}.*--from-copy latest"
    ):
        guest.run(backups_plan("copy"))
    assert guest.run(backups_plan("restore", "latest", "--from-copy"))["restored"] == last["name"]
    assert what_it_knows(guest) == before
    told = ask(guest.target(), "what do you remember?")
    assert "Miez" in told
    assert "too late" not in told
    assert guest.run(backups_plan("copy"))["pushed"] is False
    assert copies(guest)[0]["set"] == last["name"]
    made = guest.run(backups_plan("make"))
    guest.run(backups_plan("copy"))
    assert copies(guest)[0]["set"] == made["name"]


def test_no_secret_is_left_behind(guest: Guest) -> None:
    places = (
        "/var/lib/hermes-provision /run/hermes-provision /var/log /tmp /var/tmp /etc/systemd /home/hermes/.hermes/logs"
    )
    for secret in (MODEL_KEY, PASSWORD, COPY_PASSWORD):
        assert guest.shell(f"grep -rlF '{secret}' {places} 2>/dev/null || true") == ""
        assert guest.shell(f"journalctl --no-pager | grep -cF '{secret}' || true").strip() == "0"
    assert guest.shell("ls -A /run/hermes-provision /var/lib/hermes-provision/jobs").split() == [
        "/run/hermes-provision:",
        "last-started",  # the name of a job
        "/var/lib/hermes-provision/jobs:",
    ]
