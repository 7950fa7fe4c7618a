"""What the command may touch: the guests of a range, and accounts, pools, roles and groups with a prefix.

Every request that changes something goes through :meth:`Scope.outside` before it is sent. What it does not know, it
refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

ROOT = "root@pam"
_OWNER = re.compile(r"(?:(?:vm|base|subvol|basevol)-|vzdump-lxc-)(\d+)-")
_VOLUMES = re.compile(r"(?:rootfs|mp\d+|unused\d+|dev\d+)")
_NEW_DISK = re.compile(r"[^:/]+:[\d.]+")
# By what the API can do it can't be undone, or it reaches further than the guest.
_NEVER = {
    "lock": "sets a lock that only `pct unlock` on the node takes away",
    "ha-managed": "hands a guest to the cluster's HA manager",
    "target": "names another node",
    "hookscript": "names a program of the node",
}


@dataclass
class Scope:
    """The bounds, and what was touched within them since :meth:`forget`."""

    node: str
    first: int
    last: int
    prefix: str
    storages: set[str] = field(default_factory=set)
    accounts: bool = False
    pools: bool = False
    guests: bool = False
    tasks: set[str] = field(default_factory=set)

    def has_guest(self, number: object) -> bool:
        return re.fullmatch(r"[1-9]\d{2,8}", str(number)) is not None and self.first <= int(str(number)) <= self.last

    def has_volume(self, volid: str) -> bool:
        owner = _OWNER.search(volid)
        return owner is not None and self.has_guest(owner[1])

    def has_name(self, name: str) -> bool:
        return name.startswith(self.prefix)

    def has_token(self, userid: str, token: str) -> bool:
        return self.has_name(userid) or (userid == ROOT and self.has_name(token))

    def forget(self) -> None:
        """All that was touched is gone."""
        self.storages.clear()
        self.tasks.clear()
        self.accounts = self.pools = self.guests = False

    def outside(self, method: str, path: str, given: Mapping[str, Any]) -> str | None:
        """Why a request might change something outside of the bounds, as half a sentence; None: it can't."""
        if method == "GET":
            return None
        path, _, query = path.partition("?")
        params = {**dict(parse_qsl(query)), **{key: str(value) for key, value in given.items()}}
        for reason in self._refusals(method, path.split("/")[1:], params):
            return reason
        return None

    def _refusals(self, method: str, parts: list[str], params: dict[str, str]) -> Iterator[str]:
        for name, why in _NEVER.items():
            if name in params:
                yield why
        for name, value in params.items():
            if name in ("vmid", "newid", "target-vmid") and not self.has_guest(value):
                yield f"names the guest {value}"
            if _VOLUMES.fullmatch(name):
                yield from self._volume(value)
        yield from self._of_path(method, parts, params)

    def _of_path(self, method: str, parts: list[str], params: dict[str, str]) -> Iterator[str]:
        match method, parts:
            case "POST", ["access", "ticket"]:
                pass
            case _, ["nodes", node, *_] if node != self.node:
                yield f"names the node {node}"
            case _, ["nodes", _, *rest]:
                yield from self._on_node(method, rest, params)
            case _, ["access", *rest]:
                self.accounts = True
                yield from self._access(method, rest, params)
            case _, ["pools", *rest]:
                self.pools = True
                pool = rest[0] if rest else params.get("poolid", "")
                if not self.has_name(pool):
                    yield f"names the pool {pool}"
                if not all(self.has_guest(number) for number in _split(params.get("vms", ""))):
                    yield f"names the guests {params['vms']}"
            case _:
                yield "is none that is known to stay within them"

    def _volume(self, value: str) -> Iterator[str]:
        first, *rest = value.split(",")
        for part in (first, *(part for part in rest if part.startswith("volume="))):
            volume = part.removeprefix("volume=")
            if volume.startswith("/"):
                yield f"names {volume} of the node"
            elif "=" not in volume and not _NEW_DISK.fullmatch(volume) and not self.has_volume(volume):
                yield f"names the volume {volume}"
            self.storages.add(volume.partition(":")[0])

    def _on_node(self, method: str, rest: list[str], params: dict[str, str]) -> Iterator[str]:
        match method, rest:
            case "POST", ["lxc"] if "vmid" in params:
                self.guests = True
            case _, ["lxc", number, *_] if self.has_guest(number):
                self.guests = True
            case "POST", ["startall" | "stopall"] if named := _split(params.get("vms", "")):
                if not all(self.has_guest(number) for number in named):
                    yield f"names the guests {params['vms']}"
            case "POST", ["vzdump"] if "vmid" in params:
                pass
            case "POST", ["storage", _, "content"]:
                if not self.has_volume(f"{params.get('filename', '')}-"):
                    yield f"names the volume {params.get('filename')}"
            case "DELETE", ["storage", _, "content", *volume] if self.has_volume("/".join(volume)):
                self.storages.add(rest[1])
            case "DELETE", ["tasks", upid] if upid in self.tasks:
                pass
            case _:
                yield f"names {'/'.join(rest)}"
        if "storage" in params:
            self.storages.add(params["storage"])
        if rest[:1] == ["storage"]:
            self.storages.add(rest[1])

    def _access(self, method: str, rest: list[str], params: dict[str, str]) -> Iterator[str]:
        match method, rest:
            case "PUT", ["acl"]:
                names = [name for kind in ("users", "groups") for name in _split(params.get(kind, ""))]
                strange = [name for name in names if not self.has_name(name)]
                strange += [t for t in _split(params.get("tokens", "")) if not self.has_token(*_token(t))]
                if strange or not (names or params.get("tokens")):
                    yield f"changes the rights of {', '.join(strange) or 'nobody'}"
            case _, ["users", userid, "token", token]:
                if not self.has_token(userid, token):
                    yield f"names the token {userid}!{token}"
            case _, ["users" | "roles" | "groups" as kind, *name]:
                named = (
                    name[0] if name else params.get({"users": "userid", "roles": "roleid", "groups": "groupid"}[kind])
                )
                if not self.has_name(named or ""):
                    yield f"names the {kind[:-1]} {named}"
                if not all(self.has_name(group) for group in _split(params.get("groups", ""))):
                    yield f"names the groups {params['groups']}"
            case "PUT", ["password"] if self.has_name(params.get("userid", "")):
                pass
            case _:
                yield f"names access/{'/'.join(rest)}"


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[,;\s]+", text) if part]


def _token(text: str) -> tuple[str, str]:
    userid, _, name = text.partition("!")
    return userid, name
