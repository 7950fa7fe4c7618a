"""The one module that talks HTTP to Proxmox.

`Proxmox` gives typed answers. Reads are repeated when the way was bad (dropped connection, 595 to 599, 502 to 504) or
the guest was locked. Writes are repeated too, but never blindly: before a second attempt the guest is read again, and
when it is already as the write would leave it, nothing more is sent. What must not happen twice (an allocation) carries
the digest of the configuration it was planned on, so Proxmox itself refuses the repetition (facts proxmox 3).

Proxmox tells much in the reason phrase and, since 2025, in the body's `message` (facts proxmox 0): both are read.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from proxmox.connection import Connection
from proxmox.errors import (
    ApiError,
    AuthenticationFailed,
    ConfigChanged,
    LockTimeout,
    NoQuorum,
    NoSuchGuest,
    NotImplementedByServer,
    ParametersRejected,
    PermissionDenied,
    ProtectionOn,
    ProxmoxError,
    TaskFailed,
    TaskTimeout,
    TlsUntrusted,
    Unreachable,
    mask,
)
from proxmox.mountpoint import format_size

T = TypeVar("T")

_NOTHING = object()
"""The answer of a write that was found done and not sent again."""

_LOCKED = re.compile(r"can't lock file '[^']*' - got timeout|(?:CT|VM) is locked \(")
_NO_GUEST = re.compile(r"Configuration file '[^']*' does not exist|^(?:CT|VM) \d+ does not exist")
_NO_QUORUM = re.compile(r"no quorum\b|unable to open file '/etc/pve/[^']*' - Permission denied")
"""Calls that ask before (PVE::Cluster, check_cfs_quorum and cfs_lock), and those that find it out as they write."""
_QUORUM_REMEDY = "bring the other nodes back, or the network between them; see on a node: pvecm status. Then run again"
_TEMPLATE = "vztemplate"
_BAD_WAY = frozenset({502, 503, 504, 595, 596, 597, 598, 599})


@dataclass(frozen=True)
class Timings:
    """All deadlines and waits, in seconds.

    connect, read: of one request; retry: how long a bad way is tried again; first: the same, before the server has
    answered this process at all (a mistyped address is then told at once, and a node that reboots is waited for);
    lock: how long a locked guest is waited for; task: how long a task may take; poll: the longest pause between two
    attempts; look: that between two looks at a task, which somebody waits for.
    """

    connect: float = 10.0
    read: float = 60.0
    retry: float = 30.0
    first: float = 1.5
    lock: float = 120.0
    task: float = 900.0
    poll: float = 1.0
    look: float = 0.25
    first_poll: float = 0.05


@dataclass(frozen=True)
class Version:
    """`release` as told ("9.2"), `version` the package's ("9.2.11"), `major` as a number."""

    version: str
    release: str
    major: int


@dataclass(frozen=True)
class Node:
    """A cluster node. status: "online", "offline", or "unknown" while its statistics are missing.

    Only an offline one can't be asked. One is unknown from its start until its pvestatd has told once, and for as long
    as that hangs, while its API does all else (facts proxmox-9.2).
    """

    name: str
    status: str

    @property
    def offline(self) -> bool:
        return self.status == "offline"


@dataclass(frozen=True)
class Guest:
    """A guest in the cluster's list. `kind` is "lxc" or "qemu".

    The list lags by up to 10 s, so it tells no power state here (facts proxmox 12).
    """

    vmid: int
    kind: str
    node: str
    name: str
    template: bool
    lock: str | None


@dataclass(frozen=True)
class PendingEntry:
    """One key of a guest: what is in effect, what will be, and whether it will be deleted."""

    key: str
    value: str | None
    pending: str | None
    delete: bool


@dataclass(frozen=True)
class GuestStatus:
    """Power state and what goes with it."""

    running: bool
    lock: str | None
    uptime: int


@dataclass(frozen=True)
class Address:
    """An IP address. family: "inet" or "inet6"; prefix: its length in bits, or None when it is not told."""

    family: str
    address: str
    prefix: int | None


