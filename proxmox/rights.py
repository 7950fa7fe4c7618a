"""Which privileges a stack needs, on which paths, and the commands that grant them (facts proxmox 14).

Never Datastore.Allocate: it alone would let the token delete any volume.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxmox.client import Permissions
from proxmox.errors import Fault

ROLE = "HermesHomelab"

MANAGE = (
    "VM.Audit",
    "VM.Allocate",
    "VM.Config.Disk",
    "VM.Config.CPU",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.PowerMgmt",
)
"""To create, change, start, stop and destroy an unprivileged container."""


@dataclass(frozen=True)
class Right:
    """Privileges needed on a path.

    grant_at: where it is best granted, which may be above `path`; below: for everything below the path, not for the
    path itself; any_of: one of the privileges is enough; purpose: what for, as the end of "needed to ...".
    """

    path: str
    privileges: tuple[str, ...]
    purpose: str
    grant_at: str
    below: bool = False
    any_of: bool = False


def manage_guest(vmid: int) -> Right:
    """For a container's whole life. Granted on /vms: what is granted on /vms/V goes with V (facts proxmox 5)."""
    return Right(f"/vms/{vmid}", MANAGE, f"create, change, start and destroy CT {vmid}", "/vms")


def see_all_guests() -> Right:
    """To prove that nobody else uses a volume."""
    return Right("/vms", ("VM.Audit",), "see that no other guest uses a volume", "/vms", below=True)


def allocate_on(storage: str) -> Right:
    """To make root file systems and volumes, and to see them listed."""
    privileges = ("Datastore.AllocateSpace", "Datastore.Audit")
    return Right(f"/storage/{storage}", privileges, f"make volumes on {storage}", f"/storage/{storage}")


def use_template(storage: str) -> Right:
    """To use a template of a storage."""
    privileges = ("Datastore.Audit", "Datastore.AllocateSpace")
    path = f"/storage/{storage}"
    return Right(path, privileges, f"use a template on {storage}", path, any_of=True)


def mount_foreign(storage: str, owner: int) -> tuple[Right, ...]:
    """To mount a volume of another guest's (facts proxmox 4)."""
    purpose = f"mount a volume of CT {owner}'s"
    return (
        Right(f"/storage/{storage}", ("Datastore.Audit",), purpose, f"/storage/{storage}"),
        Right(f"/vms/{owner}", ("VM.Config.Disk", "VM.Audit"), purpose, "/vms"),
    )


def clone_from(template: int) -> Right:
    """To clone a golden template: the twelfth privilege, which nothing else needs (facts proxmox-9.2)."""
    return Right(f"/vms/{template}", ("VM.Clone",), f"clone the golden template CT {template}", "/vms")


def use_bridge(bridge: str) -> Right:
    """To connect a container to a bridge."""
    path = f"/sdn/zones/localnetwork/{bridge}"
    return Right(path, ("SDN.Use",), f"connect to bridge {bridge}", path)


def missing(right: Right, permissions: Permissions) -> tuple[str, ...]:
    """The privileges of a right that the token does not have; empty when it is satisfied."""
    held = permissions.inherited(right.path) if right.below else permissions.at(right.path)
    lacking = tuple(name for name in right.privileges if name not in held)
    if right.any_of:
        return lacking[:1] if len(lacking) == len(right.privileges) else ()
    return lacking


def faults_of_rights(rights: Iterable[Right], permissions: Permissions, token_id: str) -> list[Fault]:
    """One fault for each path at which something has to be granted, with all that is missing there."""
    lacking: dict[str, tuple[list[str], list[str]]] = {}
    for right in rights:
        names = missing(right, permissions)
        if names:
            # An entry of its own below hides what is granted above, so it has to be granted there.
            grant_at = right.path if right.path in permissions.by_path else right.grant_at
            privileges, purposes = lacking.setdefault(grant_at, ([], []))
            privileges.extend(name for name in names if name not in privileges)
            purposes.append(right.purpose)
    user, token = shlex.quote(token_id.rpartition("!")[0]), shlex.quote(token_id)
    return [
        Fault(
            path,
            f"the token lacks {', '.join(privileges)}",
            f"needed to {', to '.join(dict.fromkeys(purposes))}",
            f'on a node: pveum role add {ROLE}; pveum role modify {ROLE} --append 1 --privs "{" ".join(privileges)}"; '
            f"pveum acl modify {path} --roles {ROLE} --users {user} --tokens {token}",
        )
        for path, (privileges, purposes) in lacking.items()
    ]


def grant_commands(rights: Sequence[Right], token_id: str, role: str = ROLE) -> list[str]:
    """The commands, for a node, that make role, user and token and grant the rights. They print the token's value.

    The token has privileges of its own (privsep), so both the user and the token get the role.
    """
    user, _, name = token_id.rpartition("!")
    user, token = shlex.quote(user), shlex.quote(token_id)
    # One of an any_of is enough, and the first is the weaker one.
    names = {name for right in rights for name in (right.privileges[:1] if right.any_of else right.privileges)}
    paths = dict.fromkeys(right.grant_at for right in rights)
    return [
        f'pveum role add {role} --privs "{" ".join(sorted(names))}"',
        f"pveum user add {user}",
        *(f"pveum acl modify {path} --roles {role} --users {user}" for path in paths),
        f"pveum user token add {user} {name} --privsep 1",
        *(f"pveum acl modify {path} --roles {role} --tokens {token}" for path in paths),
    ]
