"""A guest whose agent is in a container: what the tests of both engines share."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from applications.hermes.guest.backend import ENGINE
from applications.hermes.phases import render_agent
from applications.hermes.settings import AgentStack
from lab.image import AGENT_REPOSITORY, Images, again, ensure_images
from lab.oci import INDEX_TYPE, REF_NAME, blob_path, finish_layout, put_json, tags
from lab.services.registry import Registry
from lab.services.releases import Release
from lab.services.source import Source, ensure_source
from lab.services.standin import TAG, VERSION
from provisioning.plans import PhasePlan
from pvelab.certificates import ensure_certificates
from pvelab.template import ensure_template
from tests.attacks.attack import Scene
from tests.e2e.phase_guest import CHECKOUT, Guest
from tests.settings import unchecked

PORT = 5000
NEXT_TAG = again(TAG)
PASSWORD = "canary horse battery staple"


@dataclass
class Docked:
    """The guest, and the registry that its images come from."""

    guest: Guest
    registry: Registry
    ca: str
    backend: str
    source: Source

    @property
    def newest(self) -> Release:
        """The release that the lab installs; of the stand-in that is the one of the other tags."""
        return self.source.newest

    @property
    def broken_tag(self) -> str:
        """The newest release with all its migrations; it only does not come up."""
        return broken(self.newest.tag)

    def version(self, tag: str) -> str:
        """What the agent in an image calls itself."""
        return self.newest.version if tag.startswith(self.newest.tag) else VERSION

    def image(self, tag: str = TAG) -> str:
        return self.registry.reference(AGENT_REPOSITORY, tag)

    def stack(self, tag: str = TAG, **given: Any) -> AgentStack:
        """As Guest.stack, in a container."""
        usual = {
            "agentMode": "docker",
            "agentBackend": self.backend,
            "agentImage": self.image(tag),
            "agentVersion": self.version(tag),
            "agentApi": False,
            "agentDashboard": True,
            "agentDashboardPassword": PASSWORD,
        }
        return self.guest.stack(**{**usual, **given})

    def agent(self, tag: str = TAG, *, ca: str | None = None, **given: Any) -> PhasePlan:
        """`ca`: which authority the registry is trusted by; None: its own."""
        stack = unchecked(self.stack(tag, **given), agent__model__authorities=self.ca if ca is None else ca)
        return render_agent(stack.agent)

    def configure(self, tag: str = TAG, **given: Any) -> PhasePlan:
        return self.guest.configured(self.stack(tag, **given))

    def run(self, plan: PhasePlan) -> dict[str, Any]:
        return dict(self.guest.run(plan))

    def verify(self, **asked: Any) -> tuple[int, str, str]:
        """As Guest.verify; a failure also says what the engine has done to the container meanwhile."""
        status, out, err = self.guest.verify(**asked)
        if status:
            err += self.guest.shell(
                f"{ENGINE} ps --all; "
                f"{ENGINE} logs --timestamps --tail 60 hermes 2>&1 | grep -v check_fn | iconv -ct ascii | cut -c1-200; "
                f"journalctl --unit {self.backend} --lines 25 --no-pager --output short-precise | cut -c1-200"
            )
        return status, out, err

    def up(self, tag: str = TAG) -> None:
        for plan in (self.guest.baseline(), self.agent(tag), self.configure(tag)):
            self.run(plan)

    def scene(self, tag: str = TAG) -> Scene:
        """The agent at work in a container, for attacks."""

        def renew() -> None:
            self.guest.renew()
            self.up(tag)

        self.up(tag)
        return Scene("podman" if self.backend == "podman" else "docker", self.guest, self.verify, renew)

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.guest.shell(f"{ENGINE} container inspect hermes"))[0]
        return found

    def mtus(self) -> set[str]:
        """Of the guest's network card and of the container's."""
        card = "cat /sys/class/net/eth0/mtu"
        return set(self.guest.shell(f"{card}; {ENGINE} exec hermes {card}").split())

    def mark(self) -> str:
        """What was written into the container's writable layer, or nothing."""
        return self.guest.shell(f"{ENGINE} exec hermes cat /opt/mark 2>/dev/null || true").strip()


