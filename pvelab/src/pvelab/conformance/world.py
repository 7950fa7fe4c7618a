"""A node as the cases see it: their guests, volumes and accounts are made, looked at and removed by the API alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

from pvelab.conformance.client import Client, ClientError
from pvelab.conformance.judge import Answer
from pvelab.conformance.names import Names
from pvelab.conformance.scope import ROOT, Scope

TASK_SECONDS = 300.0
TICKET_SECONDS = 3600.0
"""Half of what Proxmox gives a ticket (facts proxmox 1)."""
TOKEN = "conformance"  # noqa: S105 - its name
_AT_CREATE = ("hostname", "memory", "swap", "cores", "features", "net0", "unprivileged")
# Proxmox finds them itself.
_FOUND = ("arch", "ostype")
_SPARE = "mp255"
_VOLUME = re.compile(r"(?:rootfs|mp\d+|unused\d+)")


class RefusedError(Exception):
    """The node refuses what is to be made or removed, or the request would reach outside; the text says which."""


class World:
    """The node. Everything that changes it is within ``scope``; nothing else is sent."""

    def __init__(self, client: Client, names: Names, scope: Scope) -> None:
        self.client, self.names, self.scope = client, names, scope
        self.base = f"/nodes/{names.node}"
        self._root: dict[str, str] = {}
        self._password, self._since = "", 0.0
        self._active: set[str] | None = None
        self._logins: dict[str, dict[str, str]] = {"nothing": {}}

    # --- asking ---

    def log_in(self, password: str) -> None:
        """Be root; ClientError where the node refuses."""
        self.client.secrets.add(password)
        self._password, self._since = password, time.monotonic()
        answer = self.client.send("POST", "/access/ticket", {"username": ROOT, "password": password})
        if answer.status != 200:
            raise ClientError(f"{ROOT} is refused: {answer.status} {answer.reason}")
        try:
            data = answer.body["data"]
            if data.get("NeedTFA"):
                raise ClientError(f"{ROOT} has a second factor, which this command does not know")
            cookie, csrf = f"PVEAuthCookie={quote(data['ticket'])}", data["CSRFPreventionToken"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ClientError("what answers there is no Proxmox VE") from None
        self._root = self._logins["root"] = {"Cookie": cookie, "CSRFPreventionToken": csrf}

    def renew(self) -> None:
        """Log in again before the ticket ends; a whole run may take longer than it lasts."""
        if time.monotonic() - self._since > TICKET_SECONDS:
            self.log_in(self._password)

    def ask(self, path: str, given: Mapping[str, Any] | None = None) -> Any:
        """What root reads; ClientError with the refusal."""
        answer = self.client.send("GET", path, given, headers=self._root)
        if answer.status != 200:
            raise ClientError(f"GET {path}: {answer.status} {answer.reason}")
        return answer.body["data"]

    def call(
        self,
        who: str,
        method: str,
        path: str,
        given: Mapping[str, Any] | str | None = None,
        *,
        json_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A case's request. RefusedError for one that reaches outside of the scope; it is not sent."""
        named = dict(parse_qsl(given)) if isinstance(given, str) else given or {}
        if (why := self.scope.outside(method, path, {**named, **(json_body or {})})) is not None:
            raise RefusedError(f"{method} {path} {why}")
        sent = {**self.login(who), **(headers or {})}
        answer = self.client.send(method, path, given, json_body=json_body, headers=sent)
        if answer.status == 200 and method != "GET" and (upid := _upid(answer)):
            self.scope.tasks.add(upid)
        if answer.status == 200 and path.endswith("/template"):
            # Its task is told to nobody (facts proxmox-9.2, row 23).
            for hidden in self._running_tasks():
                self.task(hidden)
        return answer

    def do(self, method: str, path: str, given: Mapping[str, Any] | None = None) -> Any:
        """A request of root that must succeed, its task included; RefusedError with what it says otherwise."""
        answer = self.call("root", method, path, given)
        if answer.status != 200:
            raise RefusedError(f"{method} {path}: {answer.status} {answer.reason}")
        if upid := _upid(answer):
            end = self.task(upid)
            if end != "OK" and not end.startswith("WARNINGS"):
                raise RefusedError(f"{method} {path}: the task ended in {end!r}")
        return answer.body["data"]

    def login(self, who: str) -> dict[str, str]:
        """The headers of one of the cases' askers, who is made when first needed."""
        if who not in self._logins:
            userid = ROOT if who == "root-token" else self.names.text(f"{'tester' if who == 'demo' else who}@pve")
            token = {"root-token": f"{self.scope.prefix}token", "demo": "lab"}.get(who, TOKEN)
            if who not in ("root-token", "custom"):
                self.do("POST", "/access/users", {"userid": userid})
            given = {"privsep": 0} if who == "root-token" else {}
            value = self.do("POST", f"/access/users/{userid}/token/{token}", given)["value"]
            if who == "demo":
                for number, (path, privileges) in enumerate(self.names.account().items()):
                    self._grant("Demo", number, path, privileges, {"users": userid, "tokens": f"{userid}!{token}"})
            self._logins[who] = {"Authorization": f"PVEAPIToken={userid}!{token}={value}"}
        return self._logins[who]

    def _grant(self, name: str, number: int, path: str, privileges: Any, ugids: Mapping[str, str], **more: Any) -> None:
        role = f"{self.scope.prefix}{name}{number}"
        self.do("POST", "/access/roles", {"roleid": role, "privs": ",".join(privileges)})
        self.do("PUT", "/access/acl", {"path": path, "roles": role, **ugids, **more})

    # --- before a case ---

    def prepare(self, case: Mapping[str, Any]) -> str:
        """Make what the case starts from; RefusedError where it can't be made. The answer of the last call."""
        for vmid, options in case["guests"].items():
            self._create(vmid, options)
        for volid, size in {**case.get("volumes", {}), **case.get("raw", {})}.items():
            self._allocate(volid, f"{int(size * 1024)}M")
        for vmid, options in case["guests"].items():
            self._configure(vmid, options)
        for pool, members in case["pools"].items():
            self.do("POST", "/pools", {"poolid": pool})
            for vmid in members:
                self.do("PUT", "/pools", {"poolid": pool, "vms": vmid})
        if "acl" in case or case.get("as") == "custom":
            self._allow(case.get("acl", []))
        for vmid in case.get("running", []):
            self.do("POST", f"{self.base}/lxc/{vmid}/status/start")
        last = ""
        for text in case.get("before", []):
            method, path, *rest = text.split(" ", 2)
            last = str(self.do(method, path, dict(parse_qsl(rest[0], keep_blank_values=True)) if rest else None))
        return last

    def _create(self, vmid: int, options: Mapping[str, Any]) -> None:
        """The guest with its own volumes, each under the name that it has in the case."""
        volid, size = _own(vmid, options.get("rootfs")) or ("", "")
        if not volid:
            raise RefusedError(f"guest {vmid} has no root file system of its own")
        given = {key: options[key] for key in _AT_CREATE if options.get(key) is not None}
        given |= {"vmid": vmid, "ostemplate": self.names.template, "rootfs": f"{volid.partition(':')[0]}:{_gib(size)}"}
        self.do("POST", f"{self.base}/lxc", given)
        own = {key: found for key in options if key != "rootfs" and (found := _own(vmid, _volume(key, options)))}
        for key, (volid, size) in sorted(own.items(), key=lambda entry: entry[1]):
            if not self._formatted(vmid, key, volid, size, str(options[key])):
                self._allocate(volid, size)

    def _formatted(self, vmid: int, key: str, volid: str, size: str, option: str) -> bool:
        """Have Proxmox make the volume with a file system; False if it gives it another number than it is to have."""
        slot, parked = (_SPARE, key) if key.startswith("unused") else (key, "unused0")
        rest = re.sub(r",size=[^,]*", "", option.removeprefix(volid)) if slot == key else ",mp=/spare"
        self._set(vmid, {slot: f"{volid.partition(':')[0]}:{_gib(size)}{rest}"})
        made = str(self.ask(f"{self.base}/lxc/{vmid}/config")[slot]).partition(",")[0]
        if made == volid and slot == key:
            return True
        self._set(vmid, {"delete": slot})
        now = self.ask(f"{self.base}/lxc/{vmid}/config")
        if made == volid and now.get(parked) == volid:
            return True
        self._set(vmid, {"delete": next(name for name, value in now.items() if value == made)})
        return False

    def _configure(self, vmid: int, options: Mapping[str, Any]) -> None:
        """The rest of its options: volumes that are there by now, and what was not given to the create."""
        path = f"{self.base}/lxc/{vmid}/config"
        now = _texts(self.ask(path))
        rest = {key: value for key, value in options.items() if value is not None and key not in (*_AT_CREATE, *_FOUND)}
        lacking = {key: value for key, value in rest.items() if _without_size(now.get(key)) != _without_size(value)}
        is_template, protection = lacking.pop("template", None), lacking.pop("protection", None)
        for given in (lacking, {} if protection is None else {"protection": protection}):
            if given:
                self._set(vmid, given)
                now = _texts(self.ask(path))
        for key, value in options.items():
            if _without_size(now.get(key)) != _without_size(value) and key not in ("template", "protection"):
                raise RefusedError(f"guest {vmid} has {key} {now.get(key)!r} where the case starts from {value!r}")
        if is_template:
            self.do("POST", f"{self.base}/lxc/{vmid}/template")
            self._until(lambda: "template" in self.ask(path), f"guest {vmid} is no template")

    def _set(self, vmid: int, given: Mapping[str, Any]) -> None:
        self.do("PUT", f"{self.base}/lxc/{vmid}/config", given)

    def _allocate(self, volid: str, size: str) -> None:
        storage, _, name = volid.partition(":")
        owner = re.findall(r"(?:vm|base)-(\d+)-", name)[0]
        given = {"vmid": owner, "filename": name.rpartition("/")[2], "size": size}
        if name.endswith(".raw"):
            given["format"] = "raw"
        self.do("POST", f"{self.base}/storage/{storage}/content", given)

    def _allow(self, grants: list[dict[str, Any]]) -> None:
        userid = self.names.text("custom@pve")
        self.do("POST", "/access/users", {"userid": userid})
        self.login("custom")
        ugids = {"users": userid, "tokens": f"{userid}!{TOKEN}"}
        for number, grant in enumerate(grants):
            only = {"user": ("users",), "token": ("tokens",)}.get(str(grant.get("only")), ("users", "tokens"))
            chosen = {kind: ugids[kind] for kind in only}
            propagate = int(grant.get("propagate", True))
            self._grant("Custom", number, grant["path"], grant["privs"], chosen, propagate=propagate)

    # --- after a case ---

    def task(self, upid: str) -> str:
        path = f"/nodes/{upid.split(':')[1]}/tasks/{quote(upid, safe='')}/status"
        seen: dict[str, Any] = {}

        def ended() -> bool:
            seen.update(self.ask(path))
            return bool(seen["status"] == "stopped")

        self._until(ended, f"the task {upid} does not end")
        self.scope.tasks.discard(upid)
        return str(seen["exitstatus"])

    def _until(self, holds: Any, otherwise: str) -> None:
        """Ask again until it holds; ClientError after the tasks' deadline."""
        deadline, pause = time.monotonic() + TASK_SECONDS, 0.002
        while not holds():
            if time.monotonic() > deadline:
                raise ClientError(f"{otherwise} after {TASK_SECONDS:.0f} s")
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)

    def log(self, upid: str) -> list[str]:
        path = f"/nodes/{upid.split(':')[1]}/tasks/{quote(upid, safe='')}/log"
        return [line["t"] for line in self.ask(path, {"limit": 100_000})]

    def options(self, vmid: int) -> dict[str, str] | None:
        answer = self.client.send("GET", f"{self.base}/lxc/{vmid}/config", {"current": 1}, headers=self._root)
        return _texts(answer.body["data"]) if answer.status == 200 else None

    def pending(self, vmid: int) -> dict[str, str]:
        rows = self.ask(f"{self.base}/lxc/{vmid}/pending")
        waiting = _texts({row["key"]: row["pending"] for row in rows if "pending" in row})
        gone = sorted(row["key"] for row in rows if row.get("delete"))
        return {**waiting, **({"delete": ",".join(gone)} if gone else {})}

    def snapshot(self, vmid: int, name: str) -> dict[str, str] | None:
        if name not in {row["name"] for row in self.ask(f"{self.base}/lxc/{vmid}/snapshot")}:
            return None
        return _texts(self.ask(f"{self.base}/lxc/{vmid}/snapshot/{name}/config"))

    def has_volume(self, volid: str) -> bool | None:
        storage, _, name = volid.partition(":")
        if name.startswith("snap_"):
            return None  # no list of the API has it
        return volid in {row["volid"] for row in self.ask(f"{self.base}/storage/{storage}/content")}

    def is_up(self, vmid: int) -> bool:
        answer = self.client.send("GET", f"{self.base}/lxc/{vmid}/status/current", headers=self._root)
        return bool(answer.status == 200 and answer.body["data"]["status"] == "running")

    # --- what is there ---

    def guests(self) -> list[dict[str, Any]]:
        """All guests of the cluster, of both kinds."""
        return list(self.ask("/cluster/resources", {"type": "vm"}))

    def volumes(self, storages: set[str] | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Each volume with its storage; all storages that answer, or those of the named ones that do."""
        if storages is None or self._active is None:
            self._active = {row["storage"] for row in self.ask(f"{self.base}/storage") if row.get("active")}
        chosen = self._active if storages is None else self._active & storages
        return [(name, row) for name in chosen for row in self.ask(f"{self.base}/storage/{name}/content")]

    def inventory(self) -> dict[str, set[str]]:
        """Names of all that the command could leave behind or touch, by their kinds."""
        return {
            "guest": {str(row["vmid"]) for row in self.guests()},
            "volume": {entry["volid"] for _, entry in self.volumes()},
            "user": {row["userid"] for row in self.ask("/access/users")},
            "token of root": {row["tokenid"] for row in self.ask(f"/access/users/{ROOT}/token")},
            "role": {row["roleid"] for row in self.ask("/access/roles")},
            "group": {row["groupid"] for row in self.ask("/access/groups")},
            "pool": {row["poolid"] for row in self.ask("/pools")},
            "right": {f"{row['path']} {row['ugid']} {row['roleid']}" for row in self.ask("/access/acl")},
        }

    def within(self, inventory: Mapping[str, set[str]]) -> list[str]:
        """What of an inventory lies within the scope, as ``kind name``."""
        scope = self.scope
        tests: dict[str, Any] = {"guest": scope.has_guest, "volume": scope.has_volume}
        # A right belongs to the account that has it.
        tests["right"] = lambda text: scope.has_name(text.split(" ")[1])
        return sorted(
            f"{kind} {name}"
            for kind, names in inventory.items()
            for name in names
            if tests.get(kind, scope.has_name)(name)
        )

    # --- leaving nothing ---

    @property
    def _mark(self) -> dict[str, str]:
        """A pool that says on the node which bounds were empty when a run began: all within them is the run's own."""
        return {"poolid": f"{self.scope.prefix}run", "comment": f"guests {self.scope.first} to {self.scope.last}"}

    def set_mark(self) -> None:
        """To be called once it is seen that nothing is within the bounds."""
        self.do("POST", "/pools", self._mark)

    def has_mark(self) -> bool:
        """Whether a run with these bounds began here and has not cleaned up."""
        return any(self._mark.items() <= row.items() for row in self.ask("/pools"))

    def clean(self, *, everything: bool = False) -> None:
        """Remove what was made since the last time; ``everything``: all that lies within the scope.

        Tasks that still run are waited for. What can't be removed keeps nothing else from being removed; RefusedError
        names it. ClientError where the node does not answer.
        """
        for upid in set(self.scope.tasks) | (self._running_tasks() if everything else set()):
            self.task(upid)
        problems: list[str] = []
        if everything or self.scope.guests:
            self._remove_guests(problems)
        if everything or self.scope.storages:
            for storage, entry in self.volumes(None if everything else set(self.scope.storages)):
                if self.scope.has_volume(entry["volid"]):
                    self._try(problems, "DELETE", f"{self.base}/storage/{storage}/content/{entry['volid']}")
        if everything or self.scope.pools:
            self._remove_pools(problems)
        if everything or self.scope.accounts:
            self._remove_accounts(problems, everything=everything)
        if everything and not problems:
            self._try(problems, "DELETE", f"/pools/{self._mark['poolid']}")
        if problems:
            raise RefusedError("; ".join(problems))
        self.scope.forget()

    def _try(self, problems: list[str], method: str, path: str, given: Mapping[str, Any] | None = None) -> bool:
        try:
            self.do(method, path, given)
        except RefusedError as error:
            problems.append(str(error))
            return False
        return True

    def _running_tasks(self) -> set[str]:
        """Those about guests of the scope, whoever started them: a run that was killed left them."""
        rows = self.ask(f"{self.base}/tasks", {"source": "active", "limit": 500})
        return {row["upid"] for row in rows if self.scope.has_guest(row["id"])}

    def _remove_guests(self, problems: list[str]) -> None:
        ours = [row for row in self.ask(f"{self.base}/lxc") if self.scope.has_guest(row["vmid"])]
        for row in ours:
            if row["status"] == "running":
                self._try(problems, "POST", f"{self.base}/lxc/{row['vmid']}/status/stop")
        # A clone keeps its template; in each round one more can go.
        while ours:
            refusals: list[str] = []
            given = {"purge": 1, "destroy-unreferenced-disks": 1}
            kept = [row for row in ours if not self._try(refusals, "DELETE", f"{self.base}/lxc/{row['vmid']}", given)]
            if len(kept) == len(ours) and not any(self._unprotect(row["vmid"]) for row in kept):
                problems += refusals
                return
            ours = kept

    def _unprotect(self, vmid: int) -> bool:
        """Whether the guest was protected until now."""
        path = f"{self.base}/lxc/{vmid}/config"
        return bool(self.ask(path).get("protection")) and self._try([], "PUT", path, {"protection": 0})

    def _remove_pools(self, problems: list[str]) -> None:
        for row in self.ask("/pools"):
            pool = row["poolid"]
            if not self.scope.has_name(pool) or pool == self._mark["poolid"]:
                continue
            members = self.ask("/pools", {"poolid": pool})[0]["members"]
            given = {
                "vms": ",".join(str(member["vmid"]) for member in members if "vmid" in member),
                "storage": ",".join(sorted({member["storage"] for member in members if "storage" in member})),
            }
            if given := {key: value for key, value in given.items() if value}:
                self._try(problems, "PUT", "/pools", {"poolid": pool, "delete": 1, **given})
            self._try(problems, "DELETE", f"/pools/{pool}")

    def _remove_accounts(self, problems: list[str], *, everything: bool) -> None:
        """Users with their tokens and rights, groups and roles; what all cases share, only with ``everything``."""
        tokens = f"/access/users/{ROOT}/token"
        shared = (*(self.names.text(f"{who}@pve") for who in ("nobody", "tester")), f"{self.scope.prefix}Demo")
        lists = {"/access/users": "userid", "/access/groups": "groupid", "/access/roles": "roleid"}
        for path, key in {**lists, **({tokens: "tokenid"} if everything else {})}.items():
            for name in (row[key] for row in self.ask(path)):
                if self.scope.has_name(name) and (everything or not name.startswith(shared)):
                    self._try(problems, "DELETE", f"{path}/{name}")
        self._logins.pop("custom", None)


def _upid(answer: Answer) -> str | None:
    data = answer.body.get("data")
    return data if isinstance(data, str) and data.startswith("UPID:") else None


def _own(vmid: int, value: Any) -> tuple[str, str] | None:
    """The volid and the size of a volume of the guest's own, of the option that names it."""
    volid, _, rest = str(value).partition(",")
    if not re.search(rf"(?:vm|base)-{vmid}-", volid):
        return None
    return volid, next((part[5:] for part in rest.split(",") if part.startswith("size=")), "1G")


def _volume(key: str, options: Mapping[str, Any]) -> Any:
    return options[key] if _VOLUME.fullmatch(key) else None


def _gib(size: str) -> str:
    """A size as Proxmox prints it, as the number of GiB that it takes for a new volume."""
    return f"{float(size[:-1]) / {'G': 1, 'M': 1024}[size[-1]]:g}"


def _without_size(value: Any) -> Any:
    """A mount point's option: Proxmox adds the size of a volume where a case leaves it out."""
    return re.sub(r",size=[^,]*", "", value) if isinstance(value, str) else value


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """What the API shows of a guest, as its file has it."""
    raw: Iterator[tuple[str, str]] = iter(tuple(pair) for pair in config.get("lxc", []))
    found = {key: str(value) for key, value in config.items() if key not in ("lxc", "digest")}
    if "description" in found:
        found["#"] = found.pop("description")
    return {**found, **dict(raw)}
