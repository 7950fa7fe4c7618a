"""Lines that fall silent, leftovers and full disks: the phases in a real container.

The tests tell one story, in this order: each finds the container as the one before has left it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from provisioning import job as jobs
from provisioning import ssh
from provisioning.errors import PhaseFailed
from provisioning.plans import PhasePlan, run_phase
from tests.e2e.phase_guest import Guest, needs_root

pytestmark = needs_root


# ---- upstream's checkout ---------------------------------------------------------------------------------------------


def test_a_checkout_is_installed_as_its_makers_ship_it(guest: Guest) -> None:
    guest.run(guest.baseline())
    before = guest.shell("ls -A /home/hermes /usr/local/bin")
    outputs = guest.run(guest.agent())
    directory = f"/opt/hermes/{guest.agent_git_name}"
    assert outputs["directory"] == directory
    assert (outputs["version"], outputs["commit"]) == (guest.release.version, guest.release.commit)
    # Root's, for everyone to read, nothing of it a way to root's rights, with a Python that is not in anybody's home.
    assert guest.shell(f"find {directory}/ ! -user root -o -perm /022 ! -type l | head").strip() == ""
    assert guest.shell(f"find {directory}/ ! -perm -o=r ! -type l -o -perm /6000 | head").strip() == ""
    assert guest.shell(f"readlink -f {directory}/venv/bin/python").startswith("/usr/bin/python3")
    # Without .git the agent neither deletes its compiled code nor updates itself.
    assert guest.shell(f"ls -Ad {directory}/hermes-agent/.git 2>/dev/null || true") == ""
    assert int(guest.shell(f"find {directory}/hermes-agent/gateway -name '*.pyc' | wc -l")) > 10
    # Nothing of it went anywhere else: no home, no launcher, no scratch folder.
    assert guest.shell("ls -A /home/hermes /usr/local/bin") == before
    assert guest.shell("ls -Ad /var/tmp/hermes-build.* /root/.hermes /root/.local 2>/dev/null || true") == ""
    guest.run(guest.configure())
    status, _, err = guest.verify()
    assert status == 0, err


# ---- lines that break ------------------------------------------------------------------------------------------------


def test_an_ssh_server_that_restarts_interrupts_no_phase(guest: Guest) -> None:
    plan, lines = guest.agent(extras=("mcp",)), []
    started = guest.started(plan)

    def hear(line: str) -> None:
        lines.append(line)
        if not line.startswith("agent: building"):
            return
        # With everyone's session: sshd's own restart leaves them alone.
        end = "systemctl kill --signal=KILL ssh.service 'session-*.scope'; systemctl restart ssh.service"
        guest.shell(f"systemd-run --quiet --collect sh -c {json.dumps(end)}")

    result = run_phase(guest.target(), plan, on_line=hear, timeout_s=300)
    assert any("connecting again" in line for line in lines), lines
    assert not result.picked_up
    assert guest.started(plan) == started + 1
    assert sum(line.startswith("agent: building") for line in lines) == 1, lines
    guest.run(guest.agent())


@contextlib.contextmanager
def dropped_packets(address: str) -> Iterator[Callable[[], None]]:
    """From the call on everything between this machine and the guest is lost, until the block ends."""
    table = f"inet hlab-test-drop-{address.replace('.', '-')}"
    rules = f"""