@dataclass(frozen=True)
class Interface:
    """A network interface of a running container."""

    name: str
    hwaddr: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class Storage:
    """A storage as one node sees it; sizes in bytes."""

    name: str
    kind: str
    content: frozenset[str]
    enabled: bool
    active: bool
    shared: bool
    total: int
    available: int


@dataclass(frozen=True)
class StoredVolume:
    """A volume, template or image in a storage's list; size in bytes."""

    volid: str
    content: str
    format: str
    size: int
    vmid: int | None


@dataclass(frozen=True)
class PastTask:
    """A task in a node's list. began: what sorts tasks of one node by their start; ok: ended, and well."""

    upid: str
    kind: str
    began: tuple[int, int]
    ok: bool


@dataclass(frozen=True)
class TaskEnd:
    """How a task that succeeded ended. `warnings` are the texts of its log that count as warnings."""

    upid: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Permissions:
    """What the token may do: path -> privilege -> whether it propagates (facts proxmox 12: 0 is granted, too)."""

    by_path: Mapping[str, Mapping[str, bool]]

    def at(self, path: str) -> frozenset[str]:
        """The privileges that hold at a path.

        The deepest path that is listed decides; from a path above only what propagates counts (facts proxmox 1).
        """
        if path in self.by_path:
            return frozenset(self.by_path[path])
        parts = [part for part in path.split("/") if part]
        for length in range(len(parts) - 1, -1, -1):
            above = "/" + "/".join(parts[:length])
            if above in self.by_path:
                return frozenset(name for name, propagates in self.by_path[above].items() if propagates)
        return frozenset()

    def inherited(self, path: str) -> frozenset[str]:
        """The privileges that hold for everything below a path."""
        if path not in self.by_path:
            return self.at(path)
        return frozenset(name for name, propagates in self.by_path[path].items() if propagates)


class _RetryError(Exception):
    """Inside this module: an attempt that may be made again. `locked`: because somebody holds the guest."""

    def __init__(self, error: ProxmoxError, *, locked: bool) -> None:
        self.error = error
        self.locked = locked
        super().__init__(str(error))


_GUARDS: dict[tuple[str, int], threading.RLock] = {}
_GUARDS_LOCK = threading.Lock()
_ANSWERED: set[str] = set()
"""The endpoints that have answered this process."""


