"""Docker mode in a guest: engine, image, compose project, identity, what survives what, one home in both modes.

Then, with the same engine and without the stack: the outer contract of the lab's image, and an image of one's own.

The tests tell one story, in this order: each finds the container as the one before has left it.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator

import pytest
import requests

from applications.hermes.application import STATE_OF_CONTAINER
from applications.hermes.guest.names import CONTAINER_UNIT, GATEWAY
from applications.hermes.talk import ask
from lab.image import BASE_REPOSITORY, BASE_TAG
from lab.services.standin import VERSION
from provisioning.errors import PhaseFailed
from tests.attacks.attack import Scene, attacks, carry_out
from tests.e2e import used_home
from tests.e2e.docked import BARE, INSIDE, NEXT_TAG, PASSWORD, Docked, a_docked, gateways, sessions
from tests.e2e.phase_guest import (
    CHECKOUT,
    MODEL_KEY,
    Guest,
    backups_plan,
    follow_the_remedy_for_a_stop,
    needs_root,
    run_cut,
)

pytestmark = needs_root

WITH_A_FOLDER = {
    "agentExtraVolumes": ["/data:/data"],
    "agentExtraOptions": {"environment": {"P": "$5 ${HOME}"}},
}


@pytest.fixture(scope="module")
def docked(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docked]:
    with a_docked(guest, tmp_path_factory.mktemp("registry") / "ca", "docker") as made:
        yield made


def test_the_engine_is_installed_and_proved_and_the_image_comes_by_its_digest(docked: Docked) -> None:
    docked.run(docked.guest.baseline())
    with pytest.raises(PhaseFailed, match=r"calls itself 0\.19\.0, but 0\.20\.0 is declared"):
        run_cut(docked.guest, docked.agent(agentVersion="0.20.0"), "engine: installing", "image: pulling")
    outputs = docked.run(docked.agent())
    assert (outputs["version"], outputs["dashboard_available"]) == ("0.19.0", True)
    assert docked.guest.shell("docker compose version --short").strip().startswith("2.")
    # Nothing of the first container stays, and nothing of the agent runs yet.
    assert docked.guest.shell("docker ps --all --quiet") == ""


def test_a_registry_that_is_not_trusted_is_told(docked: Docked) -> None:
    with pytest.raises(PhaseFailed, match="agentCaFile"):
        docked.run(docked.agent(NEXT_TAG, ca=""))


def test_the_container_works_is_healthy_and_shows_no_secret(docked: Docked) -> None:
    outputs = run_cut(docked.guest, docked.configure(), "container: create")
    assert (outputs["container"], outputs["restarted"]) == ("create", ["hermes"])
    assert len(docked.mtus()) == 1
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
    outputs = docked.run(docked.configure(agentSettings={"agent": {"max_turns": 7}}, agentEnvironment={"PRICE": "$5"}))
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
    # Of the earlier start nothing is left that would bring up a second gateway, which then ends the first.
    assert guest.shell("docker exec hermes pgrep -fxc 's6-supervise gateway-default'").strip() == "1"
    assert (docked.inspect()["Id"], docked.mark()) == (before, "written inside")


def test_a_container_that_was_stopped_by_hand_is_started_as_the_text_says(docked: Docked) -> None:
    guest = docked.guest
    follow_the_remedy_for_a_stop(guest, STATE_OF_CONTAINER, CONTAINER_UNIT)
    # By its unit, which checks what it is given; the engine alone would not.
    assert guest.shell(f"systemctl is-active {CONTAINER_UNIT}") == "active\n"
    assert docked.mark() == "written inside"


def test_another_identity_is_another_container_and_the_data_stays(docked: Docked) -> None:
    guest = docked.guest
    before = docked.inspect()
    guest.shell("mkdir -p /data && chown 10000:10000 /data")
    docked.run(docked.agent(NEXT_TAG))
    plan = docked.configure(NEXT_TAG, **WITH_A_FOLDER)
    outputs = docked.run(plan)
    after = docked.inspect()
    assert outputs["container"] == "create"
    assert outputs["backup"].endswith("-0.19.0")
    assert after["Id"] != before["Id"]
    assert after["Config"]["Labels"]["hermes-stack.identity"] == plan.declared["container"]["identity"]
    assert docked.mark() == ""
    assert "P=$5 ${HOME}" in after["Config"]["Env"]
    for prompt, expect in (
        ("what do you remember?", "Miez"),
        ("write file /data/n.txt: hello", "bytes_written"),
        ("write file relative.txt: hello", "bytes_written"),
    ):
        assert expect in ask(guest.target(), prompt)
    # The working directory is the one of bare-metal mode.
    assert guest.shell("stat -c %u /data/n.txt /home/hermes/workspace/relative.txt").split() == ["10000", "10000"]


def test_an_image_that_fails_its_proof_is_gone_back_from(docked: Docked) -> None:
    guest = docked.guest
    files = "sha256sum /etc/hermes/config.yaml /etc/hermes/.env /etc/hermes-stack/c*"
    used_home.begin(guest)
    before, known, old = guest.shell(files), sessions(guest, INSIDE), used_home.schema(guest)
    docked.run(docked.agent(docked.broken_tag))
    with pytest.raises(PhaseFailed) as failed:
        docked.run(docked.configure(docked.broken_tag, **WITH_A_FOLDER, agentSettings={"agent": {"max_turns": 9}}))
    told = str(failed.value)
    assert f"the update to {docked.newest.version} in hermes-agent:{docked.broken_tag} was taken back" in told
    assert f"not today, of schema {used_home.schemas_of(docked.source)[1]}" in told
    [taken] = re.findall(r"Taken back from the backup: (.*)", told)
    assert "state.db" in taken
    assert "0.19.0 runs again" in told
    aside = next(each for each in used_home.backups(guest) if each["partial"])
    assert used_home.schema(guest, f"{used_home.BACKUPS}/{aside['name']}/data/state.db") == 99
    assert used_home.schema(guest) == old == used_home.schemas_of(docked.source)[0]
    used_home.assert_as_begun(guest)
    assert docked.inspect()["Config"]["Image"] == docked.image(NEXT_TAG)
    assert guest.shell(files) == before
    assert sessions(guest, INSIDE) >= known
    assert "Miez" in ask(guest.target(), "what do you remember?")
    # What was declared before holds, and nothing has to be done for it.
    docked.run(docked.agent(NEXT_TAG))
    assert docked.run(docked.configure(NEXT_TAG, **WITH_A_FOLDER))["container"] == "nothing"


def test_back_to_a_backup_by_hand(docked: Docked) -> None:
    guest = docked.guest
    before = docked.inspect()["Id"]
    made = guest.run(backups_plan("make"))
    assert ask(guest.target(), "remember: the fish is called Nemo")
    assert guest.run(backups_plan("restore", "latest"))["restored"] == made["name"]
    answer = ask(guest.target(), "what do you remember?")
    assert "Miez" in answer
    assert "Nemo" not in answer
    assert docked.inspect()["Id"] == before


def test_the_cattle_backs_up_by_itself_while_the_container_works(docked: Docked) -> None:
    guest = docked.guest
    due = used_home.minute_without_backup(guest)
    docked.run(docked.configure(NEXT_TAG, **WITH_A_FOLDER, agentBackupTimes=[due]))
    assert guest.shell("systemctl is-active agent-backup.timer").strip() == "active"
    before = docked.inspect()
    start = "systemctl start agent-backup.service"
    guest.shell(start)
    (name,) = used_home.on_schedule(guest)
    assert f"({name}); each day at {due}" in used_home.backup_line(guest)
    # It is due once; and the container is neither stopped nor paused for it.
    guest.shell(start)
    assert used_home.on_schedule(guest) == [name]
    after = docked.inspect()
    assert (after["Id"], after["State"]["Pid"]) == (before["Id"], before["State"]["Pid"])
    copied = f"{used_home.BACKUPS}/{name}/data/state.db"
    assert used_home.schema(guest, copied) == used_home.schema(guest)
    status, out, err = docked.verify()
    assert status == 0, err
    assert json.loads(out)["backup"] == "made"
    assert ask(guest.target(), "remember: the crab is called Karl")
    guest.run(backups_plan("restore", name))
    assert "Karl" not in ask(guest.target(), "what do you remember?")
    docked.run(docked.configure(NEXT_TAG, **WITH_A_FOLDER))
    assert "agent-backup" not in guest.shell("ls /etc/systemd/system")


def test_a_folder_that_is_not_there_is_refused_and_the_container_runs_on(docked: Docked) -> None:
    before = docked.inspect()["State"]["StartedAt"]
    with pytest.raises(PhaseFailed, match="no such folder in the guest"):
        docked.run(docked.configure(NEXT_TAG, agentExtraVolumes=["/fast:/fast"]))
    assert docked.inspect()["State"]["StartedAt"] == before


def units(guest: Guest) -> set[str]:
    """The agent's units, of whatever mode."""
    return set(guest.shell("cd /etc/systemd/system && ls -d hermes-*").split())


