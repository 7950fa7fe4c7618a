"""Hold a node against the contract: look whether it may be, run case by case, and leave nothing."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any
from urllib.parse import quote

from pvelab.conformance import contract
from pvelab.conformance.client import Client, ClientError
from pvelab.conformance.judge import Answer, differences
from pvelab.conformance.names import VMIDS, Names
from pvelab.conformance.report import Report, Result
from pvelab.conformance.scope import Scope
from pvelab.conformance.world import RefusedError, World
from pvelab.release import DEFAULT, RELEASES

UNLOCKED = "unlocked-for-conformance"
"""The pool that the node's owner makes on it: the second lock."""
_LOCK = "a lock that only `pct unlock` on the node takes away"
_STORAGES = ("shared", "off", "away")
# Lists that hold what the node's owner and other cases have, too: what was there before the case is left out.
_BELONGINGS = ("/access/acl", "/access/users", "/access/groups", "/access/roles", "/pools")


class NotAllowedError(Exception):
    """The node may not be used, or lacks what every case needs; nothing was changed."""


class InterruptedRunError(Exception):
    """A signal asked for the end."""


@dataclass(frozen=True)
class Options:
    """What a run was asked for."""

    node: str
    first: int
    last: int
    prefix: str
    storage: str
    bridge: str
    template: str | None
    deadline: float
    """Seconds for all cases; the cleaning after them is not counted."""
    only: Sequence[str] = ()
    """Ids of cases; empty: all."""


@dataclass(frozen=True)
class Facts:
    """What the node has, that some cases need."""

    version: str
    storages: frozenset[str]
    vnets: frozenset[str]
    cluster: bool


def enter(client: Client, options: Options, password: str) -> tuple[World, Facts]:
    """Log in and look: NotAllowedError unless the node is unlocked, has no guest and what the cases need."""
    names = Names(
        options.node, tuple(range(options.first, options.first + len(VMIDS))), options.prefix, options.storage, "", "",
        options.bridge, options.template or "",
    )  # fmt: skip
    world = World(client, names, Scope(options.node, options.first, options.last, options.prefix))
    world.log_in(password)
    if options.node not in {row["node"] for row in world.ask("/nodes")}:
        raise NotAllowedError(f"there is no node {options.node!r}")
    if UNLOCKED not in {row["poolid"] for row in world.ask("/pools")}:
        raise NotAllowedError(
            f"the node is locked. Its owner unlocks it by a pool: pvesh create /pools --poolid {UNLOCKED}"
        )
    strange = sorted(row["vmid"] for row in world.guests() if not world.scope.has_guest(row["vmid"]))
    if strange:
        raise NotAllowedError(f"the node is not empty: it has the guests {', '.join(map(str, strange))}")
    version = world.ask("/version")["version"]
    found = {row["storage"]: row for row in world.ask("/storage")}
    own = found.get(options.storage)
    if own is None or own["type"] != "lvmthin":
        raise NotAllowedError(f"the cases need LVM-thin; --storage {options.storage} is none")
    bridges = {row["iface"]: row for row in world.ask(f"{world.base}/network", {"type": "any_bridge"})}
    if options.bridge not in bridges:
        raise NotAllowedError(f"there is no bridge {options.bridge!r}")
    vnets = frozenset(name for name, row in bridges.items() if row["type"] == "vnet")
    clusters = [row["name"] for row in world.ask("/cluster/status") if row["type"] == "cluster"]
    world.names = Names(
        options.node, names.vmids, options.prefix, options.storage, own["vgname"], own["thinpool"], options.bridge,
        options.template or _template(world), "".join(clusters),
    )  # fmt: skip
    return world, Facts(version, frozenset(found), vnets, bool(clusters))


def _template(world: World) -> str:
    """The newest template of Debian 12 in ``local``."""
    found = world.ask(f"{world.base}/storage/local/content", {"content": "vztmpl"})
    fitting = sorted(row["volid"] for row in found if "/debian-12-standard_" in row["volid"])
    if not fitting:
        raise NotAllowedError(
            "the cases need a template of Debian 12: pveam update && pveam download local debian-12-standard_..."
        )
    return str(fitting[-1])


