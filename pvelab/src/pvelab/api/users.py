"""/access/users, tokens, roles, groups, ACL (facts proxmox 1, 14)."""

from __future__ import annotations

from pvelab.access import BUILTIN_ROLES, PRIVILEGES, ROOT, Identity, Token, User, is_acl_path, normalise_path
from pvelab.errors import ApiError, bad_param, denied, die
from pvelab.routing import Call, Router, anybody, in_method, on_path
from pvelab.schema import Prop, config_id, split_list, user_id

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
    modify = on_path("/access/groups", "User.Modify")
    users = "/access/users"
    router.add("GET", users, check=anybody, params={"enabled": Prop("boolean"), "full": Prop("boolean")})(user_list)
    router.add(
        "POST",
        users,
        check=modify,
        params={"userid": _USERID, "password": Prop(min_length=8, max_length=64), **_USER_FIELDS},
    )(user_create)
    router.add("GET", users + "/{userid}", check=in_method)(user_read)
    router.add(
        "PUT", users + "/{userid}", check=modify, params={**_USER_FIELDS, "append": Prop("boolean", requires="groups")}
    )(user_update)
    router.add("DELETE", users + "/{userid}", check=modify)(user_delete)
    router.add(
        "PUT",
        "/access/password",
        check=in_method,
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
        check=in_method,
        params={
            "path": Prop(required=True),
            "roles": Prop(required=True),
            "users": Prop(),
            "groups": Prop(),
            "tokens": Prop(),
            "propagate": Prop("boolean"),
            "delete": Prop("boolean"),
        },
    )(acl_update)


# --- users ---


def _find_user(call: Call) -> User:
    user = call.cluster.access.users.get(call.params["userid"])
    if user is None:
        raise die(f"no such user ('{call.params['userid']}')")
    return user


def _shown_user(user: User) -> dict[str, object]:
    shown: dict[str, object] = {"enable": int(user.enable), "expire": user.expire}
    if user.comment is not None:
        shown["comment"] = user.comment
    return shown


def user_list(call: Call) -> object:
    """All users with User.Modify or Sys.Audit, else only the own entry; ``full``: groups and tokens, too."""
    access = call.cluster.access
    all_of_them = access.allows(call.who, "/access/groups", ["User.Modify", "Sys.Audit"], any_of=True)
    return [
        {
            "userid": name,
            "realm-type": name.rpartition("@")[2],
            **_shown_user(user),
            **(_memberships(user) if call.flag("full") else {}),
        }
        for name, user in sorted(access.users.items())
        if (all_of_them or name == call.who.user) and call.get("enabled") in (None, str(int(user.enable)))
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
    access.check(call.who, f"/access/realm/{realm}", ["Realm.AllocateUser"])
    if realm not in ("pam", "pve"):
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
    if call.params["userid"] != call.who.user:
        call.cluster.access.check(call.who, "/access/groups", ["User.Modify", "Sys.Audit"], any_of=True)
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
    """Own password, or any with User.Modify; tokens may not."""
    if call.params["userid"] != call.who.authid:
        call.cluster.access.check(call.who, "/access/groups", ["User.Modify"])
    _find_user(call)
    call.cluster.access.set_password(call.params["userid"], call.params["password"])


# --- tokens ---


def _own_tokens(call: Call) -> None:
    if call.params["userid"] != call.who.authid:
        call.cluster.access.check(call.who, "/access/groups", ["User.Modify"])


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
    info = _shown_token(_find_token(call))
    return {"full-tokenid": f"{userid}!{tokenid}", "value": secret, "info": info}


def token_update(call: Call) -> object:
    token = _find_token(call)
    if call.get("privsep") is not None:
        token.privsep = call.flag("privsep")
    token.expire = call.number("expire", token.expire)
    token.comment = call.get("comment") or token.comment
    call.cluster.access.save()
    return _shown_token(token)


def token_delete(call: Call) -> None:
    _find_token(call)
    userid, tokenid = call.params["userid"], call.params["tokenid"]
    call.cluster.access.forget_subject("token", f"{userid}!{tokenid}")
    del call.cluster.access.users[userid].tokens[tokenid]
    call.cluster.access.save()


# --- roles and groups ---


def _privileges(text: str) -> frozenset[str]:
    names = split_list(text)
    for name in names:
        if name not in PRIVILEGES:
            raise bad_param("privs", f"invalid format - invalid privilege '{name}'\n")
    return frozenset(names)


def _find_role(call: Call) -> frozenset[str]:
    name = call.params["roleid"]
    if name not in call.cluster.access.roles:
        raise die(f"role '{name}' does not exist")
    return call.cluster.access.roles[name]


def role_list(call: Call) -> object:
    return [
        {"roleid": name, "privs": ",".join(sorted(privileges)), "special": int(name in BUILTIN_ROLES)}
        for name, privileges in sorted(call.cluster.access.roles.items())
    ]


def role_create(call: Call) -> None:
    access, name = call.cluster.access, call.params["roleid"]
    privileges = _privileges(call.get("privs") or "")
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
    if name in BUILTIN_ROLES:
        raise die(f"auto-generated role '{name}' cannot be modified")
    privileges = _privileges(call.get("privs") or "")
    access.roles[name] = current | privileges if call.flag("append") else privileges
    access.save()


def role_delete(call: Call) -> None:
    access, name = call.cluster.access, call.params["roleid"]
    _find_role(call)
    if name in BUILTIN_ROLES:
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


def _may_grant(who: Identity, call: Call, path: str) -> bool:
    access = call.cluster.access
    if access.allows(who, path, ["Permissions.Modify"]):
        return True
    branch = path.split("/")[1] if path != "/" else ""
    privilege = {"storage": "Datastore.Allocate", "vms": "VM.Allocate", "pool": "Pool.Allocate"}.get(branch)
    return privilege is not None and access.allows(who, path, [privilege])


def acl_update(call: Call) -> None:
    access = call.cluster.access
    path = normalise_path(call.params["path"])
    if not is_acl_path(path):
        raise bad_param("path", f"invalid ACL path '{path}'")
    if not _may_grant(call.who, call, path):
        raise denied(f"{path}, Permissions.Modify")
    subjects = [
        (kind, name)
        for kind, parameter in (("user", "users"), ("group", "groups"), ("token", "tokens"))
        for name in split_list(call.get(parameter) or "")
    ]
    if not subjects:
        text = "property is missing and it is not optional"
        raise ApiError(400, "Parameter verification failed.", dict.fromkeys(("users", "groups", "tokens"), text))
    roles = split_list(call.params["roles"])
    for role in roles:
        if role not in access.roles:
            raise die(f"ACL update failed: role '{role}' does not exist")
        for kind, name in subjects:
            _check_subject(call, kind, name)
    for role in roles:
        for kind, name in subjects:
            if call.flag("delete"):
                access.revoke(path, kind, name, role)
            else:
                access.grant(path, kind, name, role, call.get("propagate") != "0")


def _check_subject(call: Call, kind: str, name: str) -> None:
    access = call.cluster.access
    if kind == "group" and name not in access.groups:
        raise die(f"ACL update failed: group '{name}' does not exist")
    if kind == "user" and name not in access.users:
        raise die(f"ACL update failed: user '{name}' does not exist")
    if kind == "token":
        userid, _, tokenid = name.partition("!")
        if userid not in access.users or tokenid not in access.users[userid].tokens:
            raise die(f"ACL update failed: no such token '{tokenid}' for user '{userid}'")