def test_both_modes_share_one_home(docked: Docked) -> None:
    guest = docked.guest
    before = sessions(guest, INSIDE)
    assert before
    assert gateways(guest) == 1
    # The release of the image.
    old = guest.source.previous or guest.source.newest
    guest.run(guest.agent(agentTag=old.tag, agentCommit=old.commit, agentVersion=old.version))
    assert gateways(guest) == 1
    # As after a run that was killed between the end of one mode and the start of the other: neither runs.
    guest.shell("systemctl stop hermes-container.service", 120)
    assert gateways(guest) == 0
    assert guest.run(guest.configure())["restarted"] == ["hermes-gateway.service"]
    assert "the cat is called Miez" in ask(guest.target(), "what do you remember?")
    assert guest.shell("docker ps --all --quiet") == ""
    assert units(guest) == {GATEWAY}
    assert gateways(guest) == 1
    between = sessions(guest, BARE)
    assert before <= between
    assert ask(guest.target(), "remember: the dog is called Rex")

    outputs = docked.run(docked.configure(NEXT_TAG))
    assert outputs["container"] == "create"
    assert units(guest) == {CONTAINER_UNIT}
    status, _, err = docked.verify(prompt="what do you remember?", expect="the dog is called Rex")
    assert status == 0, err
    assert gateways(guest) == 1
    assert between <= sessions(guest, INSIDE)


