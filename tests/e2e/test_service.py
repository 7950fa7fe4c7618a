"""The agent without its API, its volume at another path: its account, its command line, what is locked, what is the
user's, what the service does.

The tests tell one story, in this order: each finds the container as the one before has left it.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
import tenacity

from applications.hermes.application import STATE_OF_SERVICE
from applications.hermes.guest.names import GATEWAY
from applications.hermes.phases import systemd_quote
from provisioning.errors import PhaseFailed
from provisioning.plans import PhasePlan
from provisioning.ssh import connect
from tests.e2e.phase_guest import Guest, follow_the_remedy_for_a_stop, needs_root

pytestmark = needs_root


ACCOUNT = {"agentUser": "agent", "agentGroup": "agents", "agentUid": 12345, "agentGid": 12346}
MOUNT_PATH = "/srv/agent"  # of the guest of this module (conftest.py)
STATE = "/srv/agent/state"
PLACE = {"agentStateDirectory": STATE, "agentWorkingDirectory": "/srv/agent/work"}
ARGUMENTS = ["-v", "--no-supervise"]
GATEWAYS_OWN = {
    "timezone": "Europe/Berlin",
    "quick_commands": {"disk": {"command": "df -h", "type": "exec"}},
}
KEY = "canary0123456789abcdef0123456789abcdef"


def configured(guest: Guest, **more: Any) -> PhasePlan:
    return guest.configure(**{"stack": "cattle-x", "agentApi": False, **ACCOUNT, **PLACE, **more})


def proved(guest: Guest, **asked: Any) -> dict[str, Any]:
    status, out, err = guest.verify(**asked)
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def tried(guest: Guest, command: str) -> tuple[int, str]:
    """Status and both outputs of a command in the guest."""
    text, _, status = guest.shell(f'{{ {command}; }} 2>&1; echo "|$?"').rpartition("|")
    return int(status), text


def listening(guest: Guest) -> list[str]:
    rows = guest.shell("ss --no-header --listening --tcp --udp --numeric").splitlines()
    return sorted({row.split()[4] for row in rows})


def others_files(guest: Guest) -> str:
    """What in the home is not the agent's; a new file system's lost+found is the kernel's."""
    return guest.shell("find /srv/agent -path /srv/agent/lost+found -prune -o ! -user agent -print").strip()


def test_an_agent_of_another_account_answers_and_no_port_is_open(guest: Guest) -> None:
    guest.run(guest.baseline(**ACCOUNT, **PLACE))
    guest.run(guest.agent(agentUser="agent"))
    before = listening(guest)
    # The user's own settings would open the API (facts hermes 3, issue 87856); what is declared wins.
    theirs = f"platforms: {{api_server: {{enabled: true, extra: {{key: {KEY}, port: 8642}}}}}}\n"
    guest.shell(
        'runuser -u agent -- sh -c \'umask 077; printf %s "$1" >/srv/agent/state/config.yaml; '
        f"echo API_SERVER_KEY={KEY} >/srv/agent/state/.env' sh '{theirs}'"
    )
    guest.run(configured(guest, agentExtraArgs=ARGUMENTS, agentRestart="on-abnormal", agentRestartSeconds=1))
    assert proved(guest)["answer"] == "HERMES-OK"
    assert listening(guest) == before
    owned = guest.shell("cd /srv/agent; stat -c '%U:%G:%a' . state state/state.db work")
    assert owned.split() == ["agent:agents:750", "agent:agents:700", "agent:agents:600", "agent:agents:700"]
    assert others_files(guest) == ""
    (line,) = guest.shell("ps -C hermes -o user:20=,args=").strip().splitlines()
    assert line.split()[0] == "agent"
    assert line.endswith(f"gateway run {' '.join(ARGUMENTS)}")
    guest.shell("rm /srv/agent/state/.env /srv/agent/state/config.yaml")


