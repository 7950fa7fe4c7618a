"""The demo: the whole main job on a local Proxmox. Each claim is checked."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from applications.hermes.talk import ask
from lab import engine
from lab.engine import Run, Span
from lab.environment import environment
from lab.instance import CHECKOUT, Lab, LabError
from provisioning.errors import ProvisioningError
from provisioning.ssh import Card, HostKey, SshTarget, connect
from scripts.lib.ending import end_with
from scripts.lib.recording import Recording

SPANS = {
    "create": ("cattle-container",),
    "attach": ("cattle-volume", "cattle-power"),
    "ssh": ("cattle-ssh",),
    "baseline": ("cattle-agent-baseline",),
    "agent": ("cattle-agent-agent",),
    "configure": ("cattle-agent-configure",),
    "verify": ("cattle-agent-verify",),
}
WORDS = {"create": "created", "update": "updated", "delete": "deleted", "replace": "replaced"}
NOTE_FILE = "demo-note.txt"
BLOCK = 4096


class DemoError(Exception):
    """A claim did not hold; the text says which, and why."""


class Demo:
    """One run of the demo. ``console`` is what people see. ``log`` gets the engine's whole output."""

    def __init__(self, lab: Lab, console: Console) -> None:
        self.lab = lab
        self.console = console
        self.figures: dict[str, Any] = {}
        self.log = lab.state_dir / "demo.log"
        self.env: dict[str, str] = {}

    # --- what people see ---

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        self.console.print(f"\n[bold]{title}[/bold]")
        begin = time.monotonic()
        try:
            yield
        except (DemoError, ProvisioningError, LabError) as error:
            self.console.print(f"  [red]failed[/red] after {time.monotonic() - begin:.1f} s", highlight=False)
            raise DemoError(f"{title}: {error}") from None

    def check(self, holds: bool, claim: str, otherwise: str = "") -> None:
        if not holds:
            raise DemoError(f"not true: {claim}. {otherwise}".strip())
        self.console.print(f"  [green]✓[/green] {claim}", highlight=False)

    def pulumi(self, verb: str, stack: str, on_done: Callable[[str, str], None]) -> Run:
        """Run the engine on a stack. ``on_done``: called with name and operation of each finished resource."""

        def hear(event: dict[str, Any]) -> None:
            metadata = event.get("resOutputsEvent", {}).get("metadata")
            if metadata and not metadata["type"].startswith("pulumi:"):
                on_done(metadata["urn"].rsplit("::", 1)[1], metadata["op"])

        argv = [verb, "--yes", "--skip-preview", "--stack", stack]
        with self.console.status(f"pulumi {verb} --stack {stack}"):
            run = engine.pulumi(argv, cwd=CHECKOUT, env=self.env, on_event=hear, log=self.log)
        if not run.ok:
            raise DemoError(f"pulumi {' '.join(argv)} failed:\n{run.explain()}")
        return run

    def up(self, stack: str) -> Run:
        """Bring a stack up. Show each changed resource when it is done."""

        def show(name: str, op: str) -> None:
            if word := WORDS.get(op):
                self.console.print(f"  [dim]{time.monotonic() - begin:5.1f} s  {name} {word}[/dim]", highlight=False)

        begin = time.monotonic()
        return self.pulumi("up", stack, show)

    def outputs(self, stack: str) -> dict[str, Any]:
        return engine.outputs(stack, cwd=CHECKOUT, env=self.env)

    # --- the story ---

    def start_lab(self) -> None:
        done = subprocess.run([CHECKOUT / "scripts" / "lab", "up"], check=False)
        if done.returncode:
            raise DemoError("the lab did not come up; its own lines above say why")
        self.env = {**os.environ, **environment(self.lab)}
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
            self.env.pop(name, None)

    def target(self, outputs: dict[str, Any]) -> SshTarget:
        key = HostKey.parse(outputs["sshHostKey"])
        card = Card(f"CT {outputs['vmid']}", outputs["hardwareAddress"])
        return SshTarget(outputs["address"], key, private_key_file=outputs["sshKeyFile"], card=card)

    def workspace_file(self, target: SshTarget, name: str) -> str:
        """The SHA-256 of a file in the agent's workspace, read over SSH."""
        connection = connect(target)
        try:
            done = connection.run(f"sha256sum -- /home/hermes/workspace/{name}")
        finally:
            connection.close()
        if done.status != 0:
            raise DemoError(f"{name} is not in the agent's workspace: {done.words}")
        return done.text.split()[0]

    def volume_listed(self, volid: str) -> bool:
        return any(volume["volid"] == volid for volume in self.lab_volumes())

    def lab_volumes(self) -> list[dict[str, Any]]:
        from proxmox.client import Proxmox  # noqa: PLC0415 - it takes half a second
        from proxmox.connection import Connection  # noqa: PLC0415

        with Proxmox(Connection.from_sources(self.env, {})) as client:
            content = client.storage_content(self.env["PROXMOX_VE_NODE"], "local-lvm")
        return [{"volid": volume.volid, "size": volume.size} for volume in content]

    def volume_image(self, volid: str) -> Path:
        name = volid.split(":", 1)[1]
        return self.lab.state_dir / "nodes" / self.env["PROXMOX_VE_NODE"] / "storage" / "local-lvm" / f"{name}.raw"

    def run(self) -> None:
        word = f"heron-{secrets.token_hex(3)}"
        with self.step("A Proxmox on this machine"):
            self.start_lab()
        with self.step("The pet: CT 999, which owns the volume"):
            self.up("pet")
            pet = self.outputs("pet")
            volid = pet["volumes"]["hermes"]["volid"]
            self.check(self.volume_listed(volid), f"{volid} is on the storage")
        with self.step("The cattle: CT 105, which borrows the volume and runs the agent"):
            first = self.up("cattle")
            cattle = self.outputs("cattle")
            target = self.target(cattle)
            self.check(cattle["volume"] == volid, f"CT 105 has {volid} at /home/hermes")
        with self.step("The agent"):
            answer = ask(target, f"Reply with the word {word} and nothing else.")
            self.check(word in answer, f"answers a prompt: {answer!r}", f"It said {answer!r}")
            ask(target, f"remember: the demo's bird is {word}")
            self.check(word in ask(target, "what do you remember?"), "keeps a memory")
            ask(target, f"write file {NOTE_FILE}: {word}")
            note = self.workspace_file(target, NOTE_FILE)
            self.check(note in (_sha256(word), _sha256(f"{word}\n")), f"writes {NOTE_FILE} into its workspace")
        with self.step("The same again changes nothing"):
            ensure = self.up("pet")
            self.check(not ensure.changed, "pet: no changes", f"Changed: {ensure.changed}")
            again = self.up("cattle")
            self.check(not again.changed, "cattle: no changes", f"Changed: {again.changed}")
        with self.step("Throw the cattle away"):
            gone, before, after = self.destroy(volid)
            self.check(self.volume_listed(volid), f"{volid} is still there")
            self.check(before == after, f"its bytes are unchanged: sha256 {after[:16]}...", f"Before: {before}")
        with self.step("Make it again"):
            second = self.up("cattle")
            renewed = self.outputs("cattle")
            target = self.target(renewed)
            self.check(renewed["sshHostKey"] != cattle["sshHostKey"], "a new host key is pinned")
            self.check(self.workspace_file(target, NOTE_FILE) == note, f"{NOTE_FILE} is the same file")
            self.check(word in ask(target, "what do you remember?"), "the agent remembers")
        self.measure(first=first, second=second, ensure=ensure, gone=gone)

    def destroy(self, volid: str) -> tuple[Run, str, str]:
        """Destroy the cattle. Returns the volume's checksum after the detachment, and at the end."""
        seen: list[str] = []
        image = self.volume_image(volid)

        def look(name: str, op: str) -> None:
            if (name, op) == ("cattle-volume", "delete"):
                seen.append(data_checksum(image))

        run = self.pulumi("destroy", "cattle", look)
        self.console.print(f"  [dim]{run.seconds:5.1f} s  CT 105 destroyed[/dim]", highlight=False)
        if not seen:
            raise DemoError("the volume was not detached before the container was destroyed")
        return run, seen[0], data_checksum(image)

    # --- figures ---

    def measure(self, *, first: Run, second: Run, ensure: Run, gone: Run) -> None:
        made = {name: _seconds(second, spans) for name, spans in SPANS.items()}
        phases = {"ensure pet": ensure.seconds, **made}
        total = ensure.seconds + second.seconds
        self.figures = {
            "phases": {name: round(value, 1) for name, value in phases.items() if value is not None},
            "total": round(total, 1),
            "first_up": round(first.seconds, 1),
            "destroy": round(gone.seconds, 1),
        }
        # Not the table's title: that is wrapped where it is longer than the table is wide.
        self.console.print("\n[bold]Made again, with warm caches[/bold]")
        table = Table("phase")
        table.add_column("seconds", justify="right")
        for name, value in phases.items():
            table.add_row(name, "-" if value is None else f"{value:.1f}")
        rest = second.seconds - sum(value for value in made.values() if value)
        table.add_row("Pulumi itself", f"{rest:.1f}", end_section=True)
        table.add_row("total", f"[bold]{total:.1f}[/bold]")
        table.add_row("destroy", f"[bold]{gone.seconds:.1f}[/bold]")
        self.console.print(table)

    def say_what_is_left(self) -> None:
        cattle = self.outputs("cattle")
        self.console.print(
            "\n[bold]Running now[/bold]: the lab, CT 999 (stopped, owns the volume), CT 105 with Hermes "
            f"{cattle['agentVersion']} at {cattle['address']}.\n"
            "  look at it      scripts/lab status\n"
            '  talk to it      eval "$(scripts/lab env)" && scripts/agent prompt "what do you remember?"\n'
            '  log in          eval "$(scripts/lab env)" && scripts/agent ssh\n'
            '  use Pulumi      eval "$(scripts/lab env)" && pulumi preview --stack cattle\n'
            "  remove it all   scripts/lab destroy",
            highlight=False,
            soft_wrap=True,  # these are lines to paste
        )


