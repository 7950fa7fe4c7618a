"""/access: tickets, permissions (facts proxmox 1, 12)."""

from __future__ import annotations

from pvelab.access import is_acl_path, normalise_path
from pvelab.errors import bad_param, denied
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


def _caps(call: Call, userid: str) -> dict[str, dict[str, int]]:
    """The interface's summary: privileges by branch, at the top of each."""
    access = call.cluster.access
    branches = {"access": "/access", "dc": "/", "nodes": "/nodes", "sdn": "/sdn", "storage": "/storage", "vms": "/vms"}
    return {name: dict(access.permissions(userid, path)) for name, path in branches.items()}


def permissions(call: Call) -> object:
    access = call.cluster.access
    asked = call.get("userid") or call.who.authid
    if (asked != call.who.authid and asked.split("!")[0] != call.who.user) or (
        call.who.token is not None and asked != call.who.authid
    ):
        access.check(call.who, "/access", ["Sys.Audit"])
    userid, _, tokenid = asked.partition("!")
    if userid not in access.users or (tokenid and tokenid not in access.users[userid].tokens):
        raise bad_param("userid", f"no such user or token ('{asked}')") if call.who.is_root else denied()
    path = call.get("path")
    if path is None:
        return access.effective_permissions(asked)
    path = normalise_path(path)
    if not is_acl_path(path):
        raise bad_param("path", f"invalid ACL path '{path}'")
    held = access.permissions(asked, path)
    return {path: held} if held else {}