def ended_by(guest: Guest, signal: str) -> str:
    """End the gateway's main process, wait until systemd has done what it does about it; its state then.

    `auto-restart` is a state on the way, and so is what comes before the end.
    """
    unit = "hermes-gateway.service"
    show = f"systemctl show --property=MainPID --property=SubState --value {unit}"
    pid = guest.shell(f"{show} | head -n 1").strip()
    guest.shell(f"systemctl kill --kill-whom=main --signal={signal} {unit}")

    def state() -> str:
        now, substate = guest.shell(show).split()
        return substate if now != pid else "not yet"

    settled = tenacity.Retrying(
        stop=tenacity.stop_after_delay(180),
        wait=tenacity.wait_fixed(0.3),
        retry=tenacity.retry_if_result(lambda found: found not in ("running", "dead", "failed")),
    )
    return str(settled(state))


def test_the_service_comes_back_as_it_is_declared(guest: Guest) -> None:
    # systemd.service(5), Restart=: of a signal that is none of the clean ones, and not of an end with a status.
    assert ended_by(guest, "SIGKILL") == "running"
    assert ended_by(guest, "SIGTERM") in ("dead", "failed")
    guest.run(configured(guest, agentRestart="no", agentSettings=GATEWAYS_OWN))
    assert ended_by(guest, "SIGKILL") == "failed"
    # The home's config.yaml was removed above, and these two of the agent's readers see nothing pinned without one.
    program = (
        "import hermes_time as t, gateway.config as g; print(t.get_timezone(), g.load_gateway_config().quick_commands)"
    )
    python = f"env HERMES_HOME={STATE} /opt/hermes/current/venv/bin/python"
    answer = guest.shell(f"cd / && runuser -u agent -- {python} -c '{program}'").splitlines()[-1]
    assert answer == f"Europe/Berlin {GATEWAYS_OWN['quick_commands']}"
    guest.run(configured(guest))
    assert ended_by(guest, "SIGTERM") == "running"


def test_a_service_that_was_stopped_by_hand_is_started_as_the_text_says(guest: Guest) -> None:
    follow_the_remedy_for_a_stop(guest, STATE_OF_SERVICE, GATEWAY)


def test_root_uses_the_command_line_and_nothing_of_it_runs_as_root(guest: Guest) -> None:
    assert f"Hermes Agent v{guest.release.version}" in guest.shell("hermes --version")
    assert "HERMES-OK" in guest.shell("hermes sessions list")  # the prompt of the proof, in the service's own state
    assert guest.shell("hermes config path").strip() == "/srv/agent/state/config.yaml"
    guest.shell("hermes config set agent.max_turns 9")
    assert guest.shell("stat -c '%U:%a' /srv/agent/state/config.yaml").strip() == "agent:600"
    assert guest.shell("ls -A /root/.hermes 2>/dev/null || true") == ""
    # Through a terminal, too: script gives it one.
    for command in ("hermes --version", "hermes --version | cat"):
        assert f"Hermes Agent v{guest.release.version}" in guest.shell(
            f"script --quiet --command '{command}' /dev/null"
        )
    assert others_files(guest) == ""


def test_systemd_gives_each_argument_as_it_is(guest: Guest) -> None:
    words = ["-v", "two words", 'a "quoted" one', r"back\slash \n", "100%h %%", "$HOME ${HOME} $$", "it's", ";", "ü"]
    line = " ".join(map(systemd_quote, words))
    unit = f"[Service]\nType=oneshot\nStandardOutput=file:/run/said\nExecStart=/usr/bin/printf '%%s\\\\n' {line}\n"
    with contextlib.closing(connect(guest.target())) as connection:
        put = connection.run("cat >/run/systemd/system/say.service", stdin=unit.encode(), timeout_s=60)
    assert put.status == 0
    guest.shell("systemctl daemon-reload && systemctl start say.service")
    assert guest.shell("cat /run/said").splitlines() == words


REFUSED = (
    "update --yes",
    "setup",
    "gateway install",
    "gateway uninstall",
    "config set model.default x",
    "config set model.provider x",
    "config set API_SERVER_KEY x",
    "config unset model.base_url",
)


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_the_stacks_is_refused_with_its_name(guest: Guest, command: str) -> None:
    before = guest.shell("ls -A /srv/agent/state; cat /srv/agent/state/config.yaml")
    status, text = tried(guest, f"hermes {command}")
    assert status == 1
    assert re.search(r"pulumi (up|destroy) --stack cattle-x", text)
    assert guest.shell("ls -A /srv/agent/state; cat /srv/agent/state/config.yaml") == before


