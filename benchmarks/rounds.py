"""What is run: the stacks on a lab of the bench's own, and the peer on the same.

Each round runs all kinds of runs one after another, so that what else the machine does meets all of them alike. Counts
are taken in runs of their own: strace slows what it looks at.
"""

from __future__ import annotations

import ipaddress
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cores import Cores
from benchmarks.offline import watched
from benchmarks.peer import Peer
from benchmarks.report import KINDS, Report, Together
from lab import engine
from lab.counting import Cost, connections_of, processes_of, requests_of, traced
from lab.environment import CONFIG_FILE_VARIABLE, environment
from lab.instance import ACCOUNT, CACHE, CHECKOUT, Lab
from lab.stacks import PROJECT, allow_clones, make_stack

EMPTY = "empty"
QUICK = ("--yes", "--skip-preview")
FIRST_VMID = 110
API_PORT = 8642
COLD = "cattle-bench0"


class BenchError(Exception):
    """A run failed; the text says which, and why."""


@dataclass(frozen=True)
class Step:
    """One run. ``golden``: with the settings for a golden template; ``watched``: the agent is asked all the time."""

    kind: str
    verb: str
    stack: str
    more: tuple[str, ...] = QUICK
    golden: bool = False
    watched: bool = False


REPLACE = (*QUICK, "--replace", "cattle-container")

PARTS: dict[str, tuple[Step, ...]] = {
    "nothing": (
        Step("empty-preview", "preview", EMPTY, ()),
        Step("preview", "preview", "cattle", ()),
        Step("empty-up", "up", EMPTY, ("--yes",)),
        Step("nothing", "up", "cattle", ("--yes",)),
    ),
    "golden-replace": (Step("golden-replace", "up", "cattle", REPLACE, golden=True, watched=True),),
    "replace": (Step("replace", "up", "cattle", REPLACE, watched=True),),
    "warm": (Step("destroy", "destroy", "cattle"), Step("warm", "up", "cattle")),
    "cold": (Step("cold", "up", COLD), Step("cold-destroy", "destroy", COLD)),
    "golden": (Step("golden", "up", COLD, golden=True), Step("golden-destroy", "destroy", COLD, golden=True)),
}
"""The parts of a round, in their order. Each leaves the cattle up, and nothing else."""

ALL = (*PARTS, "together")