def hindrance(case: Mapping[str, Any], facts: Facts) -> str | None:
    """Why a case can't be run on one node, with the API alone, as it is; None: it can. ``case``: as in the tables."""
    text = repr(case)
    reasons = [
        (bool(case.get("faults")), "it needs a node that is down, or a cluster that has lost its quorum"),
        (bool(case.get("nodes")) or "pve2" in text, "it needs a second node"),
        ("intra01" in text and "intra01" not in facts.vnets, "it needs the vnet 'intra01' in the zone 'intra'"),
        (
            any("lock" in (changes or {}) for changes in case.get("guests", {}).values()),
            f"it starts from {_LOCK}",
        ),
        (case["call"].endswith("/rollback") and case["task"] != "OK", f"it leaves {_LOCK}"),
        (
            case["call"] == "GET /cluster/nextid" and "with" not in case,
            "the lowest free number may be outside of the range",
        ),
        ("clustername" in text and not facts.cluster, "it needs a cluster"),
        (_mounts(case), "it needs a file system on a volume without a guest"),
    ]
    for storage in sorted(set(_STORAGES) - facts.storages):
        named = any(name in text for name in (f"'{storage}:", f"/{storage}", f"'storage': '{storage}'"))
        reasons.append((named, f"it needs the storage {storage!r}"))
    return next((reason for holds, reason in reasons if holds), None)


def _mounts(case: Mapping[str, Any]) -> bool:
    """Whether something mounts a volume whose owner is no guest."""
    calls = (case["call"], *case.get("before", []))
    starts = bool(case.get("running")) or any(text.endswith(("/status/start", "POST /nodes/pve/lxc")) for text in calls)
    used = repr((calls, case.get("with"), case.get("guests")))
    return starts and any(volid in used for volid in case.get("volumes", {}))


def clean_up(world: World) -> list[str]:
    """Remove what a run that was killed left, and answer what is still there.

    NotAllowedError, and nothing is removed, where no run with these bounds began.
    """
    if not world.has_mark():
        if left := world.within(world.inventory()):
            raise NotAllowedError(f"no run with these bounds began here: {', '.join(left)} is not its own")
        return []
    world.clean(everything=True)
    return world.within(world.inventory())