def test_other_accounts_need_the_group_and_become_the_agent(guest: Guest) -> None:
    guest.shell("useradd --create-home alice; DEBIAN_FRONTEND=noninteractive apt-get install -qq sudo >/dev/null 2>&1")
    status, text = tried(guest, "runuser -u alice -- hermes --version")
    assert status == 1
    assert "usermod --append --groups hermes-users alice" in text
    guest.shell("usermod --append --groups hermes-users alice")
    assert f"Hermes Agent v{guest.release.version}" in guest.shell("su - alice -c 'hermes --version'")
    assert tried(guest, "su - alice -c 'hermes update'")[0] == 1
    # For the command line, and for nothing else.
    assert tried(guest, "su - alice -c 'sudo --non-interactive -u agent id'")[0] == 1
    assert tried(guest, "su - alice -c 'cat /etc/hermes/.env'")[0] == 1
    assert guest.shell("find /home/alice -user agent").strip() == ""
    assert others_files(guest) == ""


def test_other_keys_are_the_users_and_a_lost_workspace_is_made_again(guest: Guest) -> None:
    guest.shell("rm -r /srv/agent/work")
    guest.run(configured(guest, agentSettings={"timezone": "Europe/Berlin"}))
    proved(guest, prompt="write file note.txt: hello there", expect="bytes_written")
    assert guest.shell("stat -c '%U:%a' /srv/agent/work").strip() == "agent:700"
    assert guest.shell("cat /srv/agent/work/note.txt") == "hello there\n"
    keys = guest.shell("for key in agent.max_turns timezone terminal.cwd; do hermes config get $key; done")
    assert keys.split() == ["9", "Europe/Berlin", "/srv/agent/work"]


def test_the_api_serves_when_it_is_asked_for(guest: Guest) -> None:
    before = listening(guest)
    guest.run(configured(guest, agentApi=True, agentApiPort=8700, agentApiKey=KEY))
    assert proved(guest)["answer"] == "HERMES-OK"
    assert sorted({*listening(guest)} - {*before}) == ["127.0.0.1:8700"]
    ask = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8700/v1/models')"
    assert "401" in tried(guest, f'python3 -c "{ask}"')[1]


def test_another_number_is_refused_before_anything_is_changed(guest: Guest) -> None:
    before = guest.shell("cat /etc/passwd /etc/group; find /srv/agent -printf '%U %p\\n' | sort")
    for more, words in (
        ({"agentUid": 12350}, "belongs to uid 12345, expected 12350"),
        ({"agentUser": "other"}, "the user number 12345 is taken"),
        ({"agentGid": 12350}, "the group agents exists with another number"),
    ):
        with pytest.raises(PhaseFailed) as refused:
            guest.run(guest.baseline(**{**ACCOUNT, **PLACE, **more}))
        assert words in str(refused.value)
    assert guest.shell("cat /etc/passwd /etc/group; find /srv/agent -printf '%U %p\\n' | sort") == before


def test_another_state_directory_is_refused_while_the_old_one_has_the_data(guest: Guest) -> None:
    other = {"agentStateDirectory": "/srv/agent/elsewhere"}
    guest.run(guest.baseline(**{**ACCOUNT, **PLACE, **other}))
    with pytest.raises(PhaseFailed) as refused:
        guest.run(configured(guest, **other))
    assert "the agent's data is in /srv/agent/state" in str(refused.value)
    # As the refusal says it:
    lines = [line.strip() for line in str(refused.value).splitlines()]
    moves = [line for line in lines if line.startswith(("systemctl stop ", "runuser "))]
    assert len(moves) == 3
    guest.shell("\n".join(moves))
    guest.run(configured(guest, **other))
    proved(guest)
    assert "HERMES-OK" in guest.shell("hermes sessions list")
    # The API was not asked for any more.
    assert not [address for address in listening(guest) if address.endswith(":8700")]
