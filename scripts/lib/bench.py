"""The bench: what a person waits for, measured on a local Proxmox of its own.

Each round runs all kinds of runs one after another, an empty Pulumi program among them, so that what else the machine
does meets all of them alike. Counts are taken in runs of their own: strace slows what it looks at.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab import engine
from lab.counting import Cost, connections_of, processes_of, requests_of, traced
from lab.environment import CONFIG_FILE_VARIABLE, environment
from lab.instance import ACCOUNT, CACHE, CHECKOUT, Lab, LabError
from lab.stacks import PROJECT, make_stack
from scripts.lib.ending import end_with

DOCUMENT = CHECKOUT / "docs" / "performance.md"
BEGIN, END = "<!-- begin of what scripts/bench wrote -->", "<!-- end of what scripts/bench wrote -->"
EMPTY = "empty"
QUICK = ("--yes", "--skip-preview")
FIRST_VMID = 110

KINDS = {
    "empty-preview": "empty program: preview",
    "empty-up": "empty program: up",
    "preview": "nothing to do: preview",
    "nothing": "nothing to do: up",
    "destroy": "destroy",
    "warm": "up from nothing, the home has data",
    "replace": "replace, the home has data",
    "cold": "up from nothing, the home is new",
    "cold-destroy": "destroy with the home",
}
"""What is measured, in the order of a round, and how the table calls it."""

COMPARED = {"preview": "empty-preview", "nothing": "empty-up"}
"""What has the run of an empty program as its measure."""


@dataclass
class Figures:
    """Of one kind of run, a figure a round. ``phases``: seconds by the resource's name; ``cost``: as counted."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    cost: Cost | None = None

    def add(self, run: engine.Run) -> None:
        self.seconds.append(round(run.seconds, 2))
        self.cpu.append(round(run.cpu, 2))
        for span in run.spans:
            if span.op != "same" and not span.type.startswith("pulumi:"):
                self.phases.setdefault(f"{span.name} {span.op}", []).append(round(span.seconds, 2))


class BenchError(Exception):
    """A run failed; the text says which, and why."""


class Bench:
    """One lab, and what is measured on it."""

    def __init__(self, lab: Lab, scratch: Path) -> None:
        self.lab = lab
        self.scratch = scratch
        self.env = {**os.environ, **environment(lab)}
        # With the last one, each run would compile all that it imports, and measure that.
        for name in ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"):
            self.env.pop(name, None)
        self.figures = {kind: Figures() for kind in KINDS}
        self.together: dict[str, Any] = {}

    # --- one run ---

    def run(self, verb: str, stack: str, *more: str, before: Sequence[str] = ()) -> engine.Run:
        env = self.env
        cwd = CHECKOUT
        if stack == EMPTY:
            cwd = self.scratch
            env = {name: value for name, value in env.items() if name != CONFIG_FILE_VARIABLE}
        elif (own := self._settings(stack)).exists():
            env = {**env, CONFIG_FILE_VARIABLE: str(own)}
        run = engine.pulumi(
            [verb, "--stack", stack, *more], cwd=cwd, env=env, log=self.lab.state_dir / "bench.log", before=before
        )
        if not run.ok:
            raise BenchError(f"pulumi {verb} --stack {stack} failed:\n{run.explain()}")
        return run

    def measure(self, kind: str, verb: str, stack: str, *more: str, counted: bool) -> None:
        if not counted:
            run = self.run(verb, stack, *more)
            self.figures[kind].add(run)
            say(f"{KINDS[kind]}: {run.seconds:.1f} s, {run.cpu:.1f} s of CPU")
            return
        record = self.scratch / "trace"
        log = self.lab.state_dir / "access.log"
        begin = log.stat().st_size
        self.run(verb, stack, *more, before=traced(record))
        with log.open(encoding="utf-8") as file:
            file.seek(begin)
            requests, writes = requests_of(file.read(), ACCOUNT.user)
        trace = record.read_text(encoding="utf-8", errors="replace")
        cost = Cost(processes_of(trace), connections_of(trace), requests, writes)
        self.figures[kind].cost = cost
        say(
            f"{KINDS[kind]}: {cost.processes} processes, {cost.connections} SSH connections, "
            f"{cost.requests} requests, {cost.writes} of them writes"
        )

    # --- what is there before ---

    def prepare(self) -> None:
        """The pet, the cattle with something in its home, an empty program, a stack with its home on its root."""
        python = str(CACHE / "stack-venv")
        runtime = {"name": "python", "options": {"toolchain": "pip", "virtualenv": python}}
        (self.scratch / "Pulumi.yaml").write_text(yaml.safe_dump({"name": EMPTY, "runtime": runtime}))
        (self.scratch / "__main__.py").write_text("import pulumi\n")
        plain = {name: value for name, value in self.env.items() if name != CONFIG_FILE_VARIABLE}
        engine.command("stack", "init", EMPTY, cwd=self.scratch, env=plain)
        self.add_cattle(0)
        say("the pet and a first cattle")
        self.run("up", "pet", *QUICK)
        self.run("up", "cattle", *QUICK)

    def add_cattle(self, number: int) -> str:
        """One more stack; its home is new at each `up`. The name."""
        stack = f"cattle-bench{number}"
        make_stack(self.lab, stack)
        vmid = FIRST_VMID + number
        content = yaml.safe_load(self.lab.stack_config_file.read_text())
        address = ipaddress.ip_interface(content["config"][f"{PROJECT}:cattleAddress"])
        own = {
            "cattleVmid": vmid,
            "cattleAddress": f"{address.network.network_address + vmid}/{address.network.prefixlen}",
            "cattleVolume": "",
        }
        content["config"] |= {f"{PROJECT}:{key}": value for key, value in own.items()}
        self._settings(stack).write_text(yaml.safe_dump(content, sort_keys=False))
        return stack

    def _settings(self, stack: str) -> Path:
        return self.scratch / f"{stack}.yaml"

    # --- the rounds ---

    def round(self, *, counted: bool = False) -> None:
        cold, container = "cattle-bench0", self._urn("cattle-container")
        for kind, verb, stack, more in (
            ("empty-preview", "preview", EMPTY, ()),
            ("preview", "preview", "cattle", ()),
            ("empty-up", "up", EMPTY, ("--yes",)),
            ("nothing", "up", "cattle", ("--yes",)),
            ("destroy", "destroy", "cattle", QUICK),
            ("warm", "up", "cattle", QUICK),
            ("replace", "up", "cattle", (*QUICK, "--replace", container)),
            ("cold", "up", cold, QUICK),
            ("cold-destroy", "destroy", cold, QUICK),
        ):
            self.measure(kind, verb, stack, *more, counted=counted)

    def _urn(self, name: str) -> str:
        exported = engine.command("stack", "export", "--stack", "cattle", cwd=CHECKOUT, env=self.env)
        resources = json.loads(exported)["deployment"]["resources"]
        return next(str(entry["urn"]) for entry in resources if entry["urn"].endswith(f"::{name}"))

    def bring_up_together(self, count: int) -> None:
        """Several cattle at once, each by an engine of its own, against one alone."""
        stacks = [self.add_cattle(number) for number in range(1, count + 1)]
        begin = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda stack: self.run("up", stack, *QUICK), stacks))
        took = time.monotonic() - begin
        alone = statistics.median(self.figures["cold"].seconds)
        self.together = {"count": count, "seconds": round(took, 1), "times": round(took / alone, 1)}
        say(f"{count} cattle at once: {took:.1f} s, {took / alone:.1f} times one")
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda stack: self.run("destroy", stack, *QUICK), stacks))

    # --- what comes of it ---

    def report(self) -> dict[str, Any]:
        return {
            "machine": machine(),
            "runs": {kind: asdict(figures) for kind, figures in self.figures.items()},
            "ratios": ratios(self.figures),
            "together": self.together,
        }


