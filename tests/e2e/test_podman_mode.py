"""agentBackend podman in a guest: the same compose project, what survives what, and the ways to Docker and back.

The tests tell one story, in this order: each finds the container as the one before has left it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from applications.hermes.guest.backend import ENGINE
from applications.hermes.talk import ask
from provisioning.guest.common import LIBRARY
from provisioning.plans import run_phase
from tests.attacks.attack import Scene, attacks, carry_out
from tests.e2e.docked import INSIDE, PASSWORD, PORT, Docked, a_docked, gateways, sessions, wait_for_one_gateway
from tests.e2e.phase_guest import MODEL_KEY, Guest, needs_root

pytestmark = needs_root


@pytest.fixture(scope="module")
def docked(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docked]:
    with a_docked(guest, tmp_path_factory.mktemp("registry") / "ca", "podman") as made:
        yield made


def test_the_container_works_is_healthy_and_shows_no_secret(docked: Docked) -> None:
    guest = docked.guest
    docked.run(guest.baseline())
    outputs = docked.run(docked.agent())
    assert (outputs["backend"], outputs["version"]) == ("podman", "0.19.0")
    outputs = docked.run(docked.configure())
    assert (outputs["container"], outputs["restarted"]) == ("create", ["hermes"])
    assert len(docked.mtus()) == 1
    status, out, err = docked.verify()
    assert status == 0, err
    assert "HERMES-OK" in json.loads(out)["answer"]
    assert gateways(guest) == 1
    shown = json.dumps(docked.inspect()) + guest.shell("cat /etc/hermes-stack/compose.yaml")
    for secret in (MODEL_KEY, PASSWORD, guest.shell("cat /home/hermes/.hermes-stack/api-server-key").strip()):
        assert secret not in shown
    said = guest.shell("/usr/local/lib/hermes-stack/status.py")
    assert "running (healthy)" in said
    assert re.search(r"hermes-container +active \(running\).*restarts 0", said)


def test_a_setting_goes_in_place_and_a_second_run_changes_nothing(docked: Docked) -> None:
    guest = docked.guest
    guest.shell(f"{ENGINE} exec hermes sh -c 'echo written inside >/opt/mark'")
    assert ask(guest.target(), "remember: the cat is called Miez")
    before = docked.inspect()["Id"]
    changed = docked.configure(agentSettings={"agent": {"max_turns": 7}})
    assert docked.run(changed)["container"] == "restart"
    assert (docked.inspect()["Id"], docked.mark()) == (before, "written inside")
    assert guest.shell(f"{INSIDE} config get agent.max_turns").strip() == "7"
    started = docked.inspect()["State"]["StartedAt"]
    docked.run(docked.agent())
    again = docked.configure(agentSettings={"agent": {"max_turns": 7}}, agentBackupsKept=6)
    assert docked.run(again)["container"] == "nothing"
    assert docked.inspect()["State"]["StartedAt"] == started


def test_a_reboot_of_the_guest_brings_the_same_container_back(docked: Docked) -> None:
    guest = docked.guest
    before = docked.inspect()["Id"]
    assert guest.runtime.shutdown(guest.spec, 60)
    guest.running = False
    guest.up()
    status, _, err = docked.verify(prompt="what do you remember?", expect="the cat is called Miez")
    assert status == 0, err
    assert (docked.inspect()["Id"], docked.mark()) == (before, "written inside")
    wait_for_one_gateway(guest)


WALLS = """
import json, sys
sys.path.insert(0, "{library}")
from applications.hermes.guest import drill
from applications.hermes.guest.inputs import Drill, DrillContainer, Facts, Place
from applications.hermes.guest.names import FACTS
from provisioning.guest.typed import record
model, other = Place("{host}", {model}), Place("{host}", {other})
container = DrillContainer("podman", "{image}", 10000, 8642)
walls = drill.wall_off(Drill(record(Facts, FACTS), "", "", "", (model,), (other,), container))
print(json.dumps(walls.closed))
"""
CONNECTS = "import socket; socket.create_connection(('{host}', {port}), 3).close(); print('open')"


def test_the_walls_of_a_drill_leave_the_model_and_the_api(docked: Docked) -> None:
    """The same walls as in Docker (test_lab_two_nodes.py), with Podman's network and its way to a published port."""
    guest = docked.guest
    guest.shell("DEBIAN_FRONTEND=noninteractive apt-get install -qq nftables >/dev/null 2>&1")
    host, model = str(guest.plan.gateway), urlsplit(guest.model.base_url).port
    program = WALLS.format(library=LIBRARY, host=host, model=model, other=PORT, image=docked.image())
    assert json.loads(guest.shell("python3 -", stdin=program.encode())) == [f"{host}:{PORT}"]
    tried = CONNECTS.format(host=host, port=PORT)
    try:
        # A drill has no dashboard.
        asked = {"prompt": "what do you remember?", "expect": "the cat is called Miez", "dashboard": False}
        status, _, err = docked.verify(**asked)
        assert status == 0, err
        assert "open" not in guest.shell(f'{ENGINE} exec hermes python -c "{tried}" 2>&1 || true')
    finally:
        # Without --now: its stop would take away Podman's tables, too.
        guest.shell("systemctl disable --quiet nftables; nft delete table inet drill; rm /etc/nftables.conf")
    assert "open" in guest.shell(f'{ENGINE} exec hermes python -c "{tried}" 2>&1 || true')


def test_docker_takes_over_the_same_home_and_podman_takes_it_back(docked: Docked) -> None:
    """Also when the run is killed in the middle: there is never a second gateway, and the next run goes on."""
    guest, other = docked.guest, replace(docked, backend="docker")
    before = sessions(guest, INSIDE)
    assert before
    other.run(other.agent())
    assert gateways(guest) == 1

    def die(line: str) -> None:
        if "of Podman removed" in line:
            guest.runtime.kill(guest.spec)
            raise ConnectionAbortedError(line)

    with pytest.raises(ConnectionAbortedError):
        run_phase(guest.target(), other.configure(), on_line=die, timeout_s=300)
    guest.up()
    assert gateways(guest) <= 1
    assert other.run(other.configure())["container"] in ("create", "start", "nothing")
    assert gateways(guest) == 1
    assert guest.shell("podman ps --all --quiet; systemctl is-active podman.socket || true").split() == ["inactive"]
    assert "Miez" in ask(guest.target(), "what do you remember?")
    assert before <= sessions(guest, INSIDE)

    docked.run(docked.agent())
    assert docked.run(docked.configure())["container"] == "create"
    assert gateways(guest) == 1
    assert guest.shell("systemctl is-active docker.service docker.socket || true").split() == ["inactive", "inactive"]
    assert "Miez" in ask(guest.target(), "what do you remember?")
    assert before <= sessions(guest, INSIDE)


# -- attacks by its own shell: tests/attacks ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene(docked: Docked) -> Scene:
    return docked.scene()


@pytest.mark.parametrize("attack", attacks("podman"))
def test_an_attack_is_held(scene: Scene, attack: str) -> None:
    carry_out(attack, scene)
