"""/access/users, tokens, roles, groups, ACL (facts proxmox 1, 14)."""

from __future__ import annotations

from pvelab.access import REALMS, ROOT, Token, User, is_acl_path, normalise_path
from pvelab.errors import ApiError, bad_param, bad_params, denied, die
from pvelab.routing import Call, Router, anybody, on_path
from pvelab.schema import Prop, config_id, split_list, token_id_list, user_id

_USER_FIELDS = {
    "enable": Prop("boolean"),
    "expire": Prop("integer", minimum=0),
    "comment": Prop(max_length=2048),
    "groups": Prop(),
    "email": Prop(max_length=254),
    "firstname": Prop(max_length=1024),
    "lastname": Prop(max_length=1024),
    "keys": Prop(pattern=r"[0-9a-zA-Z!=]{0,4096}"),
}
_TOKEN_FIELDS = {
    "privsep": Prop("boolean"),
    "expire": Prop("integer", minimum=0),
    "comment": Prop(),
}
_USERID = Prop(required=True, format=user_id, max_length=64)


def register(router: Router) -> None:
    users = "/access/users"
    router.add("GET", users, check=anybody, params={"enabled": Prop("boolean"), "full": Prop("boolean")})(user_list)
    router.add(
        "POST",
        users,
        check=_may_create,
        params={"userid": _USERID, "password": Prop(min_length=8, max_length=64), **_USER_FIELDS},
    )(user_create)
    router.add("GET", users + "/{userid}", check=_may_read)(user_read)
    router.add(
        "PUT",
        users + "/{userid}",
        check=_may_update,
        params={**_USER_FIELDS, "append": Prop("boolean", requires="groups")},
    )(user_update)
    router.add("DELETE", users + "/{userid}", check=_may_delete)(user_delete)
    router.add(
        "PUT",
        "/access/password",
        check=_may_change_password,
        allow_token=False,
        params={
            "userid": _USERID,
            "password": Prop(required=True, min_length=8, max_length=64),
            "confirmation-password": Prop(min_length=5, max_length=64),
        },
    )(password)
    tokens = users + "/{userid}/token"
    router.add("GET", tokens, check=_own_tokens)(token_list)
    router.add("GET", tokens + "/{tokenid}", check=_own_tokens)(token_read)
    router.add("POST", tokens + "/{tokenid}", check=_own_tokens, params=_TOKEN_FIELDS)(token_create)
    router.add("PUT", tokens + "/{tokenid}", check=_own_tokens, params=_TOKEN_FIELDS)(token_update)
    router.add("DELETE", tokens + "/{tokenid}", check=_own_tokens)(token_delete)
    roles = "/access/roles"
    role_admin = on_path("/access", "Sys.Modify")
    role_fields = {"privs": Prop(), "append": Prop("boolean", requires="privs")}
    router.add("GET", roles, check=anybody)(role_list)
    router.add(
        "POST", roles, check=role_admin, params={"roleid": Prop(required=True, format=config_id), "privs": Prop()}
    )(role_create)
    router.add("GET", roles + "/{roleid}", check=anybody)(role_read)
    router.add("PUT", roles + "/{roleid}", check=role_admin, params=role_fields)(role_update)
    router.add("DELETE", roles + "/{roleid}", check=role_admin)(role_delete)
    groups = "/access/groups"
    group_admin = on_path(groups, "Group.Allocate")
    router.add("GET", groups, check=anybody)(group_list)
    router.add(
        "POST",
        groups,
        check=group_admin,
        params={"groupid": Prop(required=True, format=config_id), "comment": Prop()},
    )(group_create)
    seen = on_path(groups, "Sys.Audit", "Group.Allocate", any_of=True)
    router.add("GET", groups + "/{groupid}", check=seen)(group_read)
    router.add("PUT", groups + "/{groupid}", check=group_admin, params={"comment": Prop()})(group_update)
    router.add("DELETE", groups + "/{groupid}", check=group_admin)(group_delete)
    router.add("GET", "/access/acl", check=anybody)(acl_list)
    router.add(
        "PUT",
        "/access/acl",
        check=_may_grant,
        params={
            "path": Prop(required=True),
            "roles": Prop(required=True),
            "users": Prop(),
            "groups": Prop(),
            "tokens": Prop(format=token_id_list),
            "propagate": Prop("boolean"),
            "delete": Prop("boolean"),
        },
    )(acl_update)


# --- users ---

_ALL = "/access/groups"
"""Rights here are rights over every user. The lab knows none over the users of one group."""


def _allocate(call: Call) -> None:
    realm = call.params.get("userid", "").rpartition("@")[2]
    call.cluster.access.check(call.who, f"/access/realm/{realm}", ["Realm.AllocateUser"])