class Proxmox:
    """Proxmox's API, with deadlines. Reads may be made from several threads; writes are one at a time per guest."""

    def __init__(
        self,
        connection: Connection,
        timings: Timings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.connection = connection
        self.timings = timings or Timings()
        self._clock = clock
        self._sleep = sleep
        from proxmox.transport import opened  # noqa: PLC0415 - 0.2 s that who asks nothing does without

        self._session, self._root = opened(connection, (self.timings.connect, self.timings.read))

    def __repr__(self) -> str:
        return f"Proxmox({self.connection.endpoint}, {self.connection.token_id})"

    @property
    def answered(self) -> bool:
        """Whether the server has answered this process yet."""
        return self.connection.endpoint in _ANSWERED

    def __enter__(self) -> Proxmox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def guard(self, vmid: int) -> threading.RLock:
        """The lock that serialises what this process does to one guest, whichever client it uses.

        Hold it around a read-plan-write. Other processes are kept apart by the digest that goes with each change.
        """
        with _GUARDS_LOCK:
            return _GUARDS.setdefault((self.connection.endpoint, vmid), threading.RLock())

    # One request, and how it is repeated.

    def _send(self, method: str, path: Sequence[str | int], values: Mapping[str, Any] | None = None) -> Any:
        """One attempt. Raises _RetryError for what may be tried again, else the package's errors."""
        from proxmox import transport  # noqa: PLC0415 - see __init__

        shown = f"{method} /{'/'.join(str(part) for part in path)}"
        resource = self._root([str(part) for part in path])
        try:
            answer = getattr(resource, method.lower())(**dict(values or {}))
        except transport.Answered as error:
            _ANSWERED.add(self.connection.endpoint)
            raise _api_error(shown, error) from None
        except transport.Untrusted as error:
            if isinstance(_innermost(error), _CLOSED):
                raise _RetryError(self._unreachable(shown, _cause(error)), locked=False) from None
            raise self._untrusted(error) from None
        except transport.Redirected:
            raise self._unreachable(shown, "the server redirects to another address") from None
        except transport.BAD_WAY as error:
            raise _RetryError(self._unreachable(shown, _cause(error)), locked=False) from None
        _ANSWERED.add(self.connection.endpoint)
        return answer

    def _unreachable(self, shown: str, why: str) -> Unreachable:
        endpoint = self.connection.endpoint
        return Unreachable(
            f"{endpoint} did not answer {shown}",
            mask(why, self.connection.token_secret.get_secret_value()),
            f"check that the node is up and the endpoint right: curl -k {endpoint}/",
        )

    def _untrusted(self, error: Exception) -> TlsUntrusted:
        endpoint = self.connection.endpoint
        if self.connection.fingerprint:
            rule = "the fingerprint in the settings is not the server's"
        elif self.connection.ca_file:
            rule = f"{self.connection.ca_file} does not vouch for it"
        else:
            rule = "the system's certificates do not vouch for it"
        return TlsUntrusted(
            f"The server at {endpoint} is not proved to be yours",
            f"{rule}: {_cause(error)}",
            "copy /etc/pve/pve-root-ca.pem from the node and name it in PROXMOX_VE_CA_FILE; compare: pvenode cert info",
        )

    def _repeat(self, attempt: Callable[[], T], done: Callable[[], T | None] | None = None) -> T:
        """`attempt` until it succeeds, within the deadlines; before a repetition `done` may give the result instead."""
        retrying = Retrying(
            retry=retry_if_exception_type(_RetryError),
            stop=self._too_late(),
            wait=wait_exponential(self.timings.first_poll, self.timings.poll) + wait_random(0, self.timings.first_poll),
            sleep=self._sleep,
            reraise=True,
        )

        def once() -> T:
            if done is not None and retrying.statistics["attempt_number"] > 1:
                result = done()
                if result is not None:
                    return result
            return attempt()

        try:
            return retrying(once)
        except _RetryError as last:
            raise last.error from None

    def _too_late(self) -> Callable[[RetryCallState], bool]:
        """Whether the next attempt would come too late.

        The time runs from the first failure: a request that took its full time before it failed must have its second
        look, since its effect may be there.
        """
        first_failure: list[float] = []

        def stop(state: RetryCallState) -> bool:
            if not first_failure:
                first_failure.append(self._clock())
            error = state.outcome.exception() if state.outcome else None
            locked = isinstance(error, _RetryError) and error.locked
            way = self.timings.retry
            if not self.answered:
                way = min(way, self.timings.first)
            limit = self.timings.lock if locked else way
            return self._clock() - first_failure[0] + state.upcoming_sleep > limit

        return stop

    def _get(self, *path: str | int, **query: Any) -> Any:
        return self._repeat(lambda: self._send("GET", path, query))

    def _write(
        self, method: str, path: Sequence[str | int], values: Mapping[str, Any] | None, done: Callable[[], bool]
    ) -> Any:
        """A write. `done` reads whether its effect is there; it is asked before every repetition."""
        return self._repeat(lambda: self._send(method, path, values), lambda: _NOTHING if done() else None)

    # Reads.

    def version(self) -> Version:
        """Version of the node that answers."""
        data = self._get("version")
        release = str(data["release"])
        return Version(str(data["version"]), release, int(release.partition(".")[0]))

    def permissions(self) -> Permissions:
        """The token's own effective permissions, as the server works them out."""
        data = self._get("access", "permissions") or {}
        return Permissions(
            {path: {name: bool(int(flag)) for name, flag in privileges.items()} for path, privileges in data.items()}
        )

    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the cluster, by name."""
        rows = self._get("nodes") or []
        found = (Node(row["node"], row.get("status") or "unknown") for row in rows)
        return tuple(sorted(found, key=lambda node: node.name))

    def quorate(self) -> bool:
        """Whether the cluster has its quorum; True of a node that is in none. Needs Sys.Audit on /."""
        rows = self._get("cluster", "status") or []
        return all(bool(int(row.get("quorate", 1))) for row in rows if row.get("type") == "cluster")

    def guests(self) -> tuple[Guest, ...]:
        """All guests that the token may see (VM.Audit), on all nodes, by number."""
        rows = self._get("cluster", "resources", type="vm") or []
        found = [
            Guest(
                int(row["vmid"]),
                str(row["type"]),
                str(row["node"]),
                str(row.get("name", "")),
                bool(row.get("template")),
                row.get("lock") or None,
            )
            for row in rows
        ]
        return tuple(sorted(found, key=lambda guest: guest.vmid))

    def vmid_taken(self, vmid: int) -> bool:
        """Whether any guest of the cluster has the number, also one that the token may not see (facts proxmox 12)."""
        try:
            self._get("cluster", "nextid", vmid=vmid)
        except ParametersRejected as error:
            if "already exists" in error.errors.get("vmid", ""):
                return True
            raise
        return False

    def guest_config(self, node: str, vmid: int, kind: str = "lxc", *, current: bool = True) -> dict[str, str]:
        """The configuration as texts, digest included. `current` leaves out what is pending. Raises NoSuchGuest.

        Raw `lxc.` lines, which Proxmox gives as pairs, are joined under the key "lxc".
        """
        data = self._get("nodes", node, kind, vmid, "config", **({"current": 1} if current else {}))
        return {key: _text(value) for key, value in data.items()}

    def guest_pending(self, node: str, vmid: int, kind: str = "lxc") -> tuple[PendingEntry, ...]:
        """Every key with what is in effect and what is pending, by name. Raises NoSuchGuest."""
        rows = self._get("nodes", node, kind, vmid, "pending") or []
        entries = [
            PendingEntry(
                str(row["key"]),
                _text(row["value"]) if "value" in row else None,
                _text(row["pending"]) if "pending" in row else None,
                bool(int(row.get("delete") or 0)),
            )
            for row in rows
        ]
        return tuple(sorted(entries, key=lambda entry: entry.key))

    def guest_status(self, node: str, vmid: int, kind: str = "lxc") -> GuestStatus:
        """Power state of a guest. Raises NoSuchGuest."""
        data = self._get("nodes", node, kind, vmid, "status", "current")
        return GuestStatus(data.get("status") == "running", data.get("lock") or None, int(data.get("uptime") or 0))

    def guest_snapshots(self, node: str, vmid: int, kind: str = "lxc") -> tuple[str, ...]:
        """Names of a guest's snapshots. Raises NoSuchGuest."""
        rows = self._get("nodes", node, kind, vmid, "snapshot") or []
        return tuple(sorted(str(row["name"]) for row in rows if row["name"] != "current"))

    def snapshot_config(self, node: str, vmid: int, name: str, kind: str = "lxc") -> dict[str, str]:
        """The configuration that a snapshot keeps."""
        data = self._get("nodes", node, kind, vmid, "snapshot", name, "config")
        return {key: _text(value) for key, value in data.items()}

    def interfaces(self, node: str, vmid: int) -> tuple[Interface, ...]:
        """Network interfaces of a running container, loopback included; none for a stopped one."""
        rows = self._get("nodes", node, "lxc", vmid, "interfaces") or []
        return tuple(
            Interface(str(row["name"]), str(row.get("hwaddr") or row.get("hardware-address") or ""), _addresses(row))
            for row in rows
        )

    def storages(self, node: str) -> tuple[Storage, ...]:
        """The storages of a node that the token may see."""
        rows = self._get("nodes", node, "storage") or []
        found = [
            Storage(
                str(row["storage"]),
                str(row.get("type", "")),
                frozenset(filter(None, str(row.get("content", "")).split(","))),
                bool(int(row.get("enabled", 1))),
                bool(int(row.get("active", 1))),
                bool(int(row.get("shared") or 0)),
                int(row.get("total") or 0),
                int(row.get("avail") or 0),
            )
            for row in rows
        ]
        return tuple(sorted(found, key=lambda storage: storage.name))

    def storage_content(
        self, node: str, storage: str, *, content: str | None = None, vmid: int | None = None
    ) -> tuple[StoredVolume, ...]:
        """What lies on a storage, as far as the token may see it (facts proxmox 4). By name."""
        query = {key: value for key, value in (("content", content), ("vmid", vmid)) if value is not None}
        rows = self._get("nodes", node, "storage", storage, "content", **query) or []
        found = [
            StoredVolume(
                str(row["volid"]),
                str(row.get("content", "")),
                str(row.get("format", "")),
                int(row.get("size") or 0),
                int(row["vmid"]) if row.get("vmid") is not None else None,
            )
            for row in rows
        ]
        return tuple(sorted(found, key=lambda volume: volume.volid))

    def networks(self, node: str) -> dict[str, str] | None:
        """The node's bridges and the vnets of software-defined networks, those that the token may see, by name.

        The value is Proxmox's type, `vnet` for one of those. None when the server does not tell.
        """
        try:
            rows = self._get("nodes", node, "network", type="any_bridge") or []
        except (PermissionDenied, NotImplementedByServer, ParametersRejected):
            return None
        return {str(row["iface"]): str(row.get("type", "bridge")) for row in rows if "iface" in row}

    # Tasks.

    def wait_task(self, upid: str, deadline: float | None = None) -> TaskEnd:
        """Wait until a task has ended; `deadline` in seconds, Timings.task by default.

        OK and WARNINGS are success (facts proxmox 13). Raises TaskFailed with the last lines of the log, TaskTimeout.
        """
        node = _task_node(upid)
        limit = self.timings.task if deadline is None else deadline
        start = self._clock()
        pause = self.timings.first_poll
        while True:
            data = self._get("nodes", node, "tasks", upid, "status")
            if data.get("status") == "stopped":
                break
            if self._clock() - start + pause > limit:
                raise TaskTimeout(_task_name(upid), limit, self.task_log(upid))
            self._sleep(pause)
            pause = min(pause * 1.5, self.timings.look)
        exit_status = str(data.get("exitstatus") or "no exit status")
        if exit_status == "OK":
            return TaskEnd(upid, ())
        log = self.task_log(upid)
        if exit_status.startswith("WARNINGS"):
            told = tuple(line for line in log if line.startswith("WARN"))
            return TaskEnd(upid, told or (exit_status,))
        remedy = _QUORUM_REMEDY if _NO_QUORUM.search(exit_status) else ""
        raise TaskFailed(_task_name(upid), exit_status, log[-12:], remedy)

    def task_log(self, upid: str, lines: int = 200) -> tuple[str, ...]:
        """The last lines of a task's log; empty when it cannot be read, because it only explains."""
        try:
            return self.task_lines(upid)[-lines:]
        except ProxmoxError:
            return ()

    def task_lines(self, upid: str) -> tuple[str, ...]:
        """A task's log, of which the token may read its own and, with Sys.Audit, any (facts proxmox 13)."""
        rows = self._get("nodes", _task_node(upid), "tasks", upid, "log", start=0, limit=5000) or []
        texts = [str(row.get("t", "")) for row in rows]
        return tuple(mask(text) for text in texts if text not in ("", "no content"))

    def guest_tasks(self, node: str, vmid: int, kind: str) -> tuple[PastTask, ...]:
        """A node's tasks of one kind on one guest, ended or not, newest first: those that the token may see."""
        rows = self._get("nodes", node, "tasks", vmid=vmid, typefilter=kind, source="all", limit=500) or []
        found = [
            PastTask(
                str(row["upid"]),
                kind,
                _task_began(str(row["upid"])),
                re.fullmatch(r"OK|WARNINGS: \d+", str(row.get("status") or "")) is not None,
            )
            for row in rows
            if row.get("type") == kind
        ]
        return tuple(sorted(found, key=lambda task: task.began, reverse=True))

    def wait_unlocked(self, node: str, vmid: int) -> None:
        """Wait until nothing holds a container, for Timings.lock at most; returns in any case."""
        start = self._clock()
        pause = self.timings.first_poll
        while self.guest_status(node, vmid).lock is not None and self._clock() - start + pause <= self.timings.lock:
            self._sleep(pause)
            pause = min(pause * 1.5, self.timings.poll)

    def _task(self, answer: object, deadline: float | None = None) -> TaskEnd:
        """The end of what a call gave back: a task, or nothing when it had ended at once."""
        if isinstance(answer, str) and answer.startswith("UPID:"):
            return self.wait_task(answer, deadline)
        return TaskEnd("", ())

    # Writes.

    def set_config(
        self,
        node: str,
        vmid: int,
        options: Mapping[str, str],
        delete: Iterable[str] = (),
        *,
        done: Callable[[], bool],
        digest: str | None = None,
    ) -> None:
        """Change a container's configuration.

        `done` reads whether the change is there. With `digest` Proxmox refuses when the configuration is no longer the
        one that the change was planned on; that, too, is success when `done` says so, else ConfigChanged is raised.
        """
        values: dict[str, str] = dict(options)
        removed = ",".join(delete)
        if removed:
            values["delete"] = removed
        if digest:
            values["digest"] = digest
        try:
            self._write("PUT", ("nodes", node, "lxc", vmid, "config"), values, done)
        except ConfigChanged:
            if not done():
                raise

    def start(self, node: str, vmid: int) -> TaskEnd:
        """Start a container and wait until it runs. One that runs already is left alone."""
        return self._power(node, vmid, "start", {}, running=True)

    def stop(self, node: str, vmid: int) -> TaskEnd:
        """Kill a container. One that is stopped already is left alone."""
        return self._power(node, vmid, "stop", {}, running=False)

    def shutdown(self, node: str, vmid: int, timeout: int) -> TaskEnd:
        """Shut a container down; after `timeout` seconds it is killed."""
        values = {"forceStop": 1, "timeout": timeout}
        return self._power(node, vmid, "shutdown", values, running=False, deadline=timeout + self.timings.lock)

    def _power(
        self,
        node: str,
        vmid: int,
        verb: str,
        values: Mapping[str, Any],
        *,
        running: bool,
        deadline: float | None = None,
    ) -> TaskEnd:
        already = re.compile(r"already running" if running else r"not running")

        def done() -> TaskEnd | None:
            return TaskEnd("", ()) if self.guest_status(node, vmid).running is running else None

        def attempt() -> TaskEnd:
            try:
                answer = self._send("POST", ("nodes", node, "lxc", vmid, "status", verb), values)
                return self._task(answer, deadline)
            except (ApiError, TaskFailed) as error:
                text = error.reason if isinstance(error, ApiError) else error.exit_status
                if isinstance(error, TaskFailed) and _LOCKED.search(text):
                    raise _RetryError(error, locked=True) from None
                # Somebody was faster: that is what was wanted (facts field-reports B14).
                there = done() if already.search(text) else None
                if there is None:
                    raise
                return there

        return self._repeat(attempt, done)

    def has_feature(self, node: str, vmid: int, feature: str) -> bool:
        """Whether all volumes of a container can be part of a `snapshot`, a (linked) `clone` or a `copy`."""
        data = self._get("nodes", node, "lxc", vmid, "feature", feature=feature) or {}
        return bool(int(data.get("hasFeature") or 0))

    def create(self, node: str, vmid: int, options: Mapping[str, str]) -> TaskEnd:
        """Make a container from a template. A number that is taken is an ApiError; nobody's guest is taken over."""
        return self._make(node, vmid, ("nodes", node, "lxc"), {"vmid": vmid, **options}, options["description"])

    def clone(self, node: str, source: int, vmid: int, *, hostname: str, notes: str, storage: str | None) -> TaskEnd:
        """Clone a container, in full to a `storage`, or linked to its volumes where that is None.

        Proxmox locks the source for as long as it takes; then this waits, as with any lock.
        """
        values = {"newid": vmid, "hostname": hostname, "description": notes}
        values |= {"full": 0} if storage is None else {"full": 1, "storage": storage}
        return self._make(node, vmid, ("nodes", node, "lxc", source, "clone"), values, notes)

    def _make(self, node: str, vmid: int, path: Sequence[str | int], values: Mapping[str, Any], notes: str) -> TaskEnd:
        """A write that makes a guest. `notes`: its own alone, so that the guest is known before a repetition."""

        def done() -> TaskEnd | None:
            try:
                found = self.guest_config(node, vmid).get("description", "")
            except NoSuchGuest:
                return None
            if found.strip() != notes.strip():
                return None
            self.wait_unlocked(node, vmid)
            return TaskEnd("", ())

        answer = self._repeat(lambda: self._send("POST", path, values), done)
        return answer if isinstance(answer, TaskEnd) else self._task(answer)

    def make_template(self, node: str, vmid: int) -> None:
        """Turn a stopped container into a template. Proxmox answers at once and names no task (facts proxmox-9.2)."""
        before = {task.upid for task in self.guest_tasks(node, vmid, _TEMPLATE)}
        self._write("POST", ("nodes", node, "lxc", vmid, "template"), None, lambda: self._is_template(node, vmid))
        start, pause = self._clock(), self.timings.first_poll
        while not self._is_template(node, vmid):
            for task in self.guest_tasks(node, vmid, _TEMPLATE):
                if task.upid not in before:
                    self.wait_task(task.upid)
            if self._clock() - start > self.timings.task:
                raise TaskTimeout(f"{_TEMPLATE} of {vmid} on {node}", self.timings.task, ())
            self._sleep(pause)
            pause = min(pause * 1.5, self.timings.look)

    def _is_template(self, node: str, vmid: int) -> bool:
        return self.guest_config(node, vmid).get("template") == "1"

    def destroy(self, node: str, vmid: int) -> TaskEnd:
        """Destroy a stopped container, or a template, with its own volumes. One that is gone is left alone."""

        def done() -> TaskEnd | None:
            return None if any(guest.vmid == vmid for guest in self.guests()) else TaskEnd("", ())

        def attempt() -> TaskEnd:
            try:
                return self._task(self._send("DELETE", ("nodes", node, "lxc", vmid)))
            except NoSuchGuest:
                return TaskEnd("", ())

        return self._repeat(attempt, done)

    def resize(self, node: str, vmid: int, slot: str, size: int) -> TaskEnd:
        """Grow a mount point's volume to `size` bytes, the file system with it.

        The size is absolute, so a repetition does no harm. Proxmox refuses a smaller size and a foreign volume (facts
        proxmox 9).
        """
        values = {"disk": slot, "size": format_size(size)}
        try:
            return self._task(self._repeat(lambda: self._send("PUT", ("nodes", node, "lxc", vmid, "resize"), values)))
        except ApiError as error:
            if "already at specified size" in error.reason:
                return TaskEnd("", ())
            raise


def _addresses(row: Mapping[str, Any]) -> tuple[Address, ...]:
    """The addresses of an interface: from the list that has them all, or from the older pair of single ones."""
    listed = [
        Address(str(entry["ip-address-type"]), str(entry["ip-address"]), _prefix(entry.get("prefix")))
        for entry in row.get("ip-addresses") or []
    ]
    if listed:
        return tuple(listed)
    single = [(family, str(row[family]).partition("/")) for family in ("inet", "inet6") if row.get(family)]
    return tuple(Address(family, address, _prefix(prefix)) for family, (address, _, prefix) in single)


def _prefix(value: object) -> int | None:
    return int(str(value)) if value not in (None, "") else None


def _text(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(": ".join(str(part) for part in row) if isinstance(row, list) else str(row) for row in value)
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _task_node(upid: str) -> str:
    parts = upid.split(":")
    if len(parts) < 8 or parts[0] != "UPID" or not parts[1]:
        raise ProxmoxError(f"{upid!r} is not a task of Proxmox")
    return parts[1]


def _task_began(upid: str) -> tuple[int, int]:
    """Seconds since 1970, and the worker's own start, which tells two of one second apart (facts proxmox 13)."""
    parts = upid.split(":")
    return int(parts[4], 16), int(parts[3], 16)


def _task_name(upid: str) -> str:
    """ "vzstart of 105 on pve": what a person calls the task."""
    parts = upid.split(":")
    return f"{parts[5]} of {parts[6]} on {parts[1]}" if parts[6] else f"{parts[5]} on {parts[1]}"


_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""How a handshake ends that the other side closes: it depends on the versions of Python and OpenSSL."""


def _innermost(error: BaseException) -> BaseException:
    """The error that a network error began with."""
    seen: BaseException = error
    while True:
        inner = seen.__cause__ or seen.__context__
        if inner is None:
            inner = next((part for part in seen.args if isinstance(part, BaseException)), None)
        reason = getattr(seen, "reason", None)
        if inner is None and isinstance(reason, BaseException):
            inner = reason
        if inner is None or inner is seen:
            return seen
        seen = inner


def _cause(error: BaseException) -> str:
    """The innermost reason of a network error, without object addresses, URLs or bodies."""
    seen = _innermost(error)
    if isinstance(seen, ssl.SSLCertVerificationError):
        return seen.verify_message
    if isinstance(seen, _CLOSED):
        return "the connection was closed during the TLS handshake"
    if isinstance(seen, TimeoutError):
        return "no answer in time"
    if isinstance(seen, OSError) and seen.strerror:
        return seen.strerror
    text = re.sub(r"<[^>]*>:? ?", "", str(seen)).strip()
    return text or type(seen).__name__


_BY_STATUS: dict[int, tuple[type[ApiError], str]] = {
    400: (ParametersRejected, ""),
    401: (
        AuthenticationFailed,
        "check the token (user, realm, name, value, expiry): pveum user token list USER@REALM",
    ),
    403: (PermissionDenied, "grant the privilege that is named, to the token and to its user"),
    501: (NotImplementedByServer, "check the server's version; this program is made for Proxmox VE 8 and 9"),
}
_BY_TEXT: tuple[tuple[re.Pattern[str], type[ApiError], str], ...] = (
    (_NO_GUEST, NoSuchGuest, ""),
    (re.compile("protection mode enabled"), ProtectionOn, ""),
    (_NO_QUORUM, NoQuorum, _QUORUM_REMEDY),
    (
        re.compile("detected modified configuration"),
        ConfigChanged,
        "somebody else changes this guest: see who, then run again",
    ),
)
_LOCK_REMEDY = (
    "see what runs on the guest; a lock that a broken operation left is cleared on the node: pct unlock NUMBER"
)
_WAY_REMEDY = "check that the guest's node is up and can be reached from the node that answers"


def _api_error(shown: str, error: Any) -> ProxmoxError | _RetryError:
    """The package's error for an answer of 400 or more (facts proxmox 0)."""
    status = int(error.status_code)
    body = error.errors if isinstance(error.errors, dict) else {}
    # The body's text is whole; the reason phrase is only its first line, and some proxies drop it.
    reason = str(body.get("message") or error.content or error.status_message or "")
    details = body.get("errors")
    errors = {str(key): str(text) for key, text in details.items()} if isinstance(details, dict) else {}
    if _LOCKED.search("\n".join([reason, *errors.values()])):
        return _RetryError(LockTimeout(shown, status, reason, errors, _LOCK_REMEDY), locked=True)
    if status in _BAD_WAY:
        return _RetryError(ApiError(shown, status, reason, errors, _WAY_REMEDY), locked=False)
    if status in _BY_STATUS:
        kind, remedy = _BY_STATUS[status]
        return kind(shown, status, reason, errors, remedy)
    for pattern, kind, remedy in _BY_TEXT:
        if pattern.search(reason):
            return kind(shown, status, reason, errors, remedy)
    return ApiError(shown, status, reason, errors)
