"""Host mounts and keyctl through a stack's life: by root over SSH to the node, and by hand where nobody is root.

The node's SSH server is the lab's own; what it is asked reaches the same API. Nothing runs in these containers, so the
write from inside is looked at here as the command that it is; tests/e2e has it for real.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pvelab import pct
from pvelab.hostfolders import HostFolders
from pvelab.nodeshell import NodeShell
from pvelab.runtime import Completed
from tests.lifecycle.conftest import Deployed
from tests.lifecycle.homesite import CATTLE, NODE, Site, assert_plain, copied, opened

DATA = {"source": "/mnt/pve/hdd/hermes", "path": "/data"}
FAST = {"source": "/media/2tb/hermes", "path": "/fast"}
FILMS = {"source": "/srv/films", "path": "/films", "readOnly": True}


@dataclass
class Node:
    """A site, and root's shell on its node."""

    site: Site
    shell: NodeShell
    commands: list[str]

    @property
    def folders(self) -> HostFolders:
        return HostFolders(self.site.server.config.host_dir(NODE))

    def stat(self, path: str) -> str:
        return self.folders.run("stat", ["-c", "%f %u %g %m", "--", path])[1].strip()

    def root(self, command: str) -> None:
        """Somebody pastes a line at the node."""
        status, _, errors = self.shell.execute(command, lambda: b"")
        assert status == 0, errors
        self.commands.remove(command)

    @property
    def changes(self) -> list[str]:
        """What was run since the last look, but for what only looks."""
        reading = ("hostname", "id ", "realpath ", "stat ", "find ", "findmnt ")
        found = [re.sub(r" --digest \w+", "", command) for command in self.commands if not command.startswith(reading)]
        self.commands.clear()
        return found

    def config(self) -> dict[str, str]:
        config = self.site.node.config(CATTLE)
        return {key: str(value) for key, value in config.items() if re.match(r"mp\d|features|unused", key)}

    def starts(self) -> list[str]:
        return [write.path.rpartition("/")[2] for write in self.site.sent if write.power]