def _over_user(call: Call, *privileges: str) -> None:
    """The check ``userid-group``: 500 for a user that is not there, else a 403 that names nothing."""
    _find_user(call)
    if not call.cluster.access.allows(call.who, _ALL, privileges, any_of=True):
        raise denied()


def _may_create(call: Call) -> None:
    _allocate(call)
    call.cluster.access.check(call.who, _ALL, ["User.Modify"])


def _may_read(call: Call) -> None:
    _over_user(call, "User.Modify", "Sys.Audit")


def _may_update(call: Call) -> None:
    _find_user(call)
    call.cluster.access.check(call.who, _ALL, ["User.Modify"])


def _may_delete(call: Call) -> None:
    _allocate(call)
    _over_user(call, "User.Modify")


def _may_change_password(call: Call) -> None:
    if call.params.get("userid") == call.who.authid:
        return
    try:
        _may_delete(call)
    except ApiError:
        raise denied() from None


def _find_user(call: Call) -> User:
    userid = call.params.get("userid", "")
    user = call.cluster.access.users.get(userid)
    if user is None:
        raise die(f"no such user ('{userid}')")
    return user


def _shown_user(user: User) -> dict[str, object]:
    shown: dict[str, object] = {"enable": int(user.enable), "expire": user.expire}
    if user.comment is not None:
        shown["comment"] = user.comment
    return shown


def user_list(call: Call) -> object:
    """All users with User.Modify or Sys.Audit, else only the own entry, of which a token has none."""
    access = call.cluster.access
    all_of_them = access.allows(call.who, _ALL, ["User.Modify", "Sys.Audit"], any_of=True)
    return [
        {
            "userid": name,
            "realm-type": name.rpartition("@")[2],
            **_shown_user(user),
            **(_memberships(user) if call.flag("full") else {}),
        }
        for name, user in sorted(access.users.items())
        if (all_of_them or name == call.who.authid) and call.get("enabled") in (None, str(int(user.enable)))
    ]


# PVE/API2/User.pm, index
def _memberships(user: User) -> dict[str, object]:
    shown: dict[str, object] = {"groups": ",".join(sorted(user.groups))}
    if user.tokens:
        shown["tokens"] = _shown_tokens(user)
    return shown


def user_create(call: Call) -> None:
    access, userid = call.cluster.access, call.params["userid"]
    realm = userid.rpartition("@")[2]
    if realm not in REALMS:
        raise die(f"create user failed: domain '{realm}' does not exist")
    if userid in access.users:
        raise die(f"create user failed: user '{userid}' already exists")
    access.users[userid] = User()
    _set_user(call, access.users[userid])
    access.save()
    if (text := call.get("password")) is not None:
        access.set_password(userid, text)


def _set_user(call: Call, user: User) -> None:
    if call.get("enable") is not None:
        user.enable = call.flag("enable")
    user.expire = call.number("expire", user.expire)
    user.comment = call.get("comment") or user.comment
    if call.get("groups") is not None:
        groups = split_list(call.params["groups"])
        for group in groups:
            if group not in call.cluster.access.groups:
                raise die(f"no such group '{group}'")
        user.groups = sorted({*user.groups, *groups}) if call.flag("append") else groups


def user_read(call: Call) -> object:
    user = _find_user(call)
    tokens = {name: _shown_token(token) for name, token in user.tokens.items()}
    return {**_shown_user(user), "groups": user.groups, "tokens": tokens}


def user_update(call: Call) -> None:
    _set_user(call, _find_user(call))
    call.cluster.access.save()


def user_delete(call: Call) -> None:
    access, userid = call.cluster.access, call.params["userid"]
    user = _find_user(call)
    if userid in (ROOT, call.who.user):
        raise die(f"delete user failed: user '{userid}' cannot delete itself")  # text not in the facts
    for token in user.tokens:
        access.forget_subject("token", f"{userid}!{token}")
    access.forget_subject("user", userid)
    del access.users[userid]
    access.save()


def password(call: Call) -> None:
    """Own password, or any with Realm.AllocateUser and User.Modify; tokens may not."""
    _find_user(call)
    call.cluster.access.set_password(call.params["userid"], call.params["password"])


# --- tokens ---


def _own_tokens(call: Call) -> None:
    if call.params["userid"] != call.who.authid:
        _over_user(call, "User.Modify")


def _find_token(call: Call) -> Token:
    userid, tokenid = call.params["userid"], call.params["tokenid"]
    token = _find_user(call).tokens.get(tokenid)
    if token is None:
        raise die(f"no such token '{tokenid}' for user '{userid}'")
    return token


