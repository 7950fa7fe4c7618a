"""Another version of the agent in a real container: what it keeps, what it takes back; backups by hand.

Needs root on a machine where the lab can run containers (scripts/lab); it makes a lab of its own and removes it.

The tests tell one story, in this order: each finds the container as the one before has left it. The versions are
0.18.2 and 0.19.0 of the package index, whose databases differ (schemas 19 and 22 of `hermes_state.py`), and a broken
one made of 0.19.0. One that does not start at all: test_stacks.py.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from provisioning import ApiServer, BaselineInputs, PhaseFailed, PhasePlan, render_baseline, run_phase
from tests.e2e.phase_guest import Guest, backups_plan, made_of, needs_root, run_cut

pytestmark = needs_root

HOME = "/home/hermes"
BACKUPS = f"{HOME}/.hermes-stack/backups"
THEIRS = "# my words\nagent:\n  max_turns: 7\n"


def ask(guest: Guest, path: str) -> Any:
    """What the agent's API says."""
    program = """
import json, re, sys, urllib.request
key = re.search("^API_SERVER_KEY='(.*)'$", open("/etc/hermes/.env").read(), re.M)[1]
asked = urllib.request.Request("http://127.0.0.1:8642" + sys.argv[1], headers={"Authorization": "Bearer " + key})
print(urllib.request.urlopen(asked, timeout=20).read().decode())
"""
    return json.loads(guest.shell(f"python3 -c {shlex.quote(program)} {shlex.quote(path)}"))


def health(guest: Guest) -> str:
    """The version that answers."""
    return str(ask(guest, "/health")["version"])


def sessions(guest: Guest) -> set[str]:
    """Ids of the conversations, as the agent tells them."""
    return {each["id"] for each in ask(guest, "/api/sessions?limit=100")["data"]}


def remembered(guest: Guest, version: str) -> str:
    status, out, err = guest.verify(version=version, api_server=True, prompt="what do you remember?", expect="")
    assert status == 0, err
    return str(json.loads(out)["answer"])


def remember(guest: Guest, version: str, what: str) -> None:
    status, _, err = guest.verify(version=version, api_server=True, prompt=f"remember: {what}", expect="Entry added")
    assert status == 0, err


def schema(guest: Guest, database: str = f"{HOME}/.hermes/state.db") -> int:
    program = (
        "import sqlite3, sys\n"
        "database = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n"
        "print(database.execute('SELECT version FROM schema_version').fetchone()[0])"
    )
    return int(guest.shell(f"runuser -u hermes -- python3 -c {shlex.quote(program)} {database}"))


def backups(guest: Guest) -> list[dict[str, Any]]:
    found = guest.run(backups_plan("list"))["backups"]
    assert isinstance(found, list)
    return found


def pids(guest: Guest) -> str:
    return guest.shell("systemctl show -p MainPID --value hermes-gateway.service hermes-dashboard.service")


def switch_to(guest: Guest, directory: str) -> PhasePlan:
    return guest.configure(agent_directory=directory, api_server=ApiServer(enabled=True))


def test_an_update_takes_sessions_and_memories_along(guest: Guest) -> None:
    guest.run(render_baseline(BaselineInputs()))
    guest.run(guest.agent(version="0.18.2"))
    guest.run(switch_to(guest, "/opt/hermes/0.18.2"))
    remember(guest, "0.18.2", "the cat is called Miez")
    guest.shell(f"runuser -u hermes -- sh -c 'printf %s \"$1\" >{HOME}/.hermes/config.yaml' sh '{THEIRS}'")
    before = sessions(guest)
    assert before
    assert schema(guest) == 19

    # Built beside: nothing of the old one stops for it.
    old = pids(guest)
    assert guest.run(guest.agent())["directory"] == "/opt/hermes/0.19.0"
    assert pids(guest) == old
    assert health(guest) == "0.18.2"

    outputs = run_cut(guest, switch_to(guest, "/opt/hermes/0.19.0"), "update: backed up", "services: ")
    assert health(guest) == "0.19.0"
    assert outputs["restarted"] == ["hermes-gateway.service", "hermes-dashboard.service"]
    assert isinstance(outputs["offline_seconds"], float)
    assert sessions(guest) >= before
    assert "Miez" in remembered(guest, "0.19.0")
    assert schema(guest) == 22
    assert guest.shell(f"cat {HOME}/.hermes/config.yaml") == THEIRS

    # The backup holds what was before, for its owner alone.
    (made,) = backups(guest)
    assert made["version"] == "0.18.2"
    assert schema(guest, f"{BACKUPS}/{made['name']}/data/state.db") == 19
    assert guest.shell(f"stat -c %U:%a {BACKUPS} {BACKUPS}/{made['name']}").split() == ["hermes:700", "hermes:700"]
    assert guest.shell("readlink /opt/hermes/current /opt/hermes/previous").split() == [
        "/opt/hermes/0.19.0",
        "/opt/hermes/0.18.2",
    ]
    assert guest.run(switch_to(guest, "/opt/hermes/0.19.0"))["restarted"] == []


