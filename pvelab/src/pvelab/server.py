"""The API over TLS: transport, authentication and error bodies (facts proxmox 0, 1).

``LabServer`` runs in this process, in a thread of its own. It listens on loopback only and trusts nobody without a
token or a ticket.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, unquote_plus
from weakref import WeakSet

from aiohttp import web

from pvelab import guestconfig
from pvelab.access import AclEntry, AuthenticationError, Identity, User
from pvelab.api import build_router
from pvelab.certificates import ensure_certificates
from pvelab.cluster import Cluster
from pvelab.config import LabConfig
from pvelab.control import SOCKET, serve_control
from pvelab.errors import ApiError, die
from pvelab.faults import Faults, Rule
from pvelab.faults import operations as fault_operations
from pvelab.instance import TOKEN_FILE, write_secret
from pvelab.pct import node_operations
from pvelab.routing import NO_WAY, Call, Method, not_implemented, prepare
from pvelab.runtime import RuntimeFault

BASE = "/api2/json"
_MAX_BODY = 1 << 20
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """The account's token. ``token_file`` (mode 0600) holds ``USER@REALM!NAME=SECRET``."""

    token_id: str
    secret: str
    token_file: Path

    @property
    def api_token(self) -> str:
        return f"{self.token_id}={self.secret}"

    def __repr__(self) -> str:
        return f"Credentials({self.token_id!r})"


