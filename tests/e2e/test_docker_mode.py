"""Docker mode in a guest: engine, image, compose project, identity, what survives what, one home in both modes.

The tests tell one story, in this order: each finds the container as the one before has left it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.image import NEXT_TAG
from provisioning import BaselineInputs, PhaseFailed, render_baseline
from provisioning.talk import ask
from tests.e2e.docked import BARE, INSIDE, PASSWORD, Docked, a_docked, gateways, sessions
from tests.e2e.phase_guest import MODEL_KEY, Guest, needs_root

pytestmark = needs_root


@pytest.fixture(scope="module")
def docked(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docked]:
    with a_docked(guest, tmp_path_factory.mktemp("registry") / "ca", "docker") as made:
        yield made


def test_the_engine_is_installed_and_proved_and_the_image_comes_by_its_digest(docked: Docked) -> None:
    docked.run(render_baseline(BaselineInputs()))
    with pytest.raises(PhaseFailed, match=r"calls itself 0\.19\.0, but 0\.20\.0 is declared"):
        docked.run(docked.agent(version="0.20.0"))
    outputs = docked.run(docked.agent())
    assert (outputs["version"], outputs["dashboard_available"]) == ("0.19.0", True)
    assert docked.guest.shell("docker compose version --short").strip().startswith("2.")
    # Nothing of the first container stays, and nothing of the agent runs yet.
    assert docked.guest.shell("docker ps --all --quiet") == ""


def test_a_registry_that_is_not_trusted_is_told(docked: Docked) -> None:
    with pytest.raises(PhaseFailed, match="agentCaFile"):
        docked.run(docked.agent(NEXT_TAG, registry_ca=None))


def test_the_container_works_is_healthy_and_shows_no_secret(docked: Docked) -> None:
    outputs = docked.run(docked.configure())
    assert (outputs["container"], outputs["restarted"]) == ("create", ["hermes"])
    status, out, err = docked.verify()
    assert status == 0, err
    assert "HERMES-OK" in json.loads(out)["answer"]
    found = docked.inspect()
    assert found["State"]["Health"]["Status"] == "healthy"
    shown = json.dumps(found) + docked.guest.shell("cat /etc/hermes-stack/compose.yaml")
    for secret in (MODEL_KEY, PASSWORD, docked.guest.shell("cat /home/hermes/.hermes-stack/api-server-key").strip()):
        assert secret not in shown
    assert docked.guest.shell("stat -c %U:%a /etc/hermes/.env").strip() == "root:640"
    published = {binding["HostIp"] for ports in found["HostConfig"]["PortBindings"].values() for binding in ports}
    assert published == {"127.0.0.1"}


def test_a_second_run_changes_nothing(docked: Docked) -> None:
    before = docked.inspect()
    docked.run(docked.agent())
    assert docked.run(docked.configure())["container"] == "nothing"
    after = docked.inspect()
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])


def test_a_setting_goes_in_place_and_keeps_what_was_written_inside(docked: Docked) -> None:
    guest = docked.guest
    guest.shell("docker exec hermes sh -c 'echo written inside >/opt/mark'")
    assert ask(guest.target(), "remember: the cat is called Miez")
    before = docked.inspect()["Id"]
    outputs = docked.run(docked.configure(settings={"agent": {"max_turns": 7}}, environment={"PRICE": "$5"}))
    assert outputs["container"] == "restart"
    assert (docked.inspect()["Id"], docked.mark()) == (before, "written inside")
    # Read by the agent in the container, through the managed scope.
    assert guest.shell("docker exec hermes hermes config get agent.max_turns").strip() == "7"
    status, _, err = docked.verify(prompt="what do you remember?", expect="the cat is called Miez")
    assert status == 0, err


def test_a_reboot_of_the_guest_keeps_it_too(docked: Docked) -> None:
    guest = docked.guest
    before = docked.inspect()["Id"]
    assert guest.runtime.shutdown(guest.spec, 60)
    guest.running = False
    guest.up()
    status, _, err = docked.verify(services_timeout_s=120)
    assert status == 0, err
    assert (docked.inspect()["Id"], docked.mark()) == (before, "written inside")


def test_another_identity_is_another_container_and_the_data_stays(docked: Docked) -> None:
    guest = docked.guest
    before = docked.inspect()
    guest.shell("mkdir -p /data && chown 10000:10000 /data")
    container = {"volumes": [{"source": "/data", "target": "/data"}], "options": {"environment": {"P": "$5 ${HOME}"}}}
    docked.run(docked.agent(NEXT_TAG))
    plan = docked.configure(NEXT_TAG, container)
    outputs = docked.run(plan)
    after = docked.inspect()
    assert outputs["container"] == "create"
    assert after["Id"] != before["Id"]
    assert after["Config"]["Labels"]["hermes-stack.identity"] == plan.declared["container"]["identity"]
    assert docked.mark() == ""
    assert "P=$5 ${HOME}" in after["Config"]["Env"]
    for prompt, expect in (
        ("what do you remember?", "Miez"),
        ("write file /data/n.txt: hello", "bytes_written"),
        ("write file relative.txt: hello", "bytes_written"),
    ):
        status, _, err = docked.verify(prompt=prompt, expect=expect)
        assert status == 0, err
    # The working directory is the one of bare-metal mode.
    assert guest.shell("stat -c %u /data/n.txt /home/hermes/workspace/relative.txt").split() == ["10000", "10000"]


def test_a_folder_that_is_not_there_is_refused_and_the_container_runs_on(docked: Docked) -> None:
    before = docked.inspect()["State"]["StartedAt"]
    with pytest.raises(PhaseFailed, match="no such folder in the guest"):
        docked.run(docked.configure(NEXT_TAG, {"volumes": [{"source": "/fast", "target": "/fast"}]}))
    assert docked.inspect()["State"]["StartedAt"] == before


def test_both_modes_share_one_home(docked: Docked) -> None:
    guest = docked.guest
    before = sessions(guest, INSIDE)
    assert before
    assert gateways(guest) == 1
    guest.run(guest.agent())
    assert gateways(guest) == 1
    # As after a run that was killed between the end of one mode and the start of the other: neither runs.
    guest.shell("docker stop --time 60 hermes")
    assert gateways(guest) == 0
    assert guest.run(guest.configure())["restarted"] == ["hermes-gateway.service", "hermes-dashboard.service"]
    status, _, err = guest.verify(prompt="what do you remember?", expect="the cat is called Miez")
    assert status == 0, err
    assert guest.shell("docker ps --all --quiet") == ""
    assert gateways(guest) == 1
    between = sessions(guest, BARE)
    assert before <= between
    assert ask(guest.target(), "remember: the dog is called Rex")

    outputs = docked.run(docked.configure(NEXT_TAG))
    assert outputs["container"] == "create"
    assert guest.shell("ls /etc/systemd/system/hermes-* 2>/dev/null || true") == ""
    status, _, err = docked.verify(prompt="what do you remember?", expect="the dog is called Rex")
    assert status == 0, err
    assert gateways(guest) == 1
    assert between <= sessions(guest, INSIDE)


def test_no_secret_is_left_behind(docked: Docked) -> None:
    places = (
        "/var/lib/hermes-provision /run/hermes-provision /etc/hermes-stack /var/log /tmp /var/lib/docker/containers"
    )
    for secret in (MODEL_KEY, PASSWORD):
        assert docked.guest.shell(f"grep -rlF '{secret}' {places} 2>/dev/null || true") == ""
