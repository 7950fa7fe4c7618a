"""Which number of the node a user of a container has: the map of its user namespace (facts proxmox 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAPPED_ROOT = 100_000
"""The node's number of root in an unprivileged container that says nothing else."""
MAPPED_IDS = 65_536

Range = tuple[int, int, int]
"""The first number inside, the first on the node, and how many."""
_UNPRIVILEGED: tuple[Range, ...] = ((0, MAPPED_ROOT, MAPPED_IDS),)
_ALL: tuple[Range, ...] = ((0, 0, 1 << 32),)


@dataclass(frozen=True)
class IdMap:
    """The numbers of a container's users and groups on its node."""

    users: tuple[Range, ...] = _UNPRIVILEGED
    groups: tuple[Range, ...] = _UNPRIVILEGED

    def on_node(self, number: int) -> tuple[int, int] | None:
        """User and group on the node of the user and the group `number` inside; None for one that is not mapped."""
        user, group = _mapped(self.users, number), _mapped(self.groups, number)
        return (user, group) if user is not None and group is not None else None

    def inside(self, user: int) -> int | None:
        """The number inside of a user of the node; None for one that the container does not have."""
        return _mapped(tuple((outer, inner, count) for inner, outer, count in self.users), user)


STANDARD = IdMap()
"""That of an unprivileged container."""


def _mapped(ranges: tuple[Range, ...], number: int) -> int | None:
    return next((to + number - first for first, to, count in ranges if first <= number < first + count), None)


def id_map_of(config: Mapping[str, str]) -> IdMap:
    """The map that a container's configuration makes, as `Proxmox.guest_config` tells it.

    Raw `lxc.idmap` lines, `u 0 200000 65536`, stand instead of the standard map; a privileged container has none.
    """
    ranges: dict[str, list[Range]] = {"u": [], "g": []}
    for line in config.get("lxc", "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key.strip() == "lxc.idmap" and len(words) == 4 and all(word.isdigit() for word in words[1:]):
            inner, outer, count = map(int, words[1:])
            for kind in "ug" if words[0] == "b" else words[0]:
                ranges.setdefault(kind, []).append((inner, outer, count))
    if ranges["u"] or ranges["g"]:
        return IdMap(tuple(ranges["u"]), tuple(ranges["g"]))
    return STANDARD if config.get("unprivileged") == "1" else IdMap(_ALL, _ALL)
