"""The method table: path, schema, rights, handler; and the order in which a request is checked (facts proxmox 0)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pvelab.access import Identity
from pvelab.cluster import Cluster
from pvelab.errors import ApiError, bad_param, denied, die
from pvelab.schema import Prop, Schema, config_id, node_name, pool_id, storage_id, validate, vmid, without


@dataclass
class Call:
    """One request on its way: who asks, the parameters of path, query and body together, and what goes beside data."""

    cluster: Cluster
    who: Identity
    params: dict[str, str]
    extra: dict[str, object] = field(default_factory=dict)
    local_node: str | None = None
    """The node that was asked; None is the first."""

    @property
    def node(self) -> str:
        return self.params["node"]

    @property
    def vmid(self) -> int:
        return int(self.params["vmid"])

    def get(self, name: str) -> str | None:
        return self.params.get(name)

    def flag(self, name: str) -> bool:
        return self.params.get(name) == "1"

    def number(self, name: str, default: int) -> int:
        return int(self.params.get(name, default))

    def without_path(self, *names: str) -> dict[str, str]:
        """The parameters apart from the named ones (path parameters mostly)."""
        return {key: value for key, value in self.params.items() if key not in names}


NO_WAY = 595
"""AnyEvent::HTTP's status for a connection that could not be made: what a node says of another one that is down."""

Handler = Callable[[Call], object]
"""Returns what becomes ``data``; None is null."""
Check = Callable[[Call], None]


@dataclass(frozen=True)
class Method:
    verb: str
    template: str
    handler: Handler
    schema: Schema
    check: Check
    allow_token: bool = True
    public: bool = False


PATH_PARAMETERS: dict[str, Prop] = {
    "node": Prop(required=True, format=node_name),
    "vmid": Prop("integer", required=True, format=vmid),
    "storage": Prop(required=True, format=storage_id),
    "upid": Prop(required=True),
    "volume": Prop(required=True),
    "snapname": Prop(required=True, format=config_id, max_length=40),
    "userid": Prop(required=True, max_length=64),
    "tokenid": Prop(required=True, pattern=r"[A-Za-z][A-Za-z0-9.\-_]+"),
    "roleid": Prop(required=True),
    "groupid": Prop(required=True, format=config_id),
    "poolid": Prop(required=True, format=pool_id),
}


def anybody(call: Call) -> None:
    """Any authenticated user."""


def in_method(call: Call) -> None:
    """The method checks for itself, after the schema."""


def guest(*privileges: str, any_of: bool = False) -> Check:
    """Privileges on the guest of the path."""

    def check(call: Call) -> None:
        call.cluster.access.check(call.who, f"/vms/{call.params['vmid']}", privileges, any_of=any_of)

    return check


def on_storage(*privileges: str) -> Check:
    """Any of the privileges on the storage of the path."""

    def check(call: Call) -> None:
        path = f"/storage/{call.params['storage']}"
        call.cluster.access.check(call.who, path, privileges, any_of=True)

    return check


def on_path(path: str, *privileges: str, any_of: bool = False) -> Check:
    """Privileges on a path in which ``{name}`` stands for a parameter."""

    def check(call: Call) -> None:
        call.cluster.access.check(call.who, path.format(**call.params), privileges, any_of=any_of)

    return check


class Router:
    def __init__(self, unknown: frozenset[str] = frozenset()) -> None:
        """``unknown``: parameters, and keys in them, that no method takes."""
        self._unknown = unknown
        self._by_shape: dict[tuple[str, int], list[tuple[re.Pattern[str], Method]]] = {}

    def add(
        self,
        verb: str,
        template: str,
        *,
        check: Check,
        params: Mapping[str, Prop] | None = None,
        allow_token: bool = True,
        public: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Register a handler; the schema is the path's parameters and ``params``."""
        names = re.findall(r"{(\w+)}", template)
        schema = {**{name: PATH_PARAMETERS[name] for name in names}, **(params or {})}
        # A volume may contain a slash, written out or escaped: it takes the rest of the path.
        pattern = re.sub(
            r"{(\w+)}", lambda m: f"(?P<{m[1]}>.+)" if m[1] == "volume" else f"(?P<{m[1]}>[^/]+)", template
        )

        def register(handler: Handler) -> Handler:
            known = without(schema, self._unknown) if self._unknown else schema
            method = Method(verb, template, handler, known, check, allow_token, public)
            shape = (verb, template.count("/"))
            self._by_shape.setdefault(shape, []).append((re.compile(pattern), method))
            return handler

        return register

    def find(self, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
        """The method and its path parameters; None is a 501."""

        for shape in ((verb, path.count("/")), (verb, path.count("/") - 1)):
            for pattern, method in self._by_shape.get(shape, ()):
                if match := pattern.fullmatch(path):
                    return method, match.groupdict()
        return None

    def methods(self) -> list[Method]:
        return [method for entries in self._by_shape.values() for _, method in entries]


def prepare(method: Method, path: str, path_params: Mapping[str, str], call: Call) -> None:
    """Everything between route lookup and the handler, in Proxmox's order; raises the first refusal."""
    for name, value in path_params.items():
        if name in call.params and call.params[name] != value:
            raise bad_param(name, "duplicate parameter (already defined in URI) with conflicting values!")
        call.params[name] = value
    if call.who.token is not None and not method.allow_token:
        raise denied(f"URI '{path}' not available with API token, need proper ticket.\n")
    method.check(call)
    node = path_params.get("node")
    if node is not None and node != "localhost" and node not in call.cluster.config.nodes:
        raise die(
            f"hostname lookup '{node}' failed - failed to get address info for: {node}: Name or service not known"
        )
    if node not in (None, "localhost", call.local_node) and call.cluster.is_offline(node):
        raise ApiError(NO_WAY, "No route to host")
    if method.verb != "GET" and method.template.startswith(("/access/", "/pools")) and call.cluster.is_inquorate():
        raise ApiError(501, "a change of users, rights or pools without a quorum is not modelled by this lab")
    if node == "localhost":
        call.params["node"] = call.local_node or call.cluster.config.nodes[0]
    validate(method.schema, call.params, call.cluster.config.release.unmet)


def not_implemented(verb: str, path: str) -> ApiError:
    return ApiError(501, f"Method '{verb} {path}' not implemented")
