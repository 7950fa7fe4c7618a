"""Faults on demand: what goes wrong on a real node, at a chosen request (issue 4).

The rules live in the lab's process. From outside they are set through ``<state_dir>/control.sock``, a Unix socket that
only root can open and that speaks no HTTP, so that no Proxmox client reaches it by accident; :class:`FaultControl` is
its client. Every fault that fired is a line of ``<state_dir>/faults.log``.

Kinds:

- ``delay``: hold the request for ``seconds`` before it is looked at.
- ``error``: answer ``status`` with ``text`` (595, 596, 599 too), ``when`` ``before`` or ``after`` the effect.
- ``drop``: close the connection without an answer, ``when`` ``before`` or ``after`` the effect.
- ``lock``: hold the guest's lock for ``seconds``; the guest is the one of the path, or ``vmid``.
- ``task``: a task ``result`` of ``fail`` (with ``text``; ``when`` before or after its effect), ``warn``, ``slow``
  (``seconds``) or ``endless``; ``task`` matches its type (``vzstart``), also for tasks that no request started.
- ``full``: the storage named by ``storage`` refuses to allocate.
- ``unknown``: the statistics of the ``node`` are missing: it is ``unknown``, as its guests and storages are.
- ``hung``: the pvestatd of the ``node`` hangs: what it said last is repeated for ``seconds`` (300), then nothing.
- ``started``: the ``node`` has just started, and has no statistics for ``seconds``, until its pvestatd tells them.
- ``offline``: the ``node`` does not answer, neither at its own address nor through another node, which says 595.
- ``inquorate``: the cluster has lost its quorum: what is there can be read, and no configuration can be written. A node
  that is offline does not bring that about: the cluster has a device that votes, so to speak.

``unknown``, ``hung``, ``offline`` and ``inquorate`` hold until they are cleared; the others fire ``count`` times.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pvelab.control import Operation, send
from pvelab.errors import TaskAbortedError
from pvelab.runtime import RuntimeFault
from pvelab.tasks import Interception, Task, Upid

KINDS = ("delay", "error", "drop", "lock", "task", "full", "unknown", "hung", "started", "offline", "inquorate")


@dataclass
class Rule:
    """One fault. It fires on at most ``count`` matches (None: all), after ``skip`` matches, with ``probability``."""

    kind: Literal[
        "delay", "error", "drop", "lock", "task", "full", "unknown", "hung", "started", "offline", "inquorate"
    ]
    method: str = ".*"
    path: str = ".*"
    task: str = ".*"
    count: int | None = 1
    skip: int = 0
    probability: float = 1.0
    when: Literal["before", "after"] = "before"
    seconds: float = 0.0
    status: int = 500
    text: str = "injected fault"
    result: Literal["fail", "warn", "slow", "endless"] = "fail"
    storage: str = ".*"
    node: str = ".*"
    vmid: int | None = None
    id: int = 0
    matched: int = 0
    fired: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of fault: {self.kind!r}")
        if self.when not in ("before", "after"):
            raise ValueError(f"'when' is before or after, not {self.when!r}")
        if self.result not in ("fail", "warn", "slow", "endless"):
            raise ValueError(f"unknown result of a task: {self.result!r}")
        for expression in (self.method, self.path, self.task, self.storage, self.node):
            re.compile(expression)


@dataclass
class Faults:
    """The rules of one lab. ``seed`` makes probabilities repeat exactly for the same order of requests."""

    log_file: Path
    rules: list[Rule] = field(default_factory=list)
    seed: int = 0
    on_clear: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(self.seed)  # noqa: S311 - repeatable on purpose
        self._next = 1
        self._origin = threading.local()

    def add(self, rule: Rule) -> int:
        with self._lock:
            rule.id, self._next = self._next, self._next + 1
            self.rules.append(rule)
            return rule.id

    def clear(self) -> None:
        """Drop every rule and let go of the locks that rules hold."""
        with self._lock:
            self.rules.clear()
        self.on_clear()

    def reseed(self, seed: int) -> None:
        with self._lock:
            self.seed = seed
            self._random.seed(seed)

    # --- where faults happen ---

    def for_request(self, method: str, path: str) -> list[Rule]:
        """The request rules that fire now; ``path`` is the one below ``/api2/json``."""
        if not self.rules:
            return []
        return self._fire(
            lambda rule: (
                rule.kind in ("delay", "error", "drop", "lock")
                and bool(re.fullmatch(rule.method, method))
                and bool(re.search(rule.path, path))
            ),
            f"{method} {path}",
        )

    @contextlib.contextmanager
    def serving(self, method: str, path: str) -> Iterator[None]:
        """Marks this thread as at work for a request, so that task rules can name it."""
        self._origin.request = (method, path)
        try:
            yield
        finally:
            self._origin.request = None

    def storage_full(self, storage: str) -> bool:
        if not self.rules:
            return False
        return bool(self._fire(lambda rule: rule.kind == "full" and bool(re.fullmatch(rule.storage, storage)), storage))

    def statistics(self, node: str) -> tuple[str, float] | None:
        """What is the matter with a node's pvestatd now, and for how many seconds."""
        if not self.rules:
            return None
        if self.offline(node):
            return "hung", 0.0  # what it told last stays until it is too old
        rules = self._fire(lambda rule: rule.kind == "started" and bool(re.fullmatch(rule.node, node)), node)
        rules = rules or self._holding(("unknown", "hung"), node)
        return (rules[0].kind, rules[0].seconds) if rules else None

    def offline(self, node: str) -> bool:
        """Whether a node does not answer."""
        return bool(self.rules and self._holding(("offline",), node))

    def inquorate(self) -> bool:
        """Whether the cluster has lost its quorum."""
        return bool(self.rules and self._holding(("inquorate",), "cluster"))

    def _holding(self, kinds: tuple[str, ...], node: str) -> list[Rule]:
        """The first rule of these kinds that holds now, at most; the log has it once."""
        with self._lock:
            for rule in self.rules:
                if rule.kind in kinds and (rule.kind == "inquorate" or re.fullmatch(rule.node, node)):
                    if not rule.fired:
                        self._note(rule, node)
                    return [rule]
        return []

    def intercept(self, upid: Upid) -> Interception | None:
        """What to run before and after a task's own work."""
        if not self.rules:
            return None
        method, path = getattr(self._origin, "request", None) or ("", "")
        rules = self._fire(
            lambda rule: (
                rule.kind == "task"
                and bool(re.fullmatch(rule.task, upid.type))
                and (rule.method == ".*" or bool(re.fullmatch(rule.method, method)))
                and (rule.path == ".*" or bool(re.search(rule.path, path)))
                and (rule.vmid is None or str(rule.vmid) == upid.id)
            ),
            str(upid),
        )
        if not rules:
            return None
        before = [rule for rule in rules if rule.when == "before"]
        after = [rule for rule in rules if rule.when == "after"]
        return Interception(lambda task: _disturb(task, before), lambda task: _disturb(task, after))

    def _fire(self, matches: Callable[[Rule], bool], subject: str) -> list[Rule]:
        fired: list[Rule] = []
        with self._lock:
            for rule in self.rules:
                if (rule.count is not None and rule.fired >= rule.count) or not matches(rule):
                    continue
                rule.matched += 1
                if rule.matched <= rule.skip or self._random.random() >= rule.probability:
                    continue
                fired.append(rule)
                self._note(rule, subject)
        return fired

    def _note(self, rule: Rule, subject: str) -> None:
        rule.fired += 1
        entry = {"time": round(time.time(), 3), "rule": rule.id, "kind": rule.kind, "subject": subject}
        with self.log_file.open("a") as handle:
            handle.write(json.dumps(entry) + "\n")

    def fired(self) -> list[dict[str, Any]]:
        """The log of what fired, oldest first."""
        if not self.log_file.exists():
            return []
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]


