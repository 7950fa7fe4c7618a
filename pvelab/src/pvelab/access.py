"""Users, tokens, roles, ACLs and pools, and who may do what (facts proxmox 1, 14).

The state is one JSON file, readable by root only. Token secrets and passwords are kept as hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pvelab.errors import ApiError, denied
from pvelab.release import DEFAULT, RELEASES, Release

ROOT = "root@pam"
REALMS = {"pam": "Linux PAM standard authentication", "pve": "Proxmox VE authentication server"}
"""The realms that every node has, and what their entries say."""
Privileges = dict[str, int]
"""Privilege -> propagate flag; 0 still means granted (facts proxmox 12)."""

_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "VM": {
        "admin": (
            *("VM.Config.Disk", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.HWType"),
            *("VM.Config.Options", "VM.Allocate", "VM.Clone", "VM.Migrate", "VM.Snapshot", "VM.Snapshot.Rollback"),
        ),
        "user": ("VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.Backup", "VM.PowerMgmt"),
        "audit": ("VM.Audit",),
    },
    "Sys": {
        "root": ("Sys.PowerMgmt", "Sys.Modify", "Sys.Incoming", "Sys.AccessNetwork"),
        "admin": ("Sys.Console", "Sys.Syslog"),
        "audit": ("Sys.Audit",),
    },
    "Datastore": {
        "admin": ("Datastore.Allocate", "Datastore.AllocateTemplate"),
        "user": ("Datastore.AllocateSpace",),
        "audit": ("Datastore.Audit",),
    },
    "SDN": {"admin": ("SDN.Allocate", "SDN.Audit"), "user": ("SDN.Use",), "audit": ("SDN.Audit",)},
    "User": {"root": ("Realm.Allocate",), "admin": ("User.Modify", "Group.Allocate", "Realm.AllocateUser")},
    "Pool": {"admin": ("Pool.Allocate",), "user": ("Pool.Audit",), "audit": ("Pool.Audit",)},
    "Mapping": {"admin": ("Mapping.Modify",), "user": ("Mapping.Use",), "audit": ("Mapping.Audit",)},
}
"""Who of a category has which privilege (PVE::AccessControl, privgroups)."""


def builtin_roles(release: Release) -> dict[str, frozenset[str]]:
    """The roles that every node of a release has (PVE::AccessControl, create_roles); Administrator has all there is."""
    more = {"VM": {"admin": release.vm_admin, "user": release.vm_user, "audit": release.vm_audit}}
    roles: dict[str, set[str]] = {"PVEAdmin": set(), "PVEAuditor": set(), "Administrator": {"Permissions.Modify"}}
    for category, groups in _GROUPS.items():
        root, admin, user, audit = (
            {*groups.get(rank, ()), *more.get(category, {}).get(rank, ())}
            for rank in ("root", "admin", "user", "audit")
        )
        roles[f"PVE{category}Admin"] = admin | user | audit
        roles["PVEAdmin"] |= admin | user | audit
        roles["PVEAuditor"] |= audit
        roles["Administrator"] |= root | admin | user | audit
        if user:
            roles[f"PVE{category}User"] = user | audit
    roles["PVEAdmin"].discard("Mapping.Modify")
    roles["PVETemplateUser"] = {"VM.Clone", "VM.Audit"}
    roles["NoAccess"] = set()
    return {name: frozenset(privileges) for name, privileges in roles.items()}


DEFAULT_PATHS = ("/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms")


@dataclass
class Token:
    secret_hash: str
    privsep: bool = True
    expire: int = 0
    comment: str | None = None


@dataclass
class User:
    enable: bool = True
    expire: int = 0
    comment: str | None = None
    password_hash: str | None = None
    groups: list[str] = field(default_factory=list)
    tokens: dict[str, Token] = field(default_factory=dict)


@dataclass
class AclEntry:
    """``ugid`` is a user, a group or a token, as ``kind`` says."""

    path: str
    kind: str
    ugid: str
    role: str
    propagate: bool = True


@dataclass
class Pool:
    comment: str | None = None
    vms: list[int] = field(default_factory=list)
    storages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Identity:
    """Who asks. ``authid`` is ``user@realm`` or ``user@realm!token``."""

    authid: str

    @property
    def user(self) -> str:
        return self.authid.split("!", 1)[0]

    @property
    def token(self) -> str | None:
        return self.authid.split("!", 1)[1] if "!" in self.authid else None

    @property
    def is_root(self) -> bool:
        """The string comparison of facts proxmox 1: no token is ever root@pam."""
        return self.authid == ROOT


class AuthenticationError(Exception):
    """``str()`` is the 401's reason phrase."""