def _shown_token(token: Token) -> dict[str, object]:
    shown: dict[str, object] = {"privsep": int(token.privsep), "expire": token.expire}
    if token.comment is not None:
        shown["comment"] = token.comment
    return shown


def _shown_tokens(user: User) -> list[dict[str, object]]:
    return [{"tokenid": name, **_shown_token(token)} for name, token in sorted(user.tokens.items())]


def token_list(call: Call) -> object:
    return _shown_tokens(_find_user(call))


def token_read(call: Call) -> object:
    return _shown_token(_find_token(call))


def token_create(call: Call) -> object:
    """The only answer that ever shows the secret; privilege separation is on unless refused (facts proxmox 1)."""
    userid, tokenid = call.params["userid"], call.params["tokenid"]
    if tokenid in _find_user(call).tokens:
        raise bad_param("tokenid", "Token already exists.")
    privsep = call.get("privsep") != "0"
    secret = call.cluster.access.add_token(
        userid, tokenid, privsep=privsep, expire=call.number("expire", 0), comment=call.get("comment")
    )
    # As Proxmox made it, before it was read back: what was given is text, what was not is not there (9.2, row 10).
    info = {"privsep": 1, **_given(call)}
    return {"full-tokenid": f"{userid}!{tokenid}", "value": secret, "info": info}


def _given(call: Call) -> dict[str, object]:
    return {key: call.params[key] for key in _TOKEN_FIELDS if call.params.get(key)}


def token_update(call: Call) -> object:
    token = _find_token(call)
    if call.get("privsep") is not None:
        token.privsep = call.flag("privsep")
    token.expire = call.number("expire", token.expire)
    if (comment := call.get("comment")) is not None:
        token.comment = comment or None
    call.cluster.access.save()
    return {**_shown_token(token), **_given(call)}


def token_delete(call: Call) -> None:
    _find_token(call)
    userid, tokenid = call.params["userid"], call.params["tokenid"]
    call.cluster.access.forget_subject("token", f"{userid}!{tokenid}")
    del call.cluster.access.users[userid].tokens[tokenid]
    call.cluster.access.save()


# --- roles and groups ---


def _privileges(call: Call, text: str) -> frozenset[str]:
    names = split_list(text)
    for name in names:
        if name not in call.cluster.access.privileges:
            raise bad_param("privs", f"invalid format - invalid privilege '{name}'\n")
    return frozenset(names)


def _find_role(call: Call) -> frozenset[str]:
    name = call.params["roleid"]
    if name not in call.cluster.access.roles:
        raise die(f"role '{name}' does not exist")
    return call.cluster.access.roles[name]


def role_list(call: Call) -> object:
    return [
        {"roleid": name, "privs": ",".join(sorted(privileges)), "special": int(name in call.cluster.access.builtin)}
        for name, privileges in sorted(call.cluster.access.roles.items())
    ]


def role_create(call: Call) -> None:
    access, name = call.cluster.access, call.params["roleid"]
    privileges = _privileges(call, call.get("privs") or "")
    if name in access.roles:
        raise die(f"create role failed: role '{name}' already exists")
    if name.upper().startswith("PVE"):
        raise bad_param("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace")
    access.roles[name] = privileges
    access.save()


def role_read(call: Call) -> object:
    return dict.fromkeys(sorted(_find_role(call)), 1)


def role_update(call: Call) -> None:
    access, name = call.cluster.access, call.params["roleid"]
    current = _find_role(call)
    if name in call.cluster.access.builtin:
        raise die(f"auto-generated role '{name}' cannot be modified")
    privileges = _privileges(call, call.get("privs") or "")
    access.roles[name] = current | privileges if call.flag("append") else privileges
    access.save()


def role_delete(call: Call) -> None:
    access, name = call.cluster.access, call.params["roleid"]
    _find_role(call)
    if name in call.cluster.access.builtin:
        raise die(f"auto-generated role '{name}' cannot be deleted")
    del access.roles[name]
    access.acl = [entry for entry in access.acl if entry.role != name]
    access.save()


def group_list(call: Call) -> object:
    access = call.cluster.access
    return [
        {
            "groupid": name,
            "users": ",".join(_members(call, name)),
            **({"comment": comment} if comment else {}),
        }
        for name, comment in sorted(access.groups.items())
        if access.allows(
            call.who, f"/access/groups/{name}", ["User.Modify", "Sys.Audit", "Group.Allocate"], any_of=True
        )
    ]


def group_create(call: Call) -> None:
    access, name = call.cluster.access, call.params["groupid"]
    if name in access.groups:
        raise die(f"create group failed: group '{name}' already exists")
    access.groups[name] = call.get("comment")
    access.save()