def _disturb(task: Task, rules: list[Rule]) -> None:
    for rule in rules:
        if rule.result == "warn":
            task.warn(rule.text)
        elif rule.result == "fail":
            raise RuntimeFault(rule.text)
        elif task.aborted.wait(rule.seconds if rule.result == "slow" else None):
            raise TaskAbortedError


# --- from outside -----------------------------------------------------------------------------------------------------


def operations(faults: Faults) -> dict[str, Operation]:
    """What the control socket offers about faults."""

    def add(order: dict[str, Any]) -> dict[str, Any]:
        return {"id": faults.add(Rule(**order["rule"]))}

    def clear(_order: dict[str, Any]) -> dict[str, Any]:
        faults.clear()
        return {}

    def seed(order: dict[str, Any]) -> dict[str, Any]:
        faults.reseed(int(order["seed"]))
        return {}

    return {
        "add": add,
        "clear": clear,
        "seed": seed,
        "list": lambda _order: {"rules": [asdict(rule) for rule in faults.rules]},
        "fired": lambda _order: {"fired": faults.fired()},
    }


class FaultControl:
    """Sets faults in a lab that runs in another process; ControlError when it refuses or does not run.

    >>> FaultControl(state_dir).add(kind="error", method="PUT", path="/config$", status=596, text="Broken pipe")
    """

    def __init__(self, state_dir: Path, timeout: float = 5.0) -> None:
        self._state_dir = state_dir
        self._timeout = timeout

    def _send(self, operation: str, **order: Any) -> dict[str, Any]:
        return send(self._state_dir, operation, self._timeout, **order)

    def add(self, **rule: Any) -> int:
        """Add a rule (the fields of :class:`Rule`) and return its number."""
        known = {entry.name for entry in fields(Rule)}
        if unknown := set(rule) - known:
            raise ValueError(f"unknown fields of a fault: {', '.join(sorted(unknown))}")
        return int(self._send("add", rule=rule)["id"])

    def clear(self) -> None:
        self._send("clear")

    def seed(self, seed: int) -> None:
        self._send("seed", seed=seed)

    def rules(self) -> list[dict[str, Any]]:
        return list(self._send("list")["rules"])

    def fired(self) -> list[dict[str, Any]]:
        return list(self._send("fired")["fired"])