_TOKEN = re.compile(r"PVEAPIToken[ =]([^!\s]+@[^!\s]+)!([A-Za-z][A-Za-z0-9.\-_]+)[=:]([0-9a-f-]{36})")
_PBKDF2_ROUNDS = 20_000  # a lab on loopback: enough to keep the file harmless, cheap enough for tests
TICKET_LIFETIME = 2 * 3600


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _hash_password(password: str, salt: str) -> str:
    derived = hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), _PBKDF2_ROUNDS)
    return f"{salt}${derived.hex()}"


def normalise_path(path: str) -> str:
    return re.sub(r"/+", "/", "/" + path.strip("/"))


_VALID_PATH = re.compile(
    r"/|/access(?:/groups(?:/[^/]+)?|/realm(?:/[^/]+)?)?|/nodes(?:/[^/]+)?|/pool(?:/.+)?|/storage(?:/[^/]+)?"
    r"|/vms(?:/[1-9][0-9]{2,})?|/sdn(?:/zones(?:/[^/]+){0,3}|/.*)?|/mapping(?:/.*)?"
)


def is_acl_path(path: str) -> bool:
    return bool(_VALID_PATH.fullmatch(path))


class Access:
    """The access control of one cluster. Thread-safe; every change is on disk when the call returns."""

    def __init__(self, path: Path, release: Release = RELEASES[DEFAULT]) -> None:
        self._path = path
        self.builtin = builtin_roles(release)
        self.privileges = self.builtin["Administrator"]
        self._lock = threading.RLock()
        self.users: dict[str, User] = {}
        self.groups: dict[str, str | None] = {}
        self.roles: dict[str, frozenset[str]] = dict(self.builtin)
        self.acl: list[AclEntry] = []
        self.pools: dict[str, Pool] = {}
        self._ticket_key = ""
        self._load()

    # --- state on disk ---

    def clear(self) -> None:
        """Be as in a new lab: root@pam without a password, the built-in roles, and no ticket of before."""
        with self._lock:
            self._path.unlink(missing_ok=True)
            self.groups, self.roles, self.acl, self.pools = {}, dict(self.builtin), [], {}
            self._load()

    def _load(self) -> None:
        if not self._path.exists():
            self.users = {ROOT: User(comment="the lab's administrator")}
            self._ticket_key = secrets.token_hex(32)
            self.save()
            return
        state: dict[str, Any] = json.loads(self._path.read_text())
        self._ticket_key = state["ticket_key"]
        self.users = {
            name: User(**{**entry, "tokens": {t: Token(**fields) for t, fields in entry["tokens"].items()}})
            for name, entry in state["users"].items()
        }
        self.groups = dict(state["groups"])
        self.roles = {**self.builtin, **{name: frozenset(privs) for name, privs in state["roles"].items()}}
        self.acl = [AclEntry(**entry) for entry in state["acl"]]
        self.pools = {name: Pool(**entry) for name, entry in state["pools"].items()}

    def save(self) -> None:
        with self._lock:
            state = {
                "ticket_key": self._ticket_key,
                "users": {name: asdict(user) for name, user in self.users.items()},
                "groups": self.groups,
                "roles": {name: sorted(privs) for name, privs in self.roles.items() if name not in self.builtin},
                "acl": [asdict(entry) for entry in self.acl],
                "pools": {name: asdict(pool) for name, pool in self.pools.items()},
            }
            temporary = self._path.with_suffix(".tmp")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as handle:
                json.dump(state, handle, indent=1, sort_keys=True)
            temporary.replace(self._path)

    # --- authentication ---

    def authenticate_header(self, header: str) -> Identity:
        """The identity of an ``Authorization`` header. One text for every fault, as since PVE 9.1.5 (facts 1)."""
        match = _TOKEN.fullmatch(header.strip())
        if not match:
            raise AuthenticationError("Authentication failed!")
        userid, tokenid, secret = match.groups()
        with self._lock:
            user = self.users.get(userid)
            token = user.tokens.get(tokenid) if user else None
            good = (
                user is not None
                and token is not None
                and self._active(user.enable, user.expire)
                and self._active(True, token.expire)
                and hmac.compare_digest(token.secret_hash, _digest(secret))
            )
        if not good:
            raise AuthenticationError("Authentication failed!")
        return Identity(f"{userid}!{tokenid}")

    @staticmethod
    def _active(enabled: bool, expire: int) -> bool:
        return enabled and (expire == 0 or expire > time.time())

    def login(self, userid: str, password: str) -> tuple[str, str]:
        """Ticket and CSRF prevention token, or 401; that one has a body (facts proxmox-9.2, row 8)."""
        with self._lock:
            user = self.users.get(userid)
            stored = user.password_hash if user and self._active(user.enable, user.expire) else None
        # A ticket may stand in for the password: that is how a client renews it.
        if password.startswith("PVE:"):
            try:
                proved = self.authenticate_ticket(password).authid
            except AuthenticationError:
                proved = None
            if proved != userid:
                raise ApiError(401, "authentication failure")
        elif stored is None or not hmac.compare_digest(stored, _hash_password(password, stored.split("$", 1)[0])):
            raise ApiError(401, "authentication failure")
        return self.issue_ticket(userid)

    def issue_ticket(self, userid: str) -> tuple[str, str]:
        """Ticket and CSRF prevention token for a user whose identity is proved."""
        stamp = f"{int(time.time()):08X}"
        plain = f"PVE:{userid}:{stamp}"
        return f"{plain}::{self._sign(plain)}", f"{stamp}:{self._sign(f'{stamp}:{userid}')}"

    def authenticate_ticket(self, ticket: str) -> Identity:
        match = re.fullmatch(r"(PVE:([^:]+):([0-9A-F]{8}))::([0-9a-f]+)", ticket)
        if not match:
            raise AuthenticationError("permission denied - invalid PVE ticket")
        plain, userid, stamp, signature = match.groups()
        age = time.time() - int(stamp, 16)
        user = self.users.get(userid)
        good = hmac.compare_digest(signature, self._sign(plain)) and -300 < age < TICKET_LIFETIME
        if not good or user is None or not self._active(user.enable, user.expire):
            raise AuthenticationError("permission denied - invalid PVE ticket")
        return Identity(userid)

    def check_csrf(self, identity: Identity, token: str) -> None:
        stamp, _, signature = token.partition(":")
        if not hmac.compare_digest(signature, self._sign(f"{stamp}:{identity.authid}")):
            raise AuthenticationError("Permission denied - invalid csrf token")

    def _sign(self, text: str) -> str:
        return hmac.new(self._ticket_key.encode(), text.encode(), hashlib.sha256).hexdigest()

    # --- changes ---

    def set_password(self, userid: str, password: str) -> None:
        with self._lock:
            self.users[userid].password_hash = _hash_password(password, secrets.token_hex(8))
            self.save()

    def add_token(
        self,
        userid: str,
        tokenid: str,
        *,
        privsep: bool = True,
        expire: int = 0,
        comment: str | None = None,
        secret: str | None = None,
    ) -> str:
        """Make or renew a token and return its secret, which is not kept; ``secret`` takes one that it had."""
        secret = secret or str(uuid.uuid4())
        with self._lock:
            self.users[userid].tokens[tokenid] = Token(_digest(secret), privsep, expire, comment)
            self.save()
        return secret

    def token_matches(self, userid: str, tokenid: str, secret: str) -> bool:
        user = self.users.get(userid)
        token = user.tokens.get(tokenid) if user else None
        return token is not None and hmac.compare_digest(token.secret_hash, _digest(secret))

    def grant(self, path: str, kind: str, ugid: str, role: str, propagate: bool = True) -> None:
        with self._lock:
            self.revoke(path, kind, ugid, role)
            self.acl.append(AclEntry(path, kind, ugid, role, propagate))
            self.save()

    def revoke(self, path: str, kind: str, ugid: str, role: str) -> None:
        with self._lock:
            self.acl = [e for e in self.acl if (e.path, e.kind, e.ugid, e.role) != (path, kind, ugid, role)]
            self.save()

    def forget_subject(self, kind: str, ugid: str) -> None:
        with self._lock:
            self.acl = [e for e in self.acl if not (e.kind == kind and e.ugid == ugid)]
            self.save()

    def forget_guest(self, vmid: int) -> None:
        """What every destroy does: ACLs at ``/vms/<id>`` and the pool membership go (facts proxmox 5)."""
        with self._lock:
            kept = [entry for entry in self.acl if entry.path != f"/vms/{vmid}"]
            pool = self.pool_of_guest(vmid)
            if len(kept) == len(self.acl) and pool is None:
                return
            self.acl = kept
            if pool is not None:
                self.pools[pool].vms.remove(vmid)
            self.save()

    def add_to_pool(self, pool: str, vmid: int) -> None:
        with self._lock:
            if pool in self.pools and vmid not in self.pools[pool].vms:
                self.pools[pool].vms.append(vmid)
                self.save()

    # --- lookups ---

    def pool_of_guest(self, vmid: int) -> str | None:
        return next((name for name, pool in self.pools.items() if vmid in pool.vms), None)

    def pool_of_storage(self, storage: str) -> str | None:
        return next((name for name, pool in self.pools.items() if storage in pool.storages), None)

    def _roles(self, authid: str, path: str) -> dict[str, int]:
        """Role -> propagate flag: the deepest node with a matching entry replaces what is above it (facts 1)."""
        groups = self.users[authid].groups if authid in self.users else []
        found: dict[str, int] = {}
        for node in _ancestors(path):
            final = node == path
            for kinds in (("token", [authid]), ("user", [authid]), ("group", groups)):
                here = {
                    entry.role: int(entry.propagate)
                    for entry in self.acl
                    if entry.path == node and entry.kind == kinds[0] and entry.ugid in kinds[1]
                    if final or entry.propagate
                }
                if here:
                    found = {"NoAccess": here["NoAccess"]} if "NoAccess" in here else here
                    break
        return found

    def _acl_privileges(self, authid: str, path: str) -> Privileges:
        roles = self._roles(authid, path)
        if "NoAccess" not in roles:
            pool = None
            if match := re.fullmatch(r"/vms/(\d+)", path):
                pool = self.pool_of_guest(int(match.group(1)))
            elif match := re.fullmatch(r"/storage/([^/]+)", path):
                pool = self.pool_of_storage(match.group(1))
            if pool is not None:
                roles = {**roles, **self._roles(authid, f"/pool/{pool}")}
        if "NoAccess" in roles:
            return {}
        privileges: Privileges = {}
        for role, propagate in roles.items():
            for privilege in self.roles.get(role, ()):
                privileges[privilege] = max(propagate, privileges.get(privilege, 0))
        return privileges

    def permissions(self, authid: str, path: str) -> Privileges:
        """Effective privileges of a user or token on a path."""
        with self._lock:
            userid, _, tokenid = authid.partition("!")
            user = self.users.get(userid)
            token = user.tokens.get(tokenid) if user else None
            if user is None or not self._active(user.enable, user.expire) or (tokenid and token is None):
                return {}
            of_user = dict.fromkeys(self.privileges, 1) if userid == ROOT else self._acl_privileges(userid, path)
            if token is None or not token.privsep:
                return of_user
            own = self._acl_privileges(authid, path)
            return {privilege: min(flag, of_user[privilege]) for privilege, flag in own.items() if privilege in of_user}

    def effective_permissions(self, authid: str) -> dict[str, Privileges]:
        """GET /access/permissions without a path: top level, ACL paths and pool members (facts proxmox 12)."""
        with self._lock:
            paths = {*DEFAULT_PATHS, *(entry.path for entry in self.acl)}
            for name, pool in self.pools.items():
                paths |= {f"/pool/{name}", *(f"/vms/{v}" for v in pool.vms), *(f"/storage/{s}" for s in pool.storages)}
            found = {path: self.permissions(authid, path) for path in sorted(paths)}
        return {path: privileges for path, privileges in found.items() if privileges}

    # --- checks ---

    def allows(self, who: Identity, path: str, privileges: Sequence[str], *, any_of: bool = False) -> bool:
        held = self.permissions(who.authid, path)
        return any(p in held for p in privileges) if any_of else all(p in held for p in privileges)

    def check(self, who: Identity, path: str, privileges: Sequence[str], *, any_of: bool = False) -> None:
        """403 naming the first missing privilege, or all of them when any would do (facts proxmox 0)."""
        held = self.permissions(who.authid, path)
        if any_of:
            if not any(privilege in held for privilege in privileges):
                raise denied(f"{path}, {'|'.join(privileges)}")
            return
        for privilege in privileges:
            if privilege not in held:
                raise denied(f"{path}, {privilege}")

    def check_perm_modify(self, who: Identity, path: str) -> None:
        """Whether the caller may change rights at a path: Permissions.Modify, or the branch's own privilege."""
        branches = (("/storage/", "Datastore.Allocate"), ("/vms/", "VM.Allocate"), ("/pool/", "Pool.Allocate"))
        own = [privilege for branch, privilege in branches if path.startswith(branch)]
        self.check(who, path, ["Permissions.Modify", *own], any_of=True)

    def check_guest(
        self, who: Identity, vmid: int, privileges: Sequence[str], *, pool: str | None = None, any_of: bool = False
    ) -> None:
        """On ``/vms/<vmid>``, or on the pool that the guest is to be created in (facts proxmox 2.2)."""
        if pool is not None and self.allows(who, f"/pool/{pool}", privileges, any_of=any_of):
            return
        self.check(who, f"/vms/{vmid}", privileges, any_of=any_of)


def _ancestors(path: str) -> Iterable[str]:
    yield "/"
    parts = [part for part in path.split("/") if part]
    for count in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:count])
