"""What was measured, what it is compared with, and the table that says so. Pure, but for reading the machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.counting import Cost
from lab.engine import Run

KINDS = {
    "empty-preview": "empty program: preview",
    "preview": "nothing to do: preview",
    "empty-up": "empty program: up",
    "nothing": "nothing to do: up",
    "image": "the golden template itself (once)",
    "golden-replace": "replace from it, the home has data",
    "replace": "replace, the home has data",
    "destroy": "destroy, the home stays",
    "warm": "up from nothing, the home has data",
    "cold": "up from nothing, the home is new",
    "cold-destroy": "destroy with the home",
    "golden": "up from a golden template, the home is new",
    "golden-destroy": "destroy with the home, linked clone",
    "peer-up": "peer: apply and playbook, from nothing",
    "peer-plan": "peer: plan, nothing to do",
    "peer-nothing": "peer: apply and playbook, nothing to do",
    "peer-destroy": "peer: destroy with the home",
}
"""What is measured, in the order of the table, and how it is called there."""

PHASES = {"warm": "plain template", "golden": "golden template", "peer-up": "peer"}
"""Whose phases are shown."""


@dataclass
class Figures:
    """Of one kind of run, a figure a round.

    ``cpu``: CPU seconds of the engine and what it waited for; ``machine``: those of all cores, guests and lab included;
    ``phases``: seconds by the resource's name; ``offline``: seconds without an answer of the agent; ``cost``: counts.
    """

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    machine: list[float] = field(default_factory=list)
    offline: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    cost: Cost | None = None

    def add(self, run: Run, machine: float, offline: float | None = None) -> None:
        self.seconds.append(round(run.seconds, 2))
        self.cpu.append(round(run.cpu, 2))
        self.machine.append(round(machine, 2))
        if offline is not None:
            self.offline.append(round(offline, 2))
        for span in run.spans:
            if span.op != "same" and not span.type.startswith("pulumi:"):
                self.phases.setdefault(f"{span.name} {span.op}", []).append(round(span.seconds, 2))


@dataclass(frozen=True)
class Together:
    """Several cattle that were brought up at once. ``times``: of the seconds of one; ``machine``: as of `Figures`."""

    count: int
    seconds: float
    times: float
    machine: float

    def words(self, cores: int) -> str:
        """How long it took, and how much of it the cores worked: nothing but less work makes that part shorter."""
        busy = self.machine / (self.seconds * cores)
        return f"{self.seconds:.1f} s, {self.times:.1f} times one. The cores worked for {busy:.0%} of it."


@dataclass
class Report:
    """All that a run of the bench has found. ``together``: by the kind of run that one alone is."""

    machine: dict[str, Any]
    runs: dict[str, Figures] = field(default_factory=lambda: {kind: Figures() for kind in KINDS})
    together: dict[str, Together] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "targets": [asdict(target) for target in targets(self)]}


def ratio(over: Sequence[float], under: Sequence[float]) -> float | None:
    """The median of the rounds' ratios: what else the machine did in a round has met both. None: not measured."""
    pairs = list(zip(over, under, strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else None


@dataclass(frozen=True)
class Target:
    """A figure and where it is to be. ``measured``: None where a part of it was not measured."""

    title: str
    measured: float | None
    limit: float
    at_least: bool = False

    @property
    def words(self) -> str:
        bound = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        if self.measured is None:
            return f"| {self.title} | {bound} | not measured | |"
        reached = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return f"| {self.title} | {bound} | {self.measured:.2f} | {'yes' if reached else 'no'} |"


def targets(report: Report) -> list[Target]:
    """What the stacks are to reach, as ratios in one run where two things are compared."""
    runs = report.runs

    def of(over: str, under: str, name: str = "seconds") -> float | None:
        return ratio(getattr(runs[over], name), getattr(runs[under], name))

    def median(values: Sequence[float]) -> float | None:
        return statistics.median(values) if values else None

    together = report.together.get("golden")
    return [
        Target("preview / empty program's", of("preview", "empty-preview"), 1.5),
        Target("the same, CPU seconds", of("preview", "empty-preview", "cpu"), 1.5),
        Target("`up` with nothing to do / empty program's", of("nothing", "empty-up"), 1.5),
        Target("the same, CPU seconds", of("nothing", "empty-up", "cpu"), 1.5),
        Target("peer's run with nothing to do / `up` with nothing to do", of("peer-nothing", "nothing"), 1, True),
        Target("peer's / up from nothing, plain template", of("peer-up", "cold"), 2, True),
        Target("peer's / up from a golden template", of("peer-up", "golden"), 4, True),
        Target("up from a golden template, seconds to a verified prompt", median(runs["golden"].seconds), 12),
        Target("destroy / peer's", of("cold-destroy", "peer-destroy"), 1),
        Target("offline in a replace from a golden template, seconds", median(runs["golden-replace"].offline), 12),
        Target("ten at once from golden templates / one", together.times if together else None, 4),
    ]


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most in brackets."""
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(report: Report) -> str:
    """The figures as Markdown."""
    where, runs = report.machine, report.runs
    rounds = max(len(figures.seconds) for figures in runs.values())
    asked = where["pip_list"]
    head = (
        f"{where['date']}, commit {where['commit']}: {rounds} rounds on one machine with {where['cores']} cores, load "
        f"{where['load'][0]} in the end, Python {where['python']}, {where['language_host']}. The agent: "
        f"{where['agent']}. Median (least to most) of the rounds."
    )
    lines = [
        head,
        "",
        row(
            *("run", "seconds", "CPU seconds", "of all cores", "offline"),
            *("processes", "SSH connections", "requests", "writes"),
        ),
        row(*["---"] * 9),
    ]
    for kind, title in KINDS.items():
        figures = runs[kind]
        if figures.seconds:
            cost = asdict(figures.cost) if figures.cost else {}
            counts = [str(cost.get(name, "-")) for name in ("processes", "connections", "requests", "writes")]
            told = (figures.seconds, figures.cpu, figures.machine, figures.offline)
            lines.append(row(title, *map(spread, told), *counts))
    lines += ["", row("target", "", "measured", "reached"), row(*["---"] * 4)]
    lines += [target.words for target in targets(report)]
    lines.append("")
    for kind, found in report.together.items():
        title = f"{found.count} at once: {KINDS[kind]}"
        lines.append(f"- {title}: {found.words(where['cores'])}")
    lines.append(
        f"- `pip list`, which the official language host asks before each run, an empty program's too: {asked['cpu']} "
        f"CPU seconds for {asked['packages']} packages."
    )
    for kind, title in PHASES.items():
        if runs[kind].phases:
            lines += ["", f"The parts of an `up` from nothing, {title}:", "", "| part | seconds |", "|---|---|"]
            lines += [row(name, spread(values)) for name, values in runs[kind].phases.items()]
    return "\n".join(lines)