def data_checksum(image: Path) -> str:
    """The SHA-256 of all blocks of a sparse file that are not zero, each with its offset.

    Holes do not count: reading a block that was allocated and never written can turn a hole into data.
    """
    digest = hashlib.sha256()
    zeros = bytes(BLOCK)
    with image.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        end = 0
        while end < size:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                break
            place = max(end, begin - begin % BLOCK)
            end = -(-os.lseek(file.fileno(), begin, os.SEEK_HOLE) // BLOCK) * BLOCK
            file.seek(place)
            while place < end and (block := file.read(BLOCK)):
                if block != zeros[: len(block)]:
                    digest.update(f"{place}:".encode() + block)
                place += BLOCK
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _seconds(run: Run, names: Sequence[str]) -> float | None:
    spans: list[Span] = [span for span in run.spans if span.name in names and span.op != "same"]
    return sum(span.seconds for span in spans) if spans else None


def main() -> int:
    engine.take_interrupts()
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show the whole main job on a local Proxmox.")
    parser.add_argument("--down", action="store_true", help="remove everything at the end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what is shown to FILE, an SVG that plays it")
    options = parser.parse_args()
    console = Recording()
    demo = Demo(Lab.default(), console)
    try:
        demo.run()
        if options.json:
            options.json.write_text(json.dumps(demo.figures, indent=2) + "\n")
        if not options.down:
            demo.say_what_is_left()
        if options.record:
            options.record.write_text(console.picture("scripts/demo"), encoding="utf-8")
    except (DemoError, LabError) as error:
        console.print(f"\n[red]The demo failed.[/red] {error}", markup=True)
        if demo.log.exists():
            console.print(f"The engine's output: {demo.log}")
        console.print("To look at it: scripts/lab status. To remove everything: scripts/lab destroy")
        return 1
    finally:
        if options.down:
            subprocess.run([CHECKOUT / "scripts" / "lab", "destroy"], check=False)
    return 0


if __name__ == "__main__":
    end_with(main)