class LabServer:
    """A lab that answers. Use it as a context manager, or call :meth:`start` and :meth:`stop`."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config
        self.cluster = Cluster(config)
        guestconfig.install_post_stop(self.cluster)
        certificates = ensure_certificates(config.state_dir / "ca", (*config.nodes, "localhost", "127.0.0.1", "::1"))
        self.ca_file = certificates.ca_file
        self.cluster.fingerprint = certificates.fingerprint
        self._certificates = certificates
        self._router = build_router(config.release)
        self._pool = ThreadPoolExecutor(max_workers=128, thread_name_prefix="lab-api")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stopping: asyncio.Event | None = None
        self._transports: WeakSet[asyncio.Transport] = WeakSet()
        self.port = config.port
        self._ports: dict[int, str] = {}
        self._access_log = AccessLog(config.state_dir / "access.log")
        self.faults = Faults(config.state_dir / "faults.log", on_clear=self.cluster.locks.give_back)
        self.cluster.tasks.intercept = self.faults.intercept
        self.cluster.volumes.is_full = self.faults.storage_full
        self.cluster.broadcast.disturbance = self.faults.statistics
        self.cluster.is_offline = self.faults.offline
        self.cluster.is_inquorate = self.faults.inquorate

    # --- life ---

    @property
    def endpoint(self) -> str:
        return f"https://{self.config.host}:{self.port}/"

    @property
    def endpoints(self) -> dict[str, str]:
        """One address per node. Each answers for the whole cluster, as a node proxies for the others."""
        return {node: f"https://{self.config.host}:{port}/" for port, node in self._ports.items()}

    @property
    def access_log(self) -> Path:
        """JSON lines: time, method, path, status, authid, write."""
        return self._access_log.path

    def start(self) -> None:
        """Release what a crash left, then listen; returns when it does."""
        self.cluster.recover()
        self._thread = threading.Thread(target=self._serve, name="lab-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        description = {
            "endpoint": self.endpoint,
            "port": self.port,
            "ca_file": str(self.ca_file),
            "pid": os.getpid(),
            "nodes": self.endpoints,
        }
        (self.config.state_dir / "server.json").write_text(json.dumps(description, indent=1) + "\n")

    def stop(self) -> None:
        """Stop listening; guests stay as they are. Running tasks get a few seconds, then an interrupt."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self.cluster.tasks.wait_idle(5.0)
        for task in self.cluster.tasks.active():
            task.aborted.set()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._access_log.close()
        self._thread = None
        (self.config.state_dir / "server.json").unlink(missing_ok=True)

    def __enter__(self) -> LabServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def seed_access(self) -> Credentials:
        """The configuration's account: user, token and rights; safe to repeat, and the secret stays."""
        access, account = self.cluster.access, self.config.account
        path = self.config.state_dir / TOKEN_FILE
        access.users.setdefault(account.user, User(comment=account.comment))
        for role, privileges in account.roles.items():
            access.roles[role] = frozenset(privileges)
        wanted = [
            AclEntry(place, kind, ugid, role)
            for place, role in account.acl
            for kind, ugid in (("user", account.user), ("token", account.token_id))
        ]
        access.acl += [entry for entry in wanted if entry not in access.acl]
        access.save()
        secret = path.read_text().strip().partition("=")[2] if path.exists() else ""
        if not access.token_matches(account.user, account.token, secret):
            secret = access.add_token(
                account.user, account.token, privsep=True, comment=account.comment, secret=secret or None
            )
            write_secret(path, f"{account.token_id}={secret}\n")
        return Credentials(account.token_id, secret, path)

    def reset(self) -> Credentials:
        """Be as a new lab at the same address, with the same certificate and the same token for the account."""
        self.faults.clear()
        self.cluster.reset()
        self.faults.log_file.unlink(missing_ok=True)
        return self.seed_access()

    def _reset_order(self, _order: dict[str, Any]) -> dict[str, Any]:
        self.reset()
        return {}

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # the caller of start() gets it
            self._failure = error
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificates.server_file)
        for number, node in enumerate(self.config.nodes):
            wanted = self.config.port if number == 0 else 0
            await web.TCPSite(runner, self.config.host, wanted, ssl_context=context).start()
            self._ports[runner.addresses[-1][1]] = node
        self.port = next(iter(self._ports))
        control = await self._open_control()
        self._ready.set()
        await self._stopping.wait()
        if control is not None:
            control.close()
            (self.config.state_dir / SOCKET).unlink(missing_ok=True)
        await runner.cleanup()
        # A client that went away without a TLS farewell would keep its transport half closed past the loop's end.
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _open_control(self) -> asyncio.Server | None:
        if not self.config.control:
            return None
        offered = {**fault_operations(self.faults), **node_operations(self.cluster), "reset": self._reset_order}
        return await serve_control(offered, self.config.state_dir)

    # --- one request ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        began = time.monotonic()
        if request.transport is not None:
            self._transports.add(request.transport)
        authid: list[str] = []
        path = unquote(request.rel_url.raw_path).removeprefix(BASE)
        if self.faults.offline(self._node_of(request)):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        rules = self.faults.for_request(request.method, path)
        response: web.Response | None = await self._disturb(request, path, rules, "before")
        if response is None:
            response = await self._answer(request, authid)
            response = await self._disturb(request, path, rules, "after") or response
        status = response.status if request.transport is not None and not request.transport.is_closing() else 0
        self._access_log.write(request.method, request.rel_url.raw_path, status, authid, began)
        return response

    async def _disturb(self, request: web.Request, path: str, rules: list[Rule], when: str) -> web.Response | None:
        """Carry out the faults of one request; a response stands for the real one."""
        for rule in (rule for rule in rules if rule.when == when):
            if rule.kind == "delay":
                await asyncio.sleep(rule.seconds)
            elif rule.kind == "lock":
                match = re.search(r"/lxc/(\d+)", path)
                vmid = rule.vmid or (int(match.group(1)) if match else None)
                if vmid is not None:
                    await asyncio.to_thread(self.cluster.locks.seize, vmid, rule.seconds)
            elif rule.kind == "drop":
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=500)
            else:
                return _failure(ApiError(rule.status, rule.text))
        return None

    async def _answer(self, request: web.Request, authid: list[str]) -> web.Response:
        """Every refusal in its place: 401, 501, then what :func:`pvelab.routing.prepare` and the handler say."""
        path = unquote(request.rel_url.raw_path).removeprefix(BASE)
        try:
            found = self._router.find(request.method, path)
            who = self._authenticate(request, public=found is not None and found[0].public)
            authid.append(who.authid)
            if found is None:
                return _failure(not_implemented(request.method, path))
            method, path_params = found
            call = Call(self.cluster, who, await _parameters(request), local_node=self._node_of(request))
            prepare(method, path, path_params, call)
            data = await asyncio.get_running_loop().run_in_executor(self._pool, self._run_method, method, path, call)
        except AuthenticationError as error:
            return await self._unauthorised(str(error))
        except ApiError as error:
            if error.status == 401:
                await asyncio.sleep(self.config.auth_delay)
            return _failure(error)
        except RuntimeFault as fault:
            return _failure(die(str(fault)))
        except Exception as error:  # a bug of the lab: said as such, never made into something of Proxmox's
            _LOGGER.exception("the lab failed on %s %s", request.method, path)
            return _failure(die(f"internal error of the lab: {type(error).__name__}: {error}"))
        return web.json_response({"data": data, **call.extra}, dumps=_dump)

    def _node_of(self, request: web.Request) -> str:
        """The node that was asked, by the port that it listens on."""
        own = request.get_extra_info("sockname")
        return self._ports.get(own[1] if own else 0, self.config.nodes[0])

    def _run_method(self, method: Method, path: str, call: Call) -> object:
        with self.faults.serving(method.verb, path):
            return method.handler(call)

    def _authenticate(self, request: web.Request, *, public: bool) -> Identity:
        """Ticket first, then token (facts proxmox 1)."""
        access = self.cluster.access
        ticket = request.cookies.get("PVEAuthCookie")
        if ticket:
            identity = access.authenticate_ticket(unquote(ticket))
            if request.method != "GET" and not public:
                access.check_csrf(identity, request.headers.get("CSRFPreventionToken", ""))
            return identity
        header = request.headers.get("Authorization")
        if header is not None and header.startswith("PVEAPIToken"):
            return access.authenticate_header(header)
        if public:
            return Identity("")
        raise AuthenticationError("No ticket")

    async def _unauthorised(self, reason: str) -> web.Response:
        await asyncio.sleep(self.config.auth_delay)
        response = web.Response(status=401, reason=reason)
        response.force_close()
        return response