# Starts, brings the database and the configuration into a form that 0.19.0 does not understand, and then can't answer.
MIGRATES = """import asyncio
import os, sqlite3
_home = os.environ["HERMES_HOME"]
with sqlite3.connect(os.path.join(_home, "state.db")) as _database:
    if _database.execute("SELECT version FROM schema_version").fetchone()[0] < 99:
        _database.execute("ALTER TABLE messages RENAME TO messages_of_99")
        _database.execute("UPDATE schema_version SET version = 99")
with open(os.path.join(_home, "config.yaml"), "w") as _stream:
    _stream.write("_config_version: 99\\n")
"""
PROMPT = 'async def _handle_chat_completions(self, request: "web.Request") -> "web.Response":\n'
NO_ANSWER = f'{PROMPT}        return web.json_response({{"error": "no such luck"}}, status=500)\n'


def refused(guest: Guest, plan: PhasePlan) -> str:
    with pytest.raises(PhaseFailed) as failed:
        guest.run(plan)
    return str(failed.value)


def test_what_a_failed_version_migrated_is_given_back_and_its_own_is_kept(guest: Guest) -> None:
    before = sessions(guest)
    edits = {
        "gateway/run.py": ("import asyncio\n", MIGRATES),
        "gateway/platforms/api_server.py": (PROMPT, NO_ANSWER),
    }
    told = refused(guest, switch_to(guest, made_of(guest.shell, "/opt/hermes/0.19.0", "0.19.8", edits)))
    assert "no such luck" in told
    assert "Taken back from the backup: config.yaml, state.db." in told
    assert health(guest) == "0.19.0"
    assert schema(guest) == 22
    assert sessions(guest) >= before
    assert "Miez" in remembered(guest, "0.19.0")
    assert guest.shell(f"cat {HOME}/.hermes/config.yaml") == THEIRS
    aside = next(each for each in backups(guest) if each["partial"])
    assert aside["name"] in told
    assert schema(guest, f"{BACKUPS}/{aside['name']}/data/state.db") == 99


def test_a_reboot_in_the_middle_is_cleared_up_when_the_version_is_set_back(guest: Guest) -> None:
    before = sessions(guest)

    def die(line: str) -> None:
        if line.startswith(("services:", "home:")):
            raise ConnectionAbortedError(line)

    with pytest.raises(ConnectionAbortedError):
        run_phase(guest.target(), switch_to(guest, "/opt/hermes/0.19.8"), on_line=die, timeout_s=300)
    guest.runtime.kill(guest.spec)
    guest.up()
    # The state that the engine has still says 0.19.0, so what tells is the agent phase, which runs anew.
    installed = guest.run(guest.agent())
    assert installed["directory"] == "/opt/hermes/0.19.0"
    guest.run(
        guest.configure(
            agent_directory=installed["directory"],
            unfinished_update=installed["unfinished_update"],
            api_server=ApiServer(enabled=True),
        )
    )
    assert "Miez" in remembered(guest, "0.19.0")
    assert health(guest) == "0.19.0"
    assert schema(guest) == 22
    assert sessions(guest) >= before
    assert guest.shell(f"cat {HOME}/.hermes/config.yaml") == THEIRS
    assert guest.shell("readlink /opt/hermes/current").strip() == "/opt/hermes/0.19.0"
    notes = f"{HOME}/.hermes-stack/update.json /var/lib/hermes-provision/update"
    assert guest.shell(f"ls -d {notes} 2>/dev/null || true") == ""
    assert "unfinished_update" not in guest.run(guest.agent())


def test_back_to_a_backup_by_hand(guest: Guest) -> None:
    made = run_cut(guest, backups_plan("make"), "backed up: ")
    assert str(made["path"]).startswith(f"{BACKUPS}/")
    remember(guest, "0.19.0", "the dog is called Rex")
    done = run_cut(guest, backups_plan("restore", "latest"), "restore: the present state is kept")
    assert done["restored"] == made["name"]
    now = remembered(guest, "0.19.0")
    assert "Miez" in now
    assert "Rex" not in now
    # The state from before the restore is a backup, too.
    guest.run(backups_plan("restore", str(done["safety"])))
    assert "Rex" in remembered(guest, "0.19.0")
    with pytest.raises(PhaseFailed, match=r"there is no backup 2020; nothing was changed"):
        guest.run(backups_plan("restore", "2020"))