def _members(call: Call, name: str) -> list[str]:
    return sorted(user for user, entry in call.cluster.access.users.items() if name in entry.groups)


def _known_group(call: Call, failed: str = "") -> str:
    name = call.params["groupid"]
    if name not in call.cluster.access.groups:
        raise die(f"{failed}group '{name}' does not exist")
    return name


# PVE/API2/Group.pm
def group_read(call: Call) -> object:
    name = _known_group(call)
    comment = call.cluster.access.groups[name]
    return {**({"comment": comment} if comment else {}), "members": _members(call, name)}


def group_update(call: Call) -> None:
    access, name = call.cluster.access, _known_group(call, "update group failed: ")
    if (comment := call.get("comment")) is not None:
        access.groups[name] = comment
        access.save()


def group_delete(call: Call) -> None:
    """The group goes with its rights, and its members leave it."""
    access, name = call.cluster.access, _known_group(call, "delete group failed: ")
    del access.groups[name]
    access.acl = [entry for entry in access.acl if (entry.kind, entry.ugid) != ("group", name)]
    for user in access.users.values():
        user.groups = [group for group in user.groups if group != name]
    access.save()


# --- ACL ---


def acl_list(call: Call) -> object:
    access = call.cluster.access
    auditor = access.allows(call.who, "/access", ["Sys.Audit"])
    return [
        {
            "path": entry.path,
            "ugid": entry.ugid,
            "type": entry.kind,
            "roleid": entry.role,
            "propagate": int(entry.propagate),
        }
        for entry in access.acl
        if auditor or access.allows(call.who, entry.path, ["Permissions.Modify"])
    ]


def _may_grant(call: Call) -> None:
    path = normalise_path(call.params.get("path", ""))
    call.cluster.access.check_perm_modify(call.who, path)


def acl_update(call: Call) -> None:
    access = call.cluster.access
    subjects = [
        (kind, name)
        for kind, parameter in (("user", "users"), ("group", "groups"), ("token", "tokens"))
        for name in split_list(call.get(parameter) or "")
    ]
    if not subjects:
        text = "either 'users', 'groups' or 'tokens' is required."
        raise bad_params(dict.fromkeys(("users", "groups", "tokens"), text))
    path, delete, propagate = normalise_path(call.params["path"]), call.flag("delete"), call.get("propagate") != "0"
    if not delete and not is_acl_path(path):
        raise bad_param("path", f"invalid ACL path '{path}'")
    roles = split_list(call.params["roles"])
    try:
        for role in roles:
            if role not in access.roles:
                raise die(f"role '{role}' does not exist")
            _check_may_hand_out(call, path, role, delete=delete, propagate=propagate)
            for kind, name in subjects:
                _check_subject(call, kind, name)
    except ApiError as error:
        raise die(f"ACL update failed: {error.exit_text()}") from None
    for role in roles:
        for kind, name in subjects:
            if delete:
                access.revoke(path, kind, name, role)
            elif name != ROOT:  # who is always Administrator, and is not written (facts proxmox-9.2, row 12)
                access.grant(path, kind, name, role, propagate)


def _check_may_hand_out(call: Call, path: str, role: str, *, delete: bool, propagate: bool) -> None:
    """Without Permissions.Modify nobody hands out more than they hold (PVE::API2::ACL, update_acl)."""
    access, verb = call.cluster.access, "remove" if delete else "add"
    held = access.permissions(call.who.authid, path)
    if "Permissions.Modify" in held:
        return
    if role == "NoAccess":
        raise bad_param("role", f"Cannot {verb} role '{role}' - requires 'Permissions.Modify'")
    for privilege in sorted(access.roles[role]):
        if privilege not in held:
            rule = "requires 'Permissions.Modify' or superset of privileges."
            raise bad_param("role", f"Cannot {verb} role '{role}' - {rule}")
        if propagate and not held[privilege] and not delete:
            rule = "requires 'Permissions.Modify' or propagated superset of privileges."
            raise bad_param("role", f"Cannot {verb} role '{role}' with propagation - {rule}")


def _check_subject(call: Call, kind: str, name: str) -> None:
    access = call.cluster.access
    if kind == "group" and name not in access.groups:
        raise die(f"group '{name}' does not exist")
    if kind == "user" and name not in access.users:
        raise die(f"user '{name}' does not exist")
    if kind == "token":
        userid, _, tokenid = name.partition("!")
        if userid not in access.users or tokenid not in access.users[userid].tokens:
            raise die(f"no such token '{tokenid}' for user '{userid}'")