async def _parameters(request: web.Request) -> dict[str, str]:
    """Body (form or JSON) and query together; a repeated name becomes a NUL-separated list."""
    params: dict[str, str] = {}
    if request.method in ("POST", "PUT"):
        text = (await request.read()).decode("utf-8", errors="replace")
        params = _json_parameters(text) if request.content_type == "application/json" else _form_parameters(text)
    return {**params, **_form_parameters(request.rel_url.raw_query_string)}


def _form_parameters(text: str) -> dict[str, str]:
    """As decode_urlencoded does: parted at ``&`` and ``;``, and a value ends at a second ``=``."""
    params: dict[str, str] = {}
    for pair in filter(None, re.split("[&;]", text)):
        key, value = (unquote_plus(part) for part in [*pair.split("="), ""][:2])
        params[key] = f"{params[key]}\0{value}" if key in params else value
    return params


def _json_parameters(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ApiError(400, f"malformed JSON body: {error}") from None
    if not isinstance(body, Mapping):
        raise ApiError(400, "malformed JSON body: not an object")
    return {str(key): _text(value) for key, value in body.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list):
        return "\0".join(_text(entry) for entry in value)
    return str(value)


def _dump(body: object) -> str:
    return json.dumps(body, separators=(",", ":"))


def _failure(error: ApiError) -> web.Response:
    if error.status == NO_WAY:
        # The node that answers made it up from the connection that failed (PVE::APIServer::AnyEvent, proxy_request).
        response = web.Response(status=error.status, reason=_reason(error.reason))
        response.force_close()
        return response
    message = error.message if error.message.endswith("\n") else error.message + "\n"
    body: dict[str, object] = {"data": None, "message": message}
    if error.errors is not None:
        body["errors"] = error.errors
    response = web.json_response(body, status=error.status, reason=_reason(error.reason), dumps=_dump)
    response.force_close()
    return response


def _reason(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


class AccessLog:
    """One JSON line per answered request; ``write`` tells what may have changed something."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = path.open("a", buffering=1)

    def write(self, method: str, path: str, status: int, authid: list[str], began: float) -> None:
        entry = {
            "time": round(time.time(), 3),
            "method": method,
            "path": unquote(path),
            "status": status,
            "authid": authid[0] if authid else None,
            "write": method != "GET",
            "ms": round((time.monotonic() - began) * 1000, 1),
        }
        if not self._handle.closed:
            self._handle.write(json.dumps(entry) + "\n")

    def close(self) -> None:
        self._handle.close()