class Bench:
    """One lab, and what is measured on it. ``only``: the parts that are."""

    def __init__(self, lab: Lab, scratch: Path, report: Report, only: Sequence[str], peer: Peer | None) -> None:
        self.lab = lab
        self.scratch = scratch
        self.report = report
        self.only = only
        self.peer = peer
        self.cores = Cores()
        self.env = {**os.environ, **environment(lab)}
        # With the last one, each run would compile all that it imports, and measure that.
        for name in ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"):
            self.env.pop(name, None)

    # --- one run ---

    def run(self, verb: str, stack: str, *more: str, golden: bool = False, before: Sequence[str] = ()) -> engine.Run:
        env, cwd = self.env, CHECKOUT
        if stack == EMPTY:
            cwd = self.scratch
            env = {name: value for name, value in env.items() if name != CONFIG_FILE_VARIABLE}
        elif (own := self._settings(stack, golden=golden)).exists():
            env = {**env, CONFIG_FILE_VARIABLE: str(own)}
        run = engine.pulumi(
            [verb, "--stack", stack, *more], cwd=cwd, env=env, log=self.lab.state_dir / "bench.log", before=before
        )
        if not run.ok:
            raise BenchError(f"pulumi {verb} --stack {stack} failed:\n{run.explain()}")
        return run

    def measure(self, step: Step) -> None:
        more = self._named(step.more)
        self.cores.since()
        if step.watched:
            with watched(self.address("cattle"), API_PORT) as watch:
                run = self.run(step.verb, step.stack, *more, golden=step.golden)
            self.add(step.kind, run, watch.longest)
        else:
            self.add(step.kind, self.run(step.verb, step.stack, *more, golden=step.golden))

    def add(self, kind: str, run: engine.Run, offline: float | None = None) -> None:
        self.report.runs[kind].add(run, self.cores.since(), offline)
        away = "" if offline is None else f", the agent away for {offline:.1f} s"
        say(f"{KINDS[kind]}: {run.seconds:.1f} s, {run.cpu:.1f} s of CPU{away}")

    def count(self, step: Step) -> None:
        record = self.scratch / "trace"
        log = self.lab.state_dir / "access.log"
        begin = log.stat().st_size
        self.run(step.verb, step.stack, *self._named(step.more), golden=step.golden, before=traced(record))
        with log.open(encoding="utf-8") as file:
            file.seek(begin)
            requests, writes = requests_of(file.read(), ACCOUNT.user)
        trace = record.read_text(encoding="utf-8", errors="replace")
        cost = Cost(processes_of(trace), connections_of(trace), requests, writes)
        self.report.runs[step.kind].cost = cost
        say(
            f"{KINDS[step.kind]}: {cost.processes} processes, {cost.connections} SSH connections, "
            f"{cost.requests} requests, {cost.writes} of them writes"
        )

    def _named(self, more: Sequence[str]) -> list[str]:
        """A resource's name as the engine wants it."""
        return [self._urns()[word] if word == "cattle-container" else word for word in more]

    def _urns(self) -> dict[str, str]:
        exported = engine.command("stack", "export", "--stack", "cattle", cwd=CHECKOUT, env=self.env)
        urns = [str(entry["urn"]) for entry in json.loads(exported)["deployment"]["resources"]]
        return {urn.rsplit("::", 1)[1]: urn for urn in urns}

    # --- what is there before ---

    @property
    def golden(self) -> bool:
        return any(part.startswith("golden") or part == "together" for part in self.only)

    def prepare(self) -> None:
        """The pet, the cattle with something in its home, an empty program, a stack with its home on its root."""
        python = str(CACHE / "stack-venv")
        runtime = {"name": "python", "options": {"toolchain": "pip", "virtualenv": python}}
        (self.scratch / "Pulumi.yaml").write_text(yaml.safe_dump({"name": EMPTY, "runtime": runtime}))
        (self.scratch / "__main__.py").write_text("import pulumi\n")
        plain = {name: value for name, value in self.env.items() if name != CONFIG_FILE_VARIABLE}
        engine.command("stack", "init", EMPTY, cwd=self.scratch, env=plain)
        self._write("cattle", self._lab_settings())
        self.add_cattle(0)
        say("the pet and a first cattle")
        self.run("up", "pet", *QUICK)
        self.run("up", "cattle", *QUICK)
        if self.golden:
            say("the golden template")
            make_stack(self.lab, "image")
            allow_clones(self.lab)
            content = self._lab_settings()
            del content["config"][f"{PROJECT}:cattleGateway"]
            self._write("image", content, cattleAddress="dhcp")
            self.cores.since()
            self.add("image", self.run("up", "image", *QUICK))

    def add_cattle(self, number: int) -> str:
        """One more stack; its home is new at each `up`. The name.

        Its network card is the same each time. With another one, this machine would now and then send to the card of
        the container before it for half a minute. A clone tells of its new card itself, so it gets one.
        """
        stack, vmid = f"cattle-bench{number}", FIRST_VMID + number
        make_stack(self.lab, stack)
        own = {"cattleVmid": vmid, "cattleAddress": self.free_address(vmid), "cattleVolume": ""}
        self._write(stack, self._lab_settings(), **own, cattleHardwareAddress=f"BC:24:11:00:01:{vmid:02X}")
        return stack

    def free_address(self, number: int) -> str:
        """An address of the lab's network with its length; one of those that are not given out."""
        network = ipaddress.ip_interface(str(self.setting("cattleAddress"))).network
        return f"{network.network_address + number}/{network.prefixlen}"

    def address(self, stack: str) -> str:
        config = yaml.safe_load(self._settings(stack).read_text())["config"]
        return str(ipaddress.ip_interface(config[f"{PROJECT}:cattleAddress"]).ip)

    def setting(self, key: str) -> object:
        return self._lab_settings()["config"][f"{PROJECT}:{key}"]

    def _lab_settings(self) -> dict[str, Any]:
        content: dict[str, Any] = yaml.safe_load(self.lab.stack_config_file.read_text())
        return content

    def _write(self, stack: str, content: dict[str, Any], **own: object) -> None:
        """Both files of a stack. The agent's API is open to the network, for :mod:`benchmarks.offline` to see it."""
        own["agentApiHost"] = "0.0.0.0"  # noqa: S104 - a setting of the guest's
        clone = {"goldenTemplate": "image", "cattleHardwareAddress": ""}
        for golden, more in ((False, {}), (True, clone)):
            config = {**content["config"], **{f"{PROJECT}:{key}": value for key, value in {**own, **more}.items()}}
            text = yaml.safe_dump({**content, "config": config}, sort_keys=False)
            self._settings(stack, golden=golden).write_text(text)

    def _settings(self, stack: str, *, golden: bool = False) -> Path:
        return self.scratch / f"{stack}{'-golden' if golden else ''}.yaml"

    # --- the rounds ---

    def steps(self) -> list[Step]:
        return [step for part, steps in PARTS.items() if part in self.only for step in steps]

    def round(self) -> None:
        for step in self.steps():
            self.measure(step)
        if self.peer is not None:
            self.cores.since()
            for kind, run in self.peer.round():
                self.add(kind, run)

    def round_counted(self) -> None:
        for step in self.steps():
            self.count(step)

    def bring_up_together(self, count: int) -> None:
        """Several cattle at once, each by an engine of its own, against one alone; from each kind of template."""
        stacks = [self.add_cattle(number) for number in range(1, count + 1)]

        def all_at_once(verb: str, *, golden: bool) -> float:
            begin = time.monotonic()
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda stack: self.run(verb, stack, *QUICK, golden=golden), stacks))
            return time.monotonic() - begin

        for kind in ("cold", "golden"):
            if alone := self.report.runs[kind].seconds:
                self.cores.since()
                took = all_at_once("up", golden=kind == "golden")
                found = Together(count, took, took / statistics.median(alone), self.cores.since())
                self.report.together[kind] = found
                say(f"{count} at once, {KINDS[kind]}: {found.words(os.cpu_count() or 1)}")
                all_at_once("destroy", golden=kind == "golden")


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)