# -- the releases of two images ----------------------------------------------------------------------------------------


def test_an_update_takes_everything_along(docked: Docked) -> None:
    guest, newest = docked.guest, docked.newest
    if newest.version == VERSION:
        pytest.skip("the lab has the images of one release only: upstream's tree could not be had")
    before, mode = sessions(guest, INSIDE), used_home.journal_mode(guest)
    assert before
    docked.run(docked.agent(newest.tag))
    # Pulled and asked for its version beside what runs.
    assert used_home.schema(guest) == used_home.SCHEMAS[0]
    outputs = run_cut(guest, docked.configure(newest.tag), "update: backed up", "container: create")
    assert outputs["container"] == "create"
    assert isinstance(outputs["offline_seconds"], float)
    status, _, err = docked.verify(version=newest.version, prompt="what do you remember?", expect="Rex")
    assert status == 0, err
    assert sessions(guest, INSIDE) >= before
    assert used_home.schema(guest) == used_home.SCHEMAS[1]
    assert used_home.journal_mode(guest) == mode == "2"
    used_home.assert_taken_along(guest, used_home.MIGRATED)
    made = next(each for each in used_home.backups(guest) if not each["partial"])
    assert made["version"] == VERSION
    assert used_home.schema(guest, f"{used_home.BACKUPS}/{made['name']}/data/state.db") == used_home.SCHEMAS[0]
    assert docked.run(docked.configure(newest.tag))["container"] == "nothing"
    assert ask(guest.target(), "remember: the fish is called Nemo")


def test_back_to_the_release_before_with_the_data_of_then(docked: Docked) -> None:
    guest = docked.guest
    if docked.newest.version == VERSION:
        pytest.skip("the lab has the images of one release only: upstream's tree could not be had")
    then = next(each for each in used_home.backups(guest) if each["version"] == VERSION and not each["partial"])
    docked.run(docked.agent(NEXT_TAG))
    docked.run(docked.configure(NEXT_TAG))
    guest.run(backups_plan("restore", str(then["name"])))
    assert used_home.schema(guest) == used_home.SCHEMAS[0]
    assert used_home.sound(guest)
    used_home.assert_as_begun(guest)
    status, out, err = docked.verify(version=VERSION, prompt="what do you remember?", expect="Rex")
    assert status == 0, err
    assert "Miez" in out
    assert "Nemo" not in out