@pytest.fixture
def node(pet_seed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """The pet is up, the settings name the way to root, and the container lets itself be written to."""
    with opened(copied(pet_seed.folder, tmp_path / "lab"), control=True) as site:
        shell = NodeShell(site.lab.state_dir, site.lab.ssh_key_file.with_suffix(".pub"), node=NODE)
        commands: list[str] = []
        execute = shell.execute

        def noted(command: str, read_stdin: pct.Stdin) -> tuple[int, str, str]:
            commands.append(command)
            return execute(command, read_stdin)

        monkeypatch.setattr(shell, "execute", noted)
        shell.start()
        monkeypatch.setattr(site.runtime, "execute", lambda _spec, _argv, _stdin: Completed(0))
        site.configure(
            nodeSshHost="127.0.0.1",
            nodeSshPort=shell.port,
            nodeSshHostKey=shell.host_key,
            nodeSshKeyFile=str(site.lab.ssh_key_file),
            cattleHostMounts=[DATA, FAST],
            cattleKeyctl=True,
        )
        yield Node(site, shell, commands)
        shell.stop()


def test_a_life_with_root_on_the_node(node: Node) -> None:
    site = node.site
    # Before the first start, in one command; the folders belong to the agent's user, and nothing below them changes.
    site.up("cattle")
    writes = ["setpriv --reuid 10000 --regid 10000 --clear-groups sh -c"] * 2
    made, own, made_fast, own_fast, setting, *proofs = node.changes
    assert (made, own) == ("mkdir -p -- /mnt/pve/hdd/hermes", "chown -h 110000:110000 -- /mnt/pve/hdd/hermes")
    assert (made_fast, own_fast) == ("mkdir -p -- /media/2tb/hermes", "chown -h 110000:110000 -- /media/2tb/hermes")
    assert setting == (
        f"pct set {CATTLE} --features keyctl=1,nesting=1 "
        "--mp1 /mnt/pve/hdd/hermes,mp=/data --mp2 /media/2tb/hermes,mp=/fast"
    )
    assert [proof[: len(f"pct exec {CATTLE} -- {write}")] for proof, write in zip(proofs, writes, strict=True)] == [
        f"pct exec {CATTLE} -- {write}" for write in writes
    ]
    assert [shlex.split(proof)[-1] for proof in proofs] == ["/data", "/fast"]
    assert node.starts() == ["start"]
    assert node.stat(DATA["source"]) == "41ed 110000 110000 /mnt/pve/hdd"
    config = node.config()
    assert config["features"] == "keyctl=1,nesting=1"
    assert config["mp0"].startswith("local-lvm:vm-999-disk-1,")
    assert site.outputs("cattle")["hostMounts"] == {"/data": DATA["source"], "/fast": FAST["source"]}

    # A second run finds nothing to do and changes nothing, nor does one after somebody has used the folders.
    (node.folders.on_machine(DATA["source"]) / "video").write_text("large\n")
    assert site.up("cattle").changed == {}
    assert (node.changes, site.writes) == ([], [])

    # By hand, on the running container: one change at once and one that waits. The preview shows both, without SSH.
    node.root(f"pct set {CATTLE} --features nesting=1 --delete mp2")
    drift = site.preview("cattle", "--refresh")
    assert {span.name for span in drift.spans if span.op == "update"} == {"cattle-host-mounts"}
    site.up("cattle", "--refresh")
    [repair] = node.changes
    assert repair == f"pct set {CATTLE} --features keyctl=1,nesting=1 --mp2 /media/2tb/hermes,mp=/fast"
    assert node.starts() == ["shutdown", "start"]
    assert node.config() == config
    assert site.node.running(CATTLE)

    # A folder's owner changed by hand, another folder removed: both are seen and put right. Whoever runs still has the
    # one that was removed, so there is a restart; what lies beside it stays.
    node.root(f"chown -h 100033:100033 -- {FAST['source']}")
    (node.folders.on_machine(DATA["source"]) / "video").unlink()
    node.folders.on_machine(DATA["source"]).rename(node.folders.on_machine("/mnt/pve/hdd/away"))
    seen = site.preview("cattle")
    assert {span.name for span in seen.spans if span.op == "update"} == {
        "cattle-host-mounts",
        "cattle-host-mounts-proof",
    }
    site.up("cattle")
    assert node.changes[:3] == [made, own, own_fast]
    assert node.starts() == ["shutdown", "start"]
    assert node.stat(FAST["source"]).split()[1:3] == ["110000", "110000"]
    assert site.up("cattle").changed == {}
    (node.folders.on_machine(DATA["source"]) / "video").write_text("large\n")
    node.commands.clear()

    # Other settings: one goes, one becomes read-only; one restart.
    site.configure(cattleHostMounts=[{**DATA, "readOnly": True}])
    site.up("cattle")
    setting, *proofs = node.changes
    assert setting == f"pct set {CATTLE} --mp1 /mnt/pve/hdd/hermes,mp=/data,ro=1 --delete mp2"
    assert len(proofs) == 1
    assert node.starts() == ["shutdown", "start"]

    # The way back: the mounts go without root, the folders and what is in them stay.
    site.configure(cattleHostMounts=[DATA, FAST])
    site.up("cattle")
    node.commands.clear()
    node.shell.stop()
    # Also when it is cut off between the two.
    site.break_off("cattle", "destroy", lambda request, when: when == "after" and "delete=mp1" in str(request))
    site.cancel("cattle")
    gone = site.destroy("cattle")
    assert node.commands == []
    assert "stays as it is" in "\n".join(gone.messages)
    assert f"PUT {CATTLE}/config delete=mp1" not in site.writes
    assert f"PUT {CATTLE}/config delete=mp2" in site.writes
    assert CATTLE not in site.node.vmids()
    assert (node.folders.on_machine(DATA["source"]) / "video").read_text() == "large\n"
    assert node.stat(DATA["source"]).split()[1] == "110000"


def test_without_root_the_commands_are_told_and_pasted(node: Node) -> None:
    site = node.site
    site.configure(nodeSshHost=None, nodeSshPort=None, nodeSshHostKey=None, nodeSshKeyFile=None)
    site.configure(cattleHostMounts=[DATA])
    # The preview says what will be needed.
    preview = site.preview("cattle")
    expected = [
        "mountpoint /mnt/pve/hdd",
        "mkdir -p -- /mnt/pve/hdd/hermes",
        "chown -h 110000:110000 -- /mnt/pve/hdd/hermes",
        f"pct set {CATTLE} --features keyctl=1,nesting=1 --mp1 /mnt/pve/hdd/hermes,mp=/data",
    ]
    for line in expected:
        assert line in preview.explain() + "\n".join(preview.messages)
    # The container is made, and left stopped.
    run = site.pulumi("cattle", "up", "--yes", "--skip-preview")
    assert not run.ok
    told = run.explain()
    assert "Traceback" not in told
    assert f"CT {CATTLE} needs what only root on node {NODE} may set" in told
    for line in expected:
        assert line in told
    assert not site.node.running(CATTLE)
    # Nothing was pasted: the next run says so before it changes anything.
    again = site.pulumi("cattle", "up", "--yes", "--skip-preview")
    assert not again.ok
    assert_plain(again)
    assert expected[-1] in again.explain()
    assert site.writes == []
    # All at once, as they are printed. With the disk away nothing is made in its place, and nothing is set.
    block = " &&\n".join(expected)
    assert re.sub(r"\n\s+", "\n", again.explain()).count(block) == 1
    node.root("umount /mnt/pve/hdd")
    assert node.shell.execute(block, lambda: b"")[0] != 0
    assert node.config()["features"] == "nesting=1"
    node.root("mount /mnt/pve/hdd")
    node.root(block)
    site.up("cattle")
    assert node.starts() == ["start"]
    assert site.up("cattle").changed == {}

    # Another wish, on a container that runs: told before anything is changed, and with the restart.
    site.configure(cattleHostMounts=[DATA, FILMS])
    run = site.pulumi("cattle", "up", "--yes", "--skip-preview")
    assert f"pct set {CATTLE} --mp2 /srv/films,mp=/films,ro=1" in run.explain()
    assert f"pct reboot {CATTLE}" in run.explain()
    assert site.writes == []
    node.root("mkdir -p -- /srv/films")
    node.root(f"pct set {CATTLE} --mp2 /srv/films,mp=/films,ro=1")
    node.root(f"pct reboot {CATTLE}")
    site.up("cattle")
    site.destroy("cattle")


def _foreign(node: Node) -> None:
    node.root("mkdir -p -- /mnt/pve/hdd/hermes/of-somebody")


def _linked(node: Node) -> None:
    node.root("mkdir -p -- /srv/real")
    node.folders.on_machine("/mnt/pve/hdd/hermes").symlink_to("../../../srv/real")


def _unmounted(node: Node) -> None:
    """Of the fstab's disks one is away: its empty mount point lies on the root file system."""
    node.folders.on_machine("/mnt/pve/hdd/hermes/of-somebody").rmdir()
    node.root("umount /media/2tb")


def _another_node(node: Node) -> None:
    node.root("mount /media/2tb")
    node.shell._facts["hostname"] = "pve2"


def _no_key(node: Node) -> None:
    node.site.lab.ssh_key_file.with_suffix(".pub").write_text("")


def _another_host_key(node: Node) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ"
    node.site.configure(nodeSshHostKey=other)


def test_what_stands_in_the_way_on_the_node_is_told_in_preview(node: Node) -> None:
    cases: list[tuple[Any, list[str]]] = [
        (_foreign, ["belongs to 0", "is not empty", "chown -h 110000:110000 -- /mnt/pve/hdd/hermes"]),
        (_unmounted, ["nothing is mounted at /media/2tb on node pve", "mount /media/2tb"]),
        (_another_node, ["is that of node pve2, not of pve", "see nodeSshHost"]),
        (_another_host_key, ["not the one that was pinned", "nodeSshHostKey"]),
    ]
    for spoil, words in cases:
        spoil(node)
        run = node.site.pulumi("cattle", "preview")
        assert not run.ok
        assert_plain(run)
        for word in words:
            assert word in run.explain()
        assert node.site.writes == []
    assert node.changes == []


def test_a_run_that_is_cut_off_between_stop_and_start_goes_on(node: Node) -> None:
    site = node.site
    site.up("cattle")
    node.commands.clear()
    site.configure(cattleHostMounts=[DATA])
    site.break_off("cattle", "up", lambda request, when: when == "after" and request.path.endswith("/shutdown"))
    site.cancel("cattle")
    site.up("cattle", "--refresh")
    assert site.node.running(CATTLE)
    assert "mp2" not in node.config()
    assert site.up("cattle").changed == {}

    # Made anew, it has all of it again, before its first start; the folder is found as it was left.
    node.commands.clear()
    site.up("cattle", "--replace", site.resources("cattle")["cattle-container"]["urn"])
    setting, proof = node.changes
    assert setting == f"pct set {CATTLE} --features keyctl=1,nesting=1 --mp1 /mnt/pve/hdd/hermes,mp=/data"
    assert proof.startswith(f"pct exec {CATTLE} ")
    assert node.starts() == ["shutdown", "start"]
    assert site.up("cattle").changed == {}

    # Out of the settings, on a container that goes on: the mounts go with one restart, keyctl is root's to take.
    site.configure(cattleHostMounts=[], cattleKeyctl=False)
    run = site.up("cattle")
    assert node.changes == []
    assert f"pct set {CATTLE} --features nesting=1 && pct reboot {CATTLE}" in "\n".join(run.messages)
    assert node.starts() == ["shutdown", "start"]
    assert set(node.config()) == {"mp0", "features"}
    assert site.node.running(CATTLE)
    assert site.up("cattle").changed == {}


def test_a_cattle_without_a_pet(site: Site) -> None:
    """The home is on the root file system: said loudly, and not changed under a cattle that is there."""
    site.configure(cattleVolume="")
    preview = site.preview("cattle")
    assert "destroys it, too" in preview.explain() + "\n".join(preview.messages)
    site.up("cattle")
    assert site.node.running(CATTLE)
    assert site.up("cattle").changed == {}
    site.node.stop(CATTLE)
    site.up("cattle", "--refresh")
    assert site.node.running(CATTLE)
    # Another template makes another container, and with it another root file system.
    site.configure(template="local:vztmpl/debian-13-standard_13.1-1_amd64.tar.zst")
    run = site.pulumi("cattle", "preview")
    assert not run.ok
    assert "would be lost" in run.explain()
    site.configure(template=None)
    # A volume would hide the home.
    site.configure(cattleVolume=None)
    site.up("pet")
    run = site.pulumi("cattle", "preview")
    assert not run.ok
    assert "has its home on its own root file system" in run.explain()
    site.configure(cattleVolume="")
    site.destroy("cattle")
    stopped = [str(write) for write in site.sent if write.power]
    assert [text.rpartition("/")[2].split()[0] for text in stopped] == ["shutdown"]
    assert CATTLE not in site.node.vmids()
