"""What a run found, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["same", "different", "not run"]
OUTCOMES: tuple[Outcome, ...] = ("same", "different", "not run")


@dataclass(frozen=True)
class Result:
    """One case. ``request`` and ``answer`` are as they went over the wire, without secrets."""

    id: str
    facts: str
    outcome: Outcome
    reason: str = ""
    """Why it was not run."""
    differences: Sequence[str] = ()
    request: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A whole run."""

    contract: str
    """The release that the cases are of; that of the node's major number, if there is one."""
    endpoint: str
    node: str
    version: str
    began: str
    """ISO 8601, UTC."""
    seconds: float
    results: Sequence[Result]
    left: Sequence[str]
    """What of the run is still on the node; empty as it should be."""
    changed: Sequence[str]
    """What else came or went on the node meanwhile; not by this run, which touches nothing outside of its bounds."""
    interrupted: str = ""
    """Why it ended early."""

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def write(self, folder: Path) -> None:
        """``conformance.json`` and ``conformance.txt``, in a folder that is made."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "conformance.json").write_text(json.dumps(asdict(self), indent=1) + "\n")
        (folder / "conformance.txt").write_text(self.text())

    def text(self) -> str:
        counts = Counter(result.outcome for result in self.results)
        lines = [
            f"Proxmox VE {self.version}, node {self.node} at {self.endpoint}, against the contract of {self.contract}",
            f"{self.began}, {self.seconds:.0f} s: " + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES),
        ]
        if self.interrupted:
            lines.append(f"The run ended early: {self.interrupted}")
        for result in self.results:
            if result.outcome == "different":
                lines += ["", *_different(result)]
        reasons: dict[str, list[str]] = defaultdict(list)
        for result in self.results:
            if result.outcome == "not run":
                reasons[result.reason].append(result.id)
        if reasons:
            lines += ["", "Not run:"]
            lines += [f"  {reason}: {', '.join(ids)}" for reason, ids in sorted(reasons.items())]
        for title, names in (("Left on the node", self.left), ("Changed on the node by others", self.changed)):
            if names:
                lines += ["", f"{title}:", *(f"  {name}" for name in names)]
        return "\n".join(lines) + "\n"


def _different(result: Result) -> list[str]:
    request, answer = result.request, result.answer
    lines = [f"{result.id} (facts {result.facts})"]
    lines += [f"  {difference}" for difference in result.differences]
    lines.append(
        f"  request: {request['method']} {request['path']} {json.dumps(request['parameters'])} by {request['as']}"
    )
    if answer:
        lines.append(f"  answer:  {answer['status']} {answer['reason']}: {answer['body']}")
    return lines
