"""What the agent leaves in its home for root: links in the place of folders, programs in the place of the image's."""

from __future__ import annotations

import contextlib
import re

from applications.hermes.guest.backend import BACKENDS, ENGINE
from applications.hermes.guest.names import CONTAINER, CONTAINER_UNIT
from applications.hermes.talk import AgentSilentError
from tests.attacks.attack import Scene, attack

STATE = "/home/hermes/.hermes"
ASIDE = "/home/hermes/aside"
PLANT = f"""
import os, signal
os.rename("{STATE}", "{ASIDE}")
os.symlink("/etc", "{STATE}")
for each in filter(str.isdigit, os.listdir("/proc")):
    try:
        told = open(f"/proc/{{each}}/cmdline", "rb").read()
    except OSError:
        continue
    if told == b"sleep\\0infinity\\0":
        try:
            os.kill(int(each), signal.SIGKILL)
        except PermissionError:
            pass  # a service of the image's root has the same words
"""
"""The link, and the end of the container's main program: what restarts it looks its mounts up again."""

ROOTS = "stat -c '%u:%g %a %n' /etc /etc/passwd /etc/shadow /etc/crontab /etc/hermes /home; ls /etc/config.yaml || true"


def held(scene: Scene, before: str) -> None:
    """The container is not started, its unit says why, and root's files are root's."""
    scene.root(
        f"for _ in $(seq 300); do systemctl is-failed --quiet {CONTAINER_UNIT} && exit; sleep 0.2; done; "
        f"systemctl status --no-pager --lines 20 {CONTAINER_UNIT}; exit 1",
        120,
    )
    said = scene.root(f"journalctl --unit {CONTAINER_UNIT} --lines 5 --output cat --no-pager")
    assert f"{STATE} is a symbolic link" in said
    assert scene.root(ROOTS) == before


@attack("docker", "podman")
def a_link_to_etc_in_place_of_the_state_directory(scene: Scene) -> None:
    """Started by what restarts the container: its own end, a hand, the engine's restart, the guest's reboot."""
    engine = BACKENDS[scene.mode]
    before = scene.root(ROOTS)
    scene.undo(f"systemctl reset-failed {CONTAINER_UNIT}; systemctl start {CONTAINER_UNIT}")
    scene.undo(f"[ ! -d {ASIDE} ] || runuser -u hermes -- mv -T {ASIDE} {STATE}")
    scene.undo(f"[ ! -L {STATE} ] || runuser -u hermes -- rm {STATE}")
    with contextlib.suppress(AgentSilentError):
        scene.agent_program(PLANT)
    # What it answers, if it comes to that, does not count.
    scene.root(f"for _ in $(seq 100); do [ -L {STATE} ] && exit; sleep 0.1; done; exit 1")
    held(scene, before)

    # What was mounted before is what it was; a hand on the engine gets no other.
    scene.root(f"{ENGINE} restart --time 5 {CONTAINER} || true", 120)
    assert scene.root(ROOTS) == before
    scene.root(f"{ENGINE} stop --time 5 {CONTAINER} || true", 120)

    scene.root(f"systemctl restart {' '.join(engine.daemon or engine.units)}", 120)
    scene.root(f"systemctl restart {CONTAINER_UNIT} || true", 120)
    held(scene, before)

    scene.reboot()
    held(scene, before)
    scene.root(f"{ENGINE} start {CONTAINER} || true", 120)
    assert scene.root(ROOTS) == before
    assert scene.root(f"{ENGINE} ps --quiet").strip() == ""


@attack("docker", "podman")
def a_setuid_program_and_capabilities_gain_nothing(scene: Scene) -> None:
    """The agent has no capability, can't get one, and what it marks as set-user-ID stays its own."""
    said = scene.agent(
        "grep -E '^(NoNewPrivs|Cap(Inh|Prm|Eff|Amb))' /proc/self/status | tr -s '\\t\\n' ' '; "
        "mknod /home/hermes/disk b 8 0 2>&1 | tail -c 40; "
        "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null"
    )
    assert "NoNewPrivs: 1" in said
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}: 0000000000000000" in said
    assert "not permitted" in said
    assert "4096" in said
    look = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null"
    total = int(re.findall(r"MemTotal: +(\d+)", scene.root("cat /proc/meminfo"))[0]) << 10
    assert int(re.findall(r"\d{6,}", scene.agent(look))[0]) < total
    mounted = scene.root("findmnt --noheadings --output OPTIONS --target /home/hermes").strip().split(",")
    assert {"nosuid", "nodev"} <= set(mounted)
    mask = scene.root(f"{ENGINE} exec {CONTAINER} grep CapBnd /proc/1/status").split()[-1]
    # capabilities(7): CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, KILL 5, SETGID 6, SETUID 7
    assert int(mask, 16) == 0b11101011


@attack("docker", "podman")
def its_container_is_given_nothing_of_the_engines(scene: Scene) -> None:
    """No socket by which one could have the engine start another container."""
    places = "/run/docker.sock /run/podman /run/containerd /run/hermes-podman /run/hermes-stack /var/lib/docker"
    said = scene.agent(f"for place in {places}; do [ ! -e $place ] || echo found: $place; done; echo looked")
    assert "looked" in said
    assert "found:" not in said


PROGRAMS = "id stat find chown chmod mkdir sed grep head od tr rm cp cat env sh usermod groupmod python3 hermes"
PROGRAM = """#!/bin/sh
echo "$(/usr/bin/id -u) $0" >>/home/hermes/workspace/proof
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec "${0##*/}" "$@"
"""


@attack("docker", "podman")
def programs_of_its_own_in_place_of_the_images(scene: Scene) -> None:
    """Upstream's PATH has ~/.local/bin before the system's, and the image's hooks and `docker exec` begin as root."""
    scene.undo("runuser -u hermes -- rm -rf /home/hermes/.hermes/.local /home/hermes/workspace/proof")
    scene.agent_program(
        f"""
import os
os.makedirs("/opt/data/.local/bin", exist_ok=True)
for name in {PROGRAMS!r}.split():
    with open("/opt/data/.local/bin/" + name, "w") as program:
        program.write({PROGRAM!r})
    os.chmod("/opt/data/.local/bin/" + name, 0o755)
"""
    )
    assert scene.root("ls /home/hermes/.hermes/.local/bin").split()
    scene.restart()
    scene.proved()
    assert "Hermes" in scene.root(f"{ENGINE} exec {CONTAINER} hermes --version")
    assert scene.root("grep -s '^0 ' /home/hermes/workspace/proof || true") == ""