# The release's own migration, and then a form of the database that no other reads. Then the gateway does not come up.
BREAKS = """
import os, sqlite3, sys
path = os.path.join(os.environ["HERMES_HOME"], "state.db")
def read(query):
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchone()[0]
if read("SELECT version FROM schema_version") < 99:
    import hermes_state
    hermes_state.SessionDB().close()
    reached = read("SELECT version FROM schema_version")
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE messages RENAME TO messages_of_99")
        database.execute("UPDATE schema_version SET version = 99")
        database.execute(f"PRAGMA user_version = {reached}")
sys.exit(f"not today, of schema {read('PRAGMA user_version')}")
"""


def broken(tag: str) -> str:
    """The tag of an image like that of `tag` that does not come up."""
    return f"{tag}.9"


def with_a_broken_one(images: Images, folder: Path, tag: str) -> Images:
    """The same images, and a broken one: the layers of `tag`, but what is started in them breaks the data and ends."""
    shutil.copytree(images.layout, folder, copy_function=lambda source, target: Path(target).symlink_to(source))
    named = {
        each["annotations"][REF_NAME]: each for each in json.loads((folder / "index.json").read_text())["manifests"]
    }
    for name in ("index.json", "oci-layout"):
        (folder / name).unlink()

    def read(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(blob_path(folder, digest).read_text())
        return found

    index = read(images.digests[f"{AGENT_REPOSITORY}:{tag}"])
    [entry] = index["manifests"]
    manifest = read(entry["digest"])
    config = read(manifest["config"]["digest"])
    start = ["/command/s6-setuidgid", "hermes", "/opt/hermes/.venv/bin/python", "-c", BREAKS]
    config["config"] = {**config["config"], "Entrypoint": start}

    def put(content: dict[str, Any]) -> dict[str, Any]:
        digest, size = put_json(folder, content)
        return {"digest": digest, "size": size}

    manifest["config"] |= put(config)
    entry_of_broken = {"mediaType": INDEX_TYPE, **put({**index, "manifests": [{**entry, **put(manifest)}]})}
    finish_layout(folder, {**named, f"{AGENT_REPOSITORY}:{broken(tag)}": entry_of_broken})
    return replace(images, layout=folder, digests=tags(folder))


@contextlib.contextmanager
def a_docked(guest: Guest, state: Path, backend: str) -> Iterator[Docked]:
    """The guest with a registry beside it, whose certificates are in the folder `state`."""
    cache = CHECKOUT / ".cache"
    template = ensure_template(cache / "lab-template", lambda _: None)
    source = ensure_source(cache / "lab-sources", lambda _: None)
    made = ensure_images(cache / "lab-images", template, source, lambda _: None)
    images = with_a_broken_one(made, state.with_name("images"), source.newest.tag)
    gateway = str(guest.plan.gateway)
    trust = ensure_certificates(state, [gateway])
    registry = Registry(gateway, PORT, images, trust.server_file)
    registry.start()
    try:
        yield Docked(guest, registry, Path(trust.ca_file).read_text(), backend, source)
    finally:
        registry.stop()


def gateways(guest: Guest) -> int:
    """How many gateways there are in the guest, in containers or not."""
    return int(guest.shell("pgrep -fc 'python.*[g]ateway run' || true"))


def wait_for_one_gateway(guest: Guest) -> None:
    """For a container that was started a moment ago: the image's command, which is called like a gateway, becomes the
    container's heartbeat once it has found that the gateway runs already."""
    deadline = time.monotonic() + 60
    while gateways(guest) != 1:
        assert time.monotonic() < deadline, guest.shell("pgrep -af '[g]ateway run'")
        time.sleep(0.3)


BARE = "runuser -u hermes -- env HERMES_HOME=/home/hermes/.hermes /opt/hermes/current/venv/bin/hermes"
INSIDE = f"{ENGINE} exec hermes hermes"


def sessions(guest: Guest, hermes: str) -> set[str]:
    """The sessions as the agent itself tells them."""
    text = guest.shell(f"cd /tmp && {hermes} sessions export - | python3 -c '{SESSION_IDS}'")
    return set(text.split())


SESSION_IDS = """
import json, sys
print(*[json.loads(line)["id"] for line in sys.stdin if line.startswith("{")], sep="\\n")
"""