# -- attacks by its own shell: tests/attacks ---------------------------------------------------------------------------


EARLIER = f"""
systemctl disable --quiet --now {CONTAINER_UNIT}
rm /etc/systemd/system/{CONTAINER_UNIT} /etc/hermes-stack/container.json
systemctl daemon-reload
umount /run/hermes-stack/data
cd /etc/hermes-stack
sed -i -e 's|source: /run/hermes-stack/data|source: /home/hermes/.hermes|' -e '/cap_drop:/,/pids_limit/d' \\
  -e "s|restart: 'no'|restart: unless-stopped|" -e 's|identity: .*|identity: {"f" * 64}|' compose.yaml
docker compose --file compose.yaml up --detach --force-recreate --pull never
"""
"""What an earlier release left: a container that the engine restarts, with the state directory by its name."""


def test_a_container_of_an_earlier_release_is_made_again_with_all_its_data(docked: Docked) -> None:
    guest = docked.guest
    guest.shell(EARLIER, 200)
    assert docked.inspect()["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    before = sessions(guest, INSIDE)
    assert docked.run(docked.configure(NEXT_TAG))["container"] == "create"
    found = docked.inspect()
    assert found["HostConfig"]["RestartPolicy"]["Name"] == "no"
    sources = {mount["Destination"]: mount["Source"] for mount in found["Mounts"]}
    assert sources["/opt/data"] == "/run/hermes-stack/data"
    status, _, err = docked.verify(prompt="what do you remember?", expect="the dog is called Rex")
    assert status == 0, err
    assert before <= sessions(guest, INSIDE)


def test_a_state_directory_that_is_a_link_is_given_to_no_new_container(docked: Docked) -> None:
    """And neither to one that is made for another identity: what runs is not touched."""
    guest, before = docked.guest, docked.inspect()["State"]["StartedAt"]
    guest.shell("runuser -u hermes -- sh -c 'cd ~ && mv .hermes aside && ln -s aside .hermes'")
    try:
        with pytest.raises(PhaseFailed, match=r"/home/hermes/\.hermes is a symbolic link"):
            docked.run(docked.configure(NEXT_TAG, agentExtraOptions={"cpus": 1}))
    finally:
        guest.shell("runuser -u hermes -- sh -c 'cd ~ && rm .hermes && mv aside .hermes'")
    assert docked.inspect()["State"]["StartedAt"] == before


@pytest.fixture(scope="module")
def scene(docked: Docked) -> Scene:
    """The newest release: the way to it is an update of a home with sessions."""
    before = sessions(docked.guest, INSIDE)
    made = docked.scene(docked.newest.tag)
    assert before <= sessions(docked.guest, INSIDE)
    return made


@pytest.mark.parametrize("attack", attacks("docker"))
def test_an_attack_is_held(scene: Scene, attack: str) -> None:
    carry_out(attack, scene)


@pytest.mark.usefixtures("scene")
def test_a_key_that_the_image_makes_does_not_beat_the_declared_one(docked: Docked) -> None:
    """From 0.20 on, upstream's start-up hook adds a key to a .env of the home that has none, whatever is declared in
    the managed .env; and for the agent the home's .env beats the container's environment. Its 0.19.0 adds none."""
    guest, home = docked.guest, "/home/hermes/.hermes/.env"
    guest.shell(f"runuser -u hermes -- sh -c 'umask 077; echo OTHER=1 >{home}'")
    guest.shell(f"systemctl restart {CONTAINER_UNIT}", 240)
    # By the declared key.
    status, _, err = docked.verify()
    assert status == 0, err
    [made] = guest.shell(f"sed -n s/^API_SERVER_KEY=//p {home}").split()
    declared = guest.shell("sed -n s/^API_SERVER_KEY=//p /etc/hermes/.env").strip().strip("'")
    for key, answer in ((declared, "200"), (made, "401")):
        ask_with = f"docker exec hermes curl -s -o /dev/null -w %{{http_code}} -H 'Authorization: Bearer {key}'"
        assert guest.shell(f"{ask_with} http://127.0.0.1:8642/v1/models") == answer


def test_no_secret_is_left_behind(docked: Docked) -> None:
    places = (
        "/var/lib/hermes-provision /run/hermes-provision /etc/hermes-stack /var/log /tmp /var/lib/docker/containers"
    )
    for secret in (MODEL_KEY, PASSWORD):
        assert docked.guest.shell(f"grep -rlF '{secret}' {places} 2>/dev/null || true") == ""


# -- the lab's image, without the stack --------------------------------------------------------------------------------


def until(guest: Guest, container: str, probe: str) -> None:
    """Wait until a command inside a container succeeds."""
    loop = f"for _ in $(seq 600); do docker exec {container} {probe} 2>&1 && exit 0; sleep 0.3; done"
    guest.shell(f"{loop}; docker logs {container} 2>&1; exit 1", 300)


def test_the_labs_image_keeps_upstreams_outer_contract(docked: Docked) -> None:
    """Facts hermes 2, "Docker image", and hermes-0.20, 9. The home is a new volume, with a .env that has no key."""
    sh, image = docked.guest.shell, docked.image(docked.newest.tag)
    # It may have been removed by what went before.
    sh(f"docker rm --force hermes; docker pull --quiet {image}")
    config = json.loads(sh(f"docker image inspect {image}"))[0]["Config"]
    assert (config["User"], list(config["Volumes"])) == ("root", ["/opt/data"])
    assert not config.get("Healthcheck")
    assert not config.get("ExposedPorts")
    for wanted in ("HERMES_HOME=/opt/data", "HERMES_WRITE_SAFE_ROOT=/opt/data", "HERMES_DISABLE_LAZY_INSTALLS=1"):
        assert wanted in config["Env"]

    sh(f"docker run --rm --entrypoint touch -v data:/opt/data {image} /opt/data/.env")
    sh(f"docker run -d --name upstream -v data:/opt/data {image} gateway run")
    until(docked.guest, "upstream", "curl -fsS http://127.0.0.1:8642/health")
    assert sh("docker exec upstream cat /proc/1/comm") == "s6-svscan\n"
    modes = "docker exec upstream stat -c '%n %u %a' /opt/data /opt/data/.env /opt/data/config.yaml /opt/data/SOUL.md"
    seen = dict(line.split(" ", 1) for line in sh(modes).splitlines())
    assert seen["/opt/data/.env"] == "10000 600"
    assert {owner.split()[0] for owner in seen.values()} == {"10000"}
    assert sh("docker exec upstream grep -c '^API_SERVER_KEY=.' /opt/data/.env") == "1\n"
    assert sh("docker exec upstream find /opt/hermes -maxdepth 2 ! -user root") == ""
    # As root from outside, and what it leaves is the agent's all the same.
    sh("docker exec upstream hermes config set display.skin mono")
    assert sh("docker exec upstream find /opt/data ! -user hermes") == ""

    # A gateway that was stopped on purpose stays down, and the container stays up.
    sh("docker exec upstream hermes gateway stop")
    sh("docker restart upstream")
    # Prepared, which takes a moment; then the supervisor says that it is down on purpose.
    look = "/command/s6-svstat -o up,normallyup /run/service/gateway-default"
    until(docked.guest, "upstream", f'sh -c \'[ "$({look})" = "false false" ]\'')
    sh("docker rm --force upstream && docker volume rm data")

    assert "HERMES_UID" in sh(f"! docker run --rm --user 1000 {image} gateway run 2>&1")
    other = f"docker run --rm -e PUID=1234 -e HERMES_GID=1235 {image} sh -c 'id -u; id -g; exit 7'; echo $?"
    assert sh(other).endswith("1234\n1235\n7\n")


# -- an image of one's own: docs/docker-image.md -----------------------------------------------------------------------

COMPOSE = "cd /root/checkout && docker compose -f docker/compose.yaml"
API_KEY = "sk-own-image-canary-77"
OWNER = 1000
"""A person on the host whose folders and sign-ins the agent shares."""


def checkout() -> bytes:
    """What the build is started from, as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (".dockerignore", "docker", "provisioning", "applications"):
            tar.add(CHECKOUT / name, arcname=name, filter=lambda item: None if "__pycache__" in item.name else item)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def own(docked: Docked) -> str:
    """What building and starting it says: as a person with folders on the host would do it."""
    guest, base = docked.guest, docked.registry.reference(BASE_REPOSITORY, BASE_TAG)
    # The engine's builder does not look into /etc/docker/certs.d, a pull does.
    guest.shell(f"docker rm --force hermes; docker pull --quiet {base}")
    guest.shell("mkdir -p /root/checkout && tar -x -C /root/checkout", stdin=checkout())
    variables = {
        "BASE_IMAGE": base,
        "AGENT_VERSION": docked.newest.version,
        "AGENT_REPOSITORY": guest.repository_url,
        "AGENT_TAG": docked.newest.tag,
        "AGENT_COMMIT": docked.newest.commit,
        "AGENT_WEB_UI": "build",
        # The dashboard's and the API's; that the default's can be installed is seen in the cattle.
        "AGENT_EXTRAS": "web,sms",
        "HERMES_UID": OWNER,
        "HERMES_GID": OWNER,
        "HERMES_DASHBOARD": 1,
        "HERMES_PUBLISHED_BIND_IP": guest.address,
        "HERMES_HOME_HOST": "/srv/hermes",
        "CODEX_HOME_HOST": "/srv/codex",
        "CLAUDE_HOME_HOST": "",
        "GEMINI_HOME_HOST": "/srv/gemini",  # not there yet
    }
    settings = {
        "model": {"provider": "custom", "base_url": guest.model.base_url, "default": "lab-model", "api_key": MODEL_KEY},
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
    }
    secrets = {
        "API_SERVER_KEY": API_KEY,
        "HERMES_DASHBOARD_BASIC_AUTH_USERNAME": "ada",
        "HERMES_DASHBOARD_BASIC_AUTH_PASSWORD": PASSWORD,
        "FORWARDED_ALLOW_IPS": guest.plan.gateway,
    }
    for path, content in (
        ("/root/checkout/docker/.env", environment_file(variables)),
        ("/srv/hermes/config.yaml", json.dumps(settings)),
        ("/srv/hermes/.env", environment_file(secrets)),
        ("/srv/codex/auth.json", "{}"),
    ):
        guest.shell(f"umask 077; mkdir -p $(dirname {path}) && cat >{path}", stdin=content.encode())
    guest.shell(f"chown -R {OWNER}:{OWNER} /srv/hermes /srv/codex")
    return guest.shell(f"exec 2>&1; {COMPOSE} up -d --build", 580)


def environment_file(values: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def post(guest: Guest, port: int, path: str, body: object, headers: dict[str, str]) -> requests.Response:
    """To the address that the ports are published on, from where a proxy would be."""
    answer = requests.post(f"http://{guest.address}:{port}{path}", json=body, headers=headers, timeout=120)
    answer.raise_for_status()
    return answer


def test_an_image_of_ones_own_is_built_says_its_version_and_runs_as_the_folders_owner(docked: Docked, own: str) -> None:
    guest, sh, version = docked.guest, docked.guest.shell, docked.newest.version
    assert f"image: /opt/hermes-agent/venv/bin/hermes is Hermes Agent v{version}" in own
    label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
    assert sh(f"docker image inspect --format '{label}' hermes:local") == f"{version}\n"

    until(guest, "hermes-gateway-1", "/app/healthcheck.sh")
    until(guest, "hermes-gateway-1", "curl -fsS http://127.0.0.1:8642/health")
    assert sh("stat -c '%u %a' /srv/hermes /srv/hermes/config.yaml /srv/codex /srv/codex/auth.json /srv/gemini") == (
        f"{OWNER} 700\n{OWNER} 600\n{OWNER} 700\n{OWNER} 600\n{OWNER} 755\n"
    )
    assert json.loads(sh("cat /srv/hermes/config.yaml"))["model"]["api_key"] == MODEL_KEY
    # Nothing in the container is root's, not even its process 1.
    assert sh("docker top hermes-gateway-1 -eo pid,uid | awk 'NR > 1 {print $2}' | sort -u") == f"{OWNER}\n"
    assert f"v{version}" in sh(f"{COMPOSE} exec -T gateway hermes --version")
    question = {"model": "hermes", "messages": [{"role": "user", "content": "hello"}]}
    answer = post(guest, 8642, "/v1/chat/completions", question, {"Authorization": f"Bearer {API_KEY}"}).json()
    assert answer["choices"][0]["message"]["content"] == "You said: hello"
    assert sh(f"find /srv/hermes /srv/gemini ! -uid {OWNER}") == ""
    assert guest.shell("cat /srv/codex/auth.json") == "{}"
    # All of a checkout is there, and the agent finds it: its skills are in the home of whoever starts it first.
    beside = "/opt/hermes-agent/hermes-agent"
    assert sh(f"docker exec hermes-gateway-1 ls -d {beside}/skills {beside}/plugins {beside}/hermes_cli/web_dist")
    if docked.source.kind == "upstream":
        assert int(sh("find /srv/hermes/skills -name SKILL.md | wc -l")) > 50
        # All of it is root's: the agent can write nothing there.
        assert sh("docker exec hermes-gateway-1 find /opt/hermes ! -user root") == ""


@pytest.mark.usefixtures("own")
def test_its_dashboard_sees_the_gateway_and_believes_the_proxy(docked: Docked) -> None:
    guest = docked.guest
    until(guest, "hermes-gateway-1", "curl -fsS -o /dev/null http://127.0.0.1:9119/login")
    login = {"provider": "basic", "username": "ada", "password": PASSWORD}
    answer = post(guest, 9119, "/auth/password-login", login, {"X-Forwarded-Proto": "https"})
    assert "__Host-hermes_session_at" in answer.cookies
    status = requests.get(f"http://{guest.address}:9119/api/status", timeout=120).json()
    assert (status["version"], status["gateway_running"]) == (docked.newest.version, True)
    shown = guest.shell("docker inspect hermes-gateway-1")
    for secret in (API_KEY, PASSWORD, MODEL_KEY):
        assert secret not in shown


@pytest.mark.usefixtures("own")
def test_a_stop_reaches_the_agent(docked: Docked) -> None:
    sh = docked.guest.shell
    sh(f"exec 2>&1; {COMPOSE} stop", 200)
    # The code of a gateway that was told to end, not the 137 of one that was killed; and it came to its last words.
    assert sh("docker inspect --format '{{.State.ExitCode}}' hermes-gateway-1") == "1\n"
    assert "Gateway stopped (total teardown" in sh("cat /srv/hermes/logs/gateway.log")
    assert "tini" not in sh("docker logs hermes-gateway-1 2>&1 | grep -i fatal || true")


@pytest.mark.usefixtures("own")
def test_it_starts_with_nothing_and_hands_on_the_exit_code(docked: Docked) -> None:
    sh = docked.guest.shell
    least = "--rm --read-only --tmpfs /tmp --cap-drop ALL --cap-add CHOWN --cap-add SETGID --cap-add SETUID"
    fresh = f"docker run {least} -v fresh:/home/hermes/.hermes hermes:local"
    look = "id -u; stat -c %u:%a ~/.hermes/config.yaml; hermes --version | head -n 1; exit 7"
    said = sh(f"{fresh} sh -c '{look}' 2>&1; echo $?")
    assert said.split("\n")[:2] == ["10000", "10000:600"]
    assert f"Hermes Agent v{docked.newest.version}" in said
    assert said.endswith("\n7\n")
    # Another user from the start, who is nobody in the image: no root, no capability, no complaint.
    sh("mkdir -p /srv/other && chown 1234:1234 /srv/other")
    other = "docker run --rm --user 1234:1234 --cap-drop ALL -v /srv/other:/home/hermes/.hermes hermes:local"
    assert sh(f"{other} sh -c 'id -u; hermes config set display.skin mono >/dev/null' 2>&1") == "1234\n"
    assert sh("find /srv/other ! -uid 1234") == ""
    # Data cannot hide the agent; what does is told.
    hidden = sh("! docker run --rm -v /srv/gemini:/opt/hermes-agent hermes:local 2>&1")
    assert "the baked agent /opt/hermes-agent/venv/bin/hermes is missing" in hidden
