"""A case in the names of a node: its guests' numbers, accounts, storage and volume group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from pvelab.conformance.contract import ACCOUNT, GUESTS

VMIDS = (100, 101, 102, 105, 106, 107, 999, 9105)
"""The numbers that the cases use."""
# Their accounts, roles, groups and pools. One that is only asked for, and never there, keeps its name.
_USER = re.compile(r"(?<![\w.@-])(?=(?:a|x|custom|nobody|tester)@pve\b)")
_NAMED = re.compile(r"(?<![\w-])(?=(?:Lab|Mine|Old|ops|herd|flock)(?![\w-]))")
_NODE = re.compile(r"(?<=nodes/)pve\b|(?<=node ')pve(?=')|(?<=UPID:)pve(?=:)|(?<=node/)pve$|(?<=storage/)pve(?=/)")
_GROUP = re.compile(r"\bpve(?=/(?:vm-|base-|snap_))|(?<=volume group \")pve(?=\")")
_VMID_KEYS = frozenset(("vmid", "newid", "target-vmid", "vms", "guests", "nodes", "after", "pending", "sections"))
_VMID_LISTS = frozenset(("running", "gone", "up", "down"))
_TEMPLATE = "debian-12-standard_12.7-1_amd64.tar.zst"


@dataclass(frozen=True)
class Names:
    """What the cases' names are on one node. ``vmids``: one for each of :data:`VMIDS`, in their order."""

    node: str
    vmids: Sequence[int]
    prefix: str
    storage: str
    volume_group: str
    thin_pool: str
    bridge: str
    template: str
    """The volid of the template."""
    cluster: str = ""
    """Empty: the node is in none."""

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        return dict(zip(VMIDS, self.vmids, strict=True))

    def text(self, text: str) -> str:
        """One text of a case."""
        numbers = "|".join(map(str, VMIDS))
        changes: tuple[tuple[str | re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
            (_USER, self.prefix),
            (_NAMED, self.prefix),
            (_NODE, self.node),
            (_GROUP, self.volume_group),
            (r"(?<![\w-])local-lvm(?![\w-])", self.storage),
            (r"\bvmbr0\b", self.bridge),
            (re.escape(_TEMPLATE), PurePosixPath(self.template).name),
            (rf"(?<![\d.])(?:{numbers})(?!\d)", lambda found: str(self._numbers[int(found[0])])),
        )
        for pattern, new in changes:
            text = re.sub(pattern, new if callable(new) else (lambda _found, new=new: new), text)
        return text

    def case(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """The whole case, with each guest's options written out; its id and the section of the facts stay."""
        guests = {
            vmid: {**GUESTS.get(vmid, GUESTS[106]), **(changes or {})}
            for vmid, changes in case.get("guests", {}).items()
        }
        whole = {**case, "guests": guests, "pools": case.get("pools", {})}
        return {key: value if key in ("id", "facts") else self._value(key, value) for key, value in whole.items()}

    def account(self) -> dict[str, tuple[str, ...]]:
        """The roles of the case's "demo", by their paths: each path's privileges."""
        return {self.text(path): tuple(ACCOUNT.roles[role]) for path, role in ACCOUNT.acl}

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            # Pools hold guests' numbers; a guest's number may be a key.
            inner = "running" if key == "pools" else ""
            return {self._key(key, name): self._value(inner or str(name), entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [self._value(key, entry) for entry in value]
        if isinstance(value, str):
            return self._word(key, value)
        if isinstance(value, int) and not isinstance(value, bool) and key in _VMID_KEYS | _VMID_LISTS:
            return self._numbers.get(value, value)
        return value

    def _key(self, parent: str, name: Any) -> Any:
        if isinstance(name, int):
            return self._numbers.get(name, name) if parent in _VMID_KEYS else name
        return self.text(name)

    def _word(self, key: str, value: str) -> str:
        whole = {
            ("node", "pve"): self.node,
            ("name", "pve"): self.node,
            ("vgname", "pve"): self.volume_group,
            ("thinpool", "data"): self.thin_pool,
            ("clustername", "lab"): self.cluster,
            ("username", "a"): f"{self.prefix}a",
        }
        return whole.get((key, value)) or self.text(value)