def ratios(figures: Mapping[str, Figures]) -> dict[str, dict[str, float]]:
    """How many times an empty program's seconds, and its CPU seconds, each run of COMPARED took: the rounds' median."""
    found = {}
    for kind, measure in COMPARED.items():
        ours, empty = figures[kind], figures[measure]
        found[kind] = {
            "seconds": round(statistics.median(a / b for a, b in zip(ours.seconds, empty.seconds, strict=True)), 2),
            "cpu": round(statistics.median(a / b for a, b in zip(ours.cpu, empty.cpu, strict=True)), 2),
        }
    return found


def machine() -> dict[str, Any]:
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        "commit": revision.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "language_host": f"Pulumi's language host {'a stand-in' if stands_in() else 'the official one'}",
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


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most in brackets."""
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(report: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    where = report["machine"]
    rounds = max(len(run["seconds"]) for run in report["runs"].values())
    head = (
        f"{where['date']}, commit {where['commit']}: {rounds} rounds on one machine with {where['cores']} cores, load "
        f"{where['load'][0]} in the end, Python {where['python']}, {where['language_host']}. "
        "Median (least to most) of the rounds."
    )
    lines = [
        head,
        "",
        "| run | seconds | CPU seconds | processes | SSH connections | requests | writes |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, title in KINDS.items():
        run = report["runs"][kind]
        cost = run["cost"] or {}
        counts = [str(cost.get(name, "-")) for name in ("processes", "connections", "requests", "writes")]
        lines.append(f"| {' | '.join([title, spread(run['seconds']), spread(run['cpu']), *counts])} |")
    lines.append("")
    asked = where["pip_list"]
    lines.append(
        f"- `pip list`, which the official language host asks before each run, an empty program's too: {asked['cpu']} "
        f"CPU seconds for {asked['packages']} packages."
    )
    for kind, ratio in report["ratios"].items():
        lines.append(f"- {KINDS[kind]}: {ratio['seconds']} times an empty program's seconds, {ratio['cpu']} its CPU.")
    if report["together"]:
        together = report["together"]
        lines.append(
            f"- {together['count']} cattle at once, homes new: {together['seconds']} s, {together['times']} times one."
        )
    lines += ["", "The phases of an `up` from nothing, the home has data:", "", "| resource | seconds |", "|---|---|"]
    lines += [f"| {name} | {spread(values)} |" for name, values in report["runs"]["warm"]["phases"].items()]
    return "\n".join(lines)


def write_document(text: str) -> None:
    """Put the table between its two marks."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure the stacks on a local Proxmox.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each run is measured (default: 3)")
    parser.add_argument("--together", type=int, default=2, metavar="N", help="cattle to bring up at once (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.relative_to(CHECKOUT)}")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch, a_lab(CACHE / "bench") as lab:
            bench = Bench(lab, Path(scratch))
            bench.prepare()
            for number in range(options.rounds):
                say(f"round {number + 1} of {options.rounds}")
                bench.round()
            if shutil.which("strace"):
                say("the same once more, counted")
                bench.round(counted=True)
            else:
                say("processes and connections are not counted: there is no strace (apt-get install strace)")
            if options.together:
                bench.bring_up_together(options.together)
            report = bench.report()
    except (BenchError, LabError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.write:
        write_document(table(report))
    print(table(report))
    return 0


if __name__ == "__main__":
    end_with(main)