class Run:
    """All cases, one after the other."""

    def __init__(self, world: World, facts: Facts, options: Options, say: Callable[[str], None]) -> None:
        self._world, self._facts, self._options, self._say = world, facts, options, say
        self._cleaning = False
        major = facts.version.partition(".")[0]
        self._pve = major if major in RELEASES else DEFAULT

    def report(self, endpoint: str) -> Report:
        """Run and clean; whatever happens, the report says it."""
        world, began, started = self._world, datetime.now(UTC), time.monotonic()
        before = world.inventory()
        if old := world.within(before):
            first = "first run --clean-up" if world.has_mark() else "it is of no earlier run; choose other bounds"
            raise NotAllowedError(f"there is {', '.join(old)} within the bounds: {first}")
        results: list[Result] = []
        interrupted = ""
        with self._signals():
            try:
                world.set_mark()
                for result in self._results(started):
                    results.append(result)
            except InterruptedRunError as error:
                interrupted = str(error)
            except (ClientError, RefusedError) as error:
                interrupted = world.client.hide(str(error))
            self._cleaning = True
            left, changed, problem = self._leave(before)
            interrupted = interrupted or problem
        done = {result.id for result in results}
        rest = [case for case in self._cases() if case["id"] not in done]
        results += [Result(case["id"], case["facts"], "not run", "the run ended before it") for case in rest]
        return Report(
            RELEASES[self._pve].version, endpoint, self._options.node, self._facts.version,
            began.isoformat(timespec="seconds"), time.monotonic() - started, results, left, changed, interrupted,
        )  # fmt: skip

    def _leave(self, before: Mapping[str, set[str]]) -> tuple[list[str], list[str], str]:
        """Clean, then look: what is left, what others changed, and why it could not be cleaned."""
        world, problem = self._world, ""
        try:
            world.renew()
            world.clean(everything=True)
        except (ClientError, RefusedError) as error:
            problem = world.client.hide(f"the cleaning failed: {error}")
        try:
            after = world.inventory()
        except ClientError as error:
            return ["what there is can't be read"], [], problem or world.client.hide(str(error))
        left = world.within(after)
        both = {kind: (before[kind] ^ after[kind]) for kind in before}
        changed = [f"{kind} {name}" for kind, names in sorted(both.items()) for name in sorted(names)]
        return left, [name for name in changed if name not in left], problem

    def _cases(self) -> list[dict[str, Any]]:
        found = contract.cases(self._world.names.template, self._pve)
        return [case for case in found if not self._options.only or case["id"] in self._options.only]

    def _results(self, started: float) -> Iterator[Result]:
        for case in self._cases():
            if time.monotonic() - started > self._options.deadline:
                raise InterruptedRunError(f"the deadline of {self._options.deadline:.0f} s is over")
            self._world.renew()
            reason = hindrance(case, self._facts)
            result = Result(case["id"], case["facts"], "not run", reason) if reason else self._one(case)
            self._say(f"{result.outcome:10}{result.id}")
            yield result

    def _one(self, table_case: Mapping[str, Any]) -> Result:
        """One case, from preparing to cleaning."""
        world, case = self._world, self._world.names.case(table_case)
        method, path = case["call"].split(" ", 1)
        who, given = case.get("as", "demo"), case.get("json") or case.get("with")
        sent = case.get("raw_body", case.get("with"))
        request = {"method": method, "path": path, "as": who, "parameters": sent or given or {}}
        fixed: dict[str, Any] = {"id": case["id"], "facts": case["facts"]}
        # Whether it would reach outside is known before anything is made for it.
        if why := world.scope.outside(method, path, given or {}):
            return Result(**fixed, outcome="not run", reason=f"its request {why}")
        answer: Answer | None = None
        try:
            there = self._belongings(case)
            path = path.replace("$UPID", quote(world.prepare(case), safe=""))
            answer = world.call(who, method, path, sent, json_body=case.get("json"), headers=case.get("headers"))
            found = differences(case, _without(answer, there), world)
        except RefusedError as error:
            found = []
            fixed |= {"outcome": "not run", "reason": f"what it starts from can't be made: {error}"}
        except (ClientError, ValueError) as error:
            found = [f"no proper answer: {error}"]
        world.clean()
        shown = {"status": answer.status, "reason": answer.reason, "body": answer.text} if answer else {}
        if found:
            fixed |= {"differences": found, "request": request, "answer": shown}
        return Result(**{"outcome": "different" if found else "same", **world.client.hide(fixed)})

    def _belongings(self, case: Mapping[str, Any]) -> list[Any]:
        """The rows that a list has before the case; none for an answer that is no such list."""
        method, path = case["call"].split(" ", 1)
        who = case.get("as", "demo")
        lists = (*_BELONGINGS, f"{self._world.base}/tasks")
        if method != "GET" or path not in lists or "with" in case or "data" not in case or who == "custom":
            return []
        answer = self._world.call(who, method, path)
        return list(answer.body["data"]) if answer.status == 200 else []

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the cases, and never the cleaning."""

        def end(number: int, _frame: FrameType | None) -> None:
            if not self._cleaning:
                self._cleaning = True
                raise InterruptedRunError(signal.Signals(number).name)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _without(answer: Answer, rows: list[Any]) -> Answer:
    if not rows or answer.status != 200:
        return answer
    body = answer.body
    return replace(answer, text=json.dumps({**body, "data": [row for row in body["data"] if row not in rows]}))
