"""/access: tickets, permissions (facts proxmox 1, 12)."""

from __future__ import annotations

import re

from pvelab.access import DEFAULT_PATHS, REALMS, normalise_path
from pvelab.routing import Call, Router, anybody
from pvelab.schema import Prop


def register(router: Router) -> None:
    router.add(
        "POST",
        "/access/ticket",
        check=anybody,
        public=True,
        allow_token=False,
        params={
            "username": Prop(required=True, max_length=64),
            "password": Prop(required=True),
            "realm": Prop(max_length=32),
            "otp": Prop(),
            "path": Prop(max_length=64, requires="privs"),
            "privs": Prop(max_length=64, requires="path"),
            "new-format": Prop("boolean"),
            "tfa-challenge": Prop(),
        },
    )(ticket)
    router.add("GET", "/access/ticket", check=anybody, public=True)(ticket_form)
    router.add("GET", "/access/domains", check=anybody, public=True)(domains)
    router.add("GET", "/access/permissions", check=anybody, params={"userid": Prop(), "path": Prop()})(permissions)


def ticket(call: Call) -> object:
    userid = call.params["username"]
    if "@" not in userid:
        userid += "@" + (call.get("realm") or "pam")
    value, csrf = call.cluster.access.login(userid, call.params["password"])
    result: dict[str, object] = {
        "username": userid,
        "ticket": value,
        "CSRFPreventionToken": csrf,
        "cap": _caps(call, userid),
    }
    if len(call.cluster.config.nodes) > 1:
        result["clustername"] = "lab"
    return result


def ticket_form(_call: Call) -> object:
    """A place holder of Proxmox's own: the GET exists and gives nothing."""
    return None


_CAPS = {
    "access": r"(?:User|Group)\.|Permissions\.Modify",
    "dc": r"Sys\.Audit|Sys\.Modify|SDN\.",
    "mapping": r"Mapping\.|Permissions\.Modify",
    "nodes": r"Sys\.|Permissions\.Modify",
    "sdn": r"SDN\.|Permissions\.Modify",
    "storage": r"Datastore\.|Permissions\.Modify",
    "vms": r"VM\.|Permissions\.Modify",
}
"""Branch -> the privileges that count in it (PVE::RPCEnvironment, compute_api_permission)."""


def _caps(call: Call, userid: str) -> dict[str, dict[str, int]]:
    """The interface's summary: the privileges that the user has anywhere in each branch."""
    access = call.cluster.access
    caps: dict[str, dict[str, int]] = {branch: {} for branch in _CAPS}
    for path in {*DEFAULT_PATHS, "/mapping", *(entry.path for entry in access.acl)}:
        top = path.split("/")[1] or "dc"
        for branch in ("vms", "storage") if top == "pool" else (top,):
            held = access.permissions(userid, path)
            caps[branch].update({name: 1 for name in sorted(held) if re.match(_CAPS[branch], name)})
    return caps


def permissions(call: Call) -> object:
    access = call.cluster.access
    asked = call.get("userid") or call.who.authid
    if (asked != call.who.authid and asked.split("!")[0] != call.who.user) or (
        call.who.token is not None and asked != call.who.authid
    ):
        access.check(call.who, "/access", ["Sys.Audit"])
    path = call.get("path")
    if path is None:
        return access.effective_permissions(asked)
    return {path: access.permissions(asked, normalise_path(path))}


def domains(_call: Call) -> object:
    return [{"realm": name, "type": name, "comment": comment} for name, comment in REALMS.items()]
