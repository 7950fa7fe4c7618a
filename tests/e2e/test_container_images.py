"""Docker in a guest: the lab's image keeps upstream's outer contract, and an image of one's own is built and runs.

Facts hermes 2, "Docker image", says what the contract is; docs/docker-image.md what one's own image does.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.certificates import ensure_certificates
from lab.image import AGENT_REPOSITORY, BASE_REPOSITORY, BASE_TAG, ensure_images
from lab.services.registry import Registry
from lab.services.source import TAG
from lab.template import ensure_template
from provisioning.ssh import connect
from tests.e2e.phase_guest import CHECKOUT, Guest, needs_root

pytestmark = needs_root

PORT = 5000
BUILD_S = 500
CONTEXT = ("docker", ".dockerignore", "provisioning/scripts/agent.sh")


@dataclass
class Engine:
    """A guest with Debian's Docker that trusts the lab's registry."""

    guest: Guest
    image: str
    base: str

    def sh(self, command: str, timeout_s: float = 120, stdin: bytes = b"") -> str:
        """What a command says on both its outputs; it has to succeed."""
        with contextlib.closing(connect(self.guest.target())) as connection:
            done = connection.run(f"exec 2>&1; {command}", timeout_s=timeout_s, stdin=stdin)
        said = done.stdout.decode(errors="replace")
        assert done.status == 0, said[-3000:]
        return said

    def until(self, container: str, probe: str) -> None:
        """Wait until a command inside a container succeeds."""
        loop = f"for _ in $(seq 600); do docker exec {container} {probe} && exit 0; sleep 0.3; done"
        self.sh(f"{loop}; docker logs {container}; exit 1", 300)


@pytest.fixture(scope="module")
def engine(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    template = ensure_template(CHECKOUT / ".cache" / "lab-template", lambda _: None)
    images = ensure_images(CHECKOUT / ".cache" / "lab-images", template, lambda _: None)
    gateway = str(guest.plan.gateway)
    trust = ensure_certificates(tmp_path_factory.mktemp("registry") / "ca", [gateway])
    registry = Registry(gateway, PORT, images, trust.server_file)
    registry.start()
    made = Engine(guest, registry.reference(AGENT_REPOSITORY, TAG), registry.reference(BASE_REPOSITORY, BASE_TAG))
    made.sh(
        "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends docker.io",
        300,
    )
    folder = f"/etc/docker/certs.d/{registry.address}"
    made.sh(f"mkdir -p {folder} && cat >{folder}/ca.crt", stdin=trust.ca_file.read_bytes())
    yield made
    registry.stop()


def test_the_labs_image_keeps_upstreams_outer_contract(engine: Engine) -> None:
    engine.sh(f"docker pull --quiet {engine.image}", 300)
    config = json.loads(engine.sh(f"docker inspect {engine.image}"))[0]["Config"]
    assert (config["User"], list(config["Volumes"])) == ("root", ["/opt/data"])
    assert not config.get("Healthcheck")
    assert not config.get("ExposedPorts")
    for wanted in ("HERMES_HOME=/opt/data", "HERMES_WRITE_SAFE_ROOT=/opt/data", "HERMES_DISABLE_LAZY_INSTALLS=1"):
        assert wanted in config["Env"]

    engine.sh(f"docker run -d --name upstream -v data:/opt/data {engine.image} gateway run")
    engine.until("upstream", "curl -fsS http://127.0.0.1:8642/health")
    assert engine.sh("docker exec upstream cat /proc/1/comm") == "s6-svscan\n"
    assert engine.sh("docker exec upstream cat /etc/hermes/image-provenance.json").startswith("{")
    modes = "docker exec upstream stat -c '%n %u %a' /opt/data /opt/data/.env /opt/data/config.yaml /opt/data/SOUL.md"
    seen = dict(line.split(" ", 1) for line in engine.sh(modes).splitlines())
    assert seen["/opt/data/.env"] == "10000 600"
    assert seen["/opt/data/config.yaml"] == "10000 640"
    assert {owner.split()[0] for owner in seen.values()} == {"10000"}
    assert engine.sh("docker exec upstream grep -c '^API_SERVER_KEY=.' /opt/data/.env") == "1\n"
    assert engine.sh("docker exec upstream find /opt/hermes -maxdepth 2 ! -user root") == ""
    # As root from outside, and what it leaves is the agent's all the same.
    engine.sh("docker exec upstream hermes config set display.skin mono")
    assert engine.sh("docker exec upstream find /opt/data ! -user hermes") == ""

    # A gateway that was stopped on purpose stays down, and the container stays up.
    engine.sh("docker exec upstream hermes gateway stop")
    engine.sh("docker restart upstream")
    # Prepared, which takes a moment; then the supervisor says that it is down on purpose.
    look = "/command/s6-svstat -o up,normallyup /run/service/gateway-default"
    engine.until("upstream", f'sh -c \'[ "$({look})" = "false false" ]\'')
    engine.sh("docker rm --force upstream && docker volume rm data")

    refused = engine.sh(f"! docker run --rm --user 1000 {engine.image} gateway run")
    assert "HERMES_UID" in refused
    ids = engine.sh(f"docker run --rm -e PUID=1234 -e HERMES_GID=1235 {engine.image} sh -c 'id -u; id -g'")
    assert "1234\n1235" in ids
    assert engine.sh(f"docker run --rm {engine.image} sh -c 'exit 7' >/dev/null; echo $?").strip() == "7"


def test_an_image_of_ones_own_is_built_says_its_version_and_runs(engine: Engine) -> None:
    engine.sh("mkdir -p /root/checkout && tar -x -C /root/checkout", stdin=context())
    arguments = {"BASE_IMAGE": engine.base, "AGENT_SOURCE": "pypi", "AGENT_VERSION": "0.19.0"}
    given = " ".join(f"--build-arg {name}={value}" for name, value in arguments.items())
    said = engine.sh(f"cd /root/checkout && docker build -f docker/Dockerfile -t hermes:local {given} .", BUILD_S)
    assert "image: /opt/hermes-agent/venv/bin/hermes is Hermes Agent v0.19.0" in said

    # Folders of the host that are not there yet, one that is somebody's, and one that is a volume.
    engine.sh("mkdir -p /srv/codex && touch /srv/codex/auth.json")
    mounts = {"/srv/hermes": ".hermes", "/srv/codex": ".codex", "claude": ".claude", "/srv/gemini": ".gemini"}
    given = " ".join(f"-v {source}:/home/hermes/{target}" for source, target in mounts.items())
    least = "--cap-drop ALL --cap-add CHOWN --cap-add SETGID --cap-add SETUID --security-opt no-new-privileges:true"
    engine.sh(f"docker run -d --name own {least} {given} hermes:local")
    engine.until("own", "/app/healthcheck.sh")
    assert engine.sh("stat -c %u /srv/hermes /srv/hermes/config.yaml /srv/codex /srv/gemini").split() == [
        "10000", "10000", "0", "10000",
    ]  # fmt: skip
    assert "v0.19.0" in engine.sh("docker exec own hermes --version")
    assert engine.sh("docker exec own ps -eo uid,args | grep -c '^ *10000 .*gateway run'") == "1\n"
    assert engine.sh("find /srv/hermes ! -uid 10000") == ""
    # Data cannot hide the agent; what does is told.
    hidden = engine.sh("! docker run --rm -v /srv/gemini:/opt/hermes-agent hermes:local")
    assert "the baked agent /opt/hermes-agent/venv/bin/hermes is missing" in hidden


def context() -> bytes:
    """What the build is given, as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in CONTEXT:
            tar.add(CHECKOUT / Path(name), arcname=name)
    return buffer.getvalue()