table {table} {{
  chain in {{ type filter hook input priority -10; ip saddr {address} drop; }}
  chain out {{ type filter hook output priority -10; ip daddr {address} drop; }}
}}
"""

    def nft(text: str) -> None:
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, timeout=30)

    try:
        yield lambda: nft(rules)
    finally:
        nft(f"table {table}\ndelete table {table}\n")


def test_a_network_that_loses_everything_for_a_while_is_survived(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SILENCE_S", 4.0)
    monkeypatch.setattr(ssh, "CONNECT_TIMEOUT_S", 1.0)
    plan, target = guest.configure(), guest.target()
    started = guest.started(plan)
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        drop = stack.enter_context(dropped_packets(guest.address))

        def hear(line: str) -> None:
            lines.append(line)
            if line.startswith("managed scope"):
                drop()
            # Longer than one attempt to get through.
            if sum("connecting again" in said for said in lines) == 3:
                stack.close()

        result = run_phase(target, plan, on_line=hear, timeout_s=300)
    assert any("packets to it are lost" in line for line in lines), lines
    assert not result.picked_up
    assert guest.started(plan) == started + 1


# ---- what is left behind ---------------------------------------------------------------------------------------------

STEPS = (
    "        make_roots(site, final)\n",
    '    new.replace(final / "install.json")\n',
    '    (final / ".building").unlink()\n',
    "        new.symlink_to(final)\n",
    "        new.replace(link)\n",
    "    sweep(final)\n",
)


def changed(plan: PhasePlan, change: Callable[[str], str]) -> PhasePlan:
    """The plan with another program of the agent phase."""
    name = "applications/hermes/guest/build.py"
    files = [
        replace(file, content=change(file.content.decode()).encode()) if file.path == name else file
        for file in plan.files
    ]
    return replace(plan, files=tuple(files))


def test_a_build_that_is_killed_at_any_step_is_done_again(guest: Guest) -> None:
    plan = guest.agent(extras=("messaging",))
    for step in STEPS:

        def killed(script: str, step: str = step) -> str:
            assert step in script, f"build.py has no such step any more: {step}"
            indent = step[: len(step) - len(step.lstrip())]
            return script.replace(step, f"{indent}os.kill(os.getpid(), signal.SIGKILL)\n{step}", 1)

        with pytest.raises(PhaseFailed, match="ended by signal KILL"):
            guest.run(changed(plan, killed))
        # What the services run from is whole at every moment.
        guest.shell('test -x "$(readlink -e /opt/hermes/current)/venv/bin/python"')
    # In the middle of a step, with whatever it has started.
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(PhaseFailed, match="ended by signal KILL"))
        other = guest.agent(extras=("all",))

        def hear(line: str) -> None:
            if line.startswith("agent: installing the packages"):
                guest.shell(f"systemctl kill --signal=KILL {other.job.unit}")

        run_phase(guest.target(), other, on_line=hear, timeout_s=300)
    directory = guest.run(plan)["directory"]
    assert guest.shell("readlink /opt/hermes/wanted").strip() == directory
    guest.run(guest.agent())
    assert guest.shell("ls -A /opt/hermes | grep '^[.]' || true") == ""
    assert guest.shell("ls -d /var/tmp/hermes-build.* 2>/dev/null || true") == ""


def test_a_full_root_disk_is_told_before_a_build_and_in_the_middle_of_one(guest: Guest) -> None:
    plan = guest.agent(extras=("mcp",))
    before = guest.shell("readlink /opt/hermes/current")
    try:
        guest.shell('fallocate -l "$(($(df --block-size=1 --output=avail / | tail -n 1) - 200000000))" /fill')
        with pytest.raises(PhaseFailed, match=r"too full to build .* \d{1,3} of \d+ MB are free, 800 are needed"):
            guest.run(plan)
        # What the phase itself consists of has room, and nothing that it builds.
        guest.shell("dd if=/dev/zero of=/fill2 bs=1M 2>/dev/null || true; truncate -s -8M /fill2; sync")
        with pytest.raises(PhaseFailed) as full:
            guest.run(changed(plan, lambda script: script.replace("NEEDED_MB = 800", "NEEDED_MB = 0")))
        assert "A disk of the container ran full. Now / has " in str(full.value)
        assert "/home/hermes has " in str(full.value)
    finally:
        guest.shell("rm -f /fill /fill2")
    assert guest.shell("readlink /opt/hermes/current") == before
    guest.run(guest.agent())


def test_a_full_volume_is_told_by_name(guest: Guest) -> None:
    guest.run(guest.configure())
    try:
        guest.shell("runuser -u hermes -- dd if=/dev/zero of=/home/hermes/fill bs=1M 2>/dev/null || true; sync")
        with pytest.raises(PhaseFailed, match="the disk at /home/hermes is full: 0 of"):
            guest.run(guest.configure())
    finally:
        guest.shell("rm -f /home/hermes/fill")
    guest.run(guest.configure())
    status, _, err = guest.verify()
    assert status == 0, err


def test_what_a_gateway_that_is_gone_has_left_stops_nobody(guest: Guest) -> None:
    home = "/home/hermes/.hermes"
    # As by a container that was destroyed: no farewell, and the numbers belong to others now.
    guest.shell("systemctl kill --signal=KILL hermes-gateway.service; systemctl stop hermes-gateway.service")
    other = guest.shell("systemctl show -p MainPID --value ssh.service").strip()
    record = json.dumps(
        {"pid": int(other), "kind": "hermes-gateway", "argv": ["hermes", "gateway", "run"], "start_time": 1}
    )
    state = json.dumps({**json.loads(record), "gateway_state": "running"})
    starts = "\n".join(str(time.time() - second) for second in range(20))
    for name, text in (
        ("gateway.pid", record),
        ("gateway.lock", record),
        ("gateway_state.json", state),
        ("cron/.tick.lock", record),
        ("cron/.jobs.lock", record),
        # Twenty starts within seconds: by itself the gateway would now sleep for five minutes.
        ("gateway-starts.log", starts),
    ):
        guest.shell(f"runuser -u hermes -- sh -c 'mkdir -p {home}/cron; cat >{home}/{name}' <<'END'\n{text}\nEND")
    lines: list[str] = []
    run_phase(guest.target(), guest.configure(), on_line=lines.append, timeout_s=300)
    assert "home: removed what a gateway that is gone has left: gateway.pid, gateway.lock" in lines
    status, _, err = guest.verify()
    assert status == 0, err


def test_a_second_gateway_on_the_same_home_is_named_and_left_alone(guest: Guest) -> None:
    guest.shell("systemctl stop hermes-gateway.service")
    guest.shell(
        "systemd-run --quiet --collect --unit=other --uid=hermes flock /home/hermes/.hermes/gateway.lock sleep 600"
    )
    guest.shell(
        "for i in $(seq 100); do flock -n /home/hermes/.hermes/gateway.lock true || exit 0; sleep 0.1; done; exit 1"
    )
    with pytest.raises(
        PhaseFailed,
        match=r"another gateway runs on /home/hermes/.hermes: process \d+ holds .*\n  It calls itself '/usr/bin/flock",
    ):
        guest.run(guest.configure())
    guest.shell("systemctl stop other.service")
    assert guest.run(guest.configure())["restarted"] == ["hermes-gateway.service"]
