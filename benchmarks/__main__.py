"""scripts/bench: see docs/performance.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peer import Peer, PeerError, why_no_peer
from benchmarks.report import Report, table
from benchmarks.rounds import ALL, Bench, BenchError, say
from lab.engine import take_interrupts
from lab.instance import CACHE, CHECKOUT, Lab, LabError
from scripts.lib.ending import end_with

DOCUMENT = CHECKOUT / "docs" / "performance.md"
BEGIN, END = "<!-- begin of what scripts/bench wrote -->", "<!-- end of what scripts/bench wrote -->"


def machine(lab: Lab) -> dict[str, Any]:
    """Where the figures come from. Asked in the end, for the load."""
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    ready = lab.ready()
    return {
        "cores": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        "commit": revision.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "language_host": f"Pulumi's language host {'a stand-in' if stands_in() else 'the official one'}",
        "agent": f"{ready.source_kind}, {ready.source_version}",
        "pip_list": pip_list(),
    }


def stands_in() -> bool:
    """Whether the language host is one of the stand-ins of toolchain.toml, which asks no pip for the packages."""
    pins = tomllib.loads((CHECKOUT / "toolchain.toml").read_text())["stand-ins"]
    with (CACHE / "pulumi-cli" / "bin" / "pulumi-language-python").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() in pins.values()


def pip_list() -> dict[str, float]:
    """What the official language host asks once before each run: the packages of the environment, by pip."""
    python = CACHE / "stack-venv" / "bin" / "python"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    listed = subprocess.run([str(python), "-m", "pip", "list", "--format", "json"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"packages": len(json.loads(listed.stdout)), "cpu": round(used, 2)}


def write_document(text: str) -> None:
    """Put the table between its two marks."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


@contextmanager
def a_lab(folder: Path) -> Iterator[Lab]:
    """A lab that goes with the block."""
    command = [str(CHECKOUT / "scripts" / "lab"), "--dir", str(folder)]
    if subprocess.run([*command, "up"], check=False).returncode:
        raise BenchError("the lab did not come up; its own lines above say why")
    try:
        yield Lab(folder)
    finally:
        subprocess.run([*command, "destroy"], check=False)


def parts(text: str) -> list[str]:
    found = text.split(",")
    if unknown := set(found) - set(ALL):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}. There are: {', '.join(ALL)}")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure the stacks on a local Proxmox.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each run is measured (default: 3)")
    parser.add_argument("--only", type=parts, default=ALL, metavar="PARTS", help=f"of {','.join(ALL)} (default: all)")
    parser.add_argument(
        "--together", type=int, default=10, metavar="N", help="cattle to bring up at once (default: 10)"
    )
    parser.add_argument("--no-counts", action="store_true", help="leave out the round in which strace counts")
    parser.add_argument(
        "--peer", action="store_true", help="measure OpenTofu and Ansible beside it, see benchmarks/peer"
    )
    parser.add_argument("--peer-provider", type=Path, metavar="DIR", help="of bpg's provider, else the registry's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.relative_to(CHECKOUT)}")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> Report:
    report = Report({})
    with tempfile.TemporaryDirectory() as scratch, a_lab(CACHE / "bench") as lab:
        bench = Bench(lab, Path(scratch), report, options.only, None)
        if options.peer:
            bench.peer = Peer.on(bench, options.peer_provider)
        bench.prepare()
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            bench.round()
        if not options.no_counts and shutil.which("strace"):
            say("the same once more, counted")
            bench.round_counted()
        elif not options.no_counts:
            say("processes and connections are not counted: there is no strace (apt-get install strace)")
        if "together" in options.only:
            bench.bring_up_together(options.together)
        report.machine |= machine(lab)
    return report


def main() -> int:
    take_interrupts()
    options = arguments()
    if options.peer and (lack := why_no_peer()):
        say(f"the peer is left out: {lack}")
        options.peer = False
    try:
        report = measure(options)
    except (BenchError, PeerError, LabError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if options.write:
        write_document(table(report))
    print(table(report))
    return 0


if __name__ == "__main__":
    end_with(main)
