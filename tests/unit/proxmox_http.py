"""A server at the level of HTTP, in memory: what it answers is written down, what it was asked is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import requests
from pydantic import SecretStr
from requests.adapters import BaseAdapter

from proxmox.client import Proxmox, Timings
from proxmox.connection import Connection

SECRET = "12345678-aaaa-bbbb-cccc-1234567890ab"
CONNECTION = Connection("https://192.0.2.1:8006", "pulumi@pve!ci", SecretStr(SECRET), "pve", insecure=True)
LOCKED = "can't lock file '/run/lock/lxc/pve-config-105.lock' - got timeout"
UPID = "UPID:pve:0012A4F1:0A3C5E77:68B0C1D2:vzstart:105:pulumi@pve!ci:"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. `lost`: the request has its effect, and the connection breaks before the answer arrives."""

    status: int = 200
    reason: str = "OK"
    body: str = '{"data":null}'
    lost: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def data(value: object) -> Answer:
    """200 with data."""
    return Answer(body=json.dumps({"data": value}))


def die(reason: str, status: int = 500, errors: Mapping[str, str] | None = None) -> Answer:
    """An error as Proxmox gives it (facts proxmox 0)."""
    body: dict[str, Any] = {"data": None, "message": f"{reason}\n"}
    if errors:
        body["errors"] = errors
    return Answer(status, reason, json.dumps(body))


def entries(**config: Any) -> Answer:
    """A guest's configuration, with nothing that waits."""
    return data([{"key": key, "value": value} for key, value in config.items()])


def power(running: bool, lock: str | None = None) -> Answer:
    """Whether a guest runs."""
    return data({"status": "running" if running else "stopped", "lock": lock})


def containers(found: Mapping[int, Mapping[str, Any]], running: Container[int] = ()) -> dict[str, Answer]:
    """Routes of containers on the node pve: the cluster's list of them; of each its configuration and power."""
    routes = {"GET /cluster/resources": data([{"vmid": vmid, "type": "lxc", "node": "pve"} for vmid in found])}
    for vmid, config in found.items():
        routes |= {
            f"GET /nodes/pve/lxc/{vmid}/pending": entries(**config),
            f"GET /nodes/pve/lxc/{vmid}/snapshot": data([]),
            f"GET /nodes/pve/lxc/{vmid}/status/current": power(vmid in running),
        }
    return routes


LOST = Answer(lost=True)
"""The connection breaks."""


@dataclass(frozen=True)
class Request:
    """What was asked, with the parameters of query or body."""

    method: str
    path: str
    values: Mapping[str, str]


class Server(BaseAdapter):
    """Answers by "METHOD /path": each answer once, the last one for ever. A function answers for itself."""

    def __init__(self, routes: Mapping[str, Answer | Sequence[Answer] | Callable[[Request], Answer]]) -> None:
        super().__init__()
        self.routes: dict[str, Iterator[Answer] | Callable[[Request], Answer]] = {}
        for name, answers in routes.items():
            if callable(answers):
                self.routes[name] = answers
            else:
                found = [answers] if isinstance(answers, Answer) else list(answers)
                self.routes[name] = chain(found, repeat(found[-1]))
        self.asked: list[Request] = []
        self.headers: list[Mapping[str, str]] = []
        self.slept: list[float] = []

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        del args, kwargs
        url = urlsplit(str(request.url))
        body = request.body.decode() if isinstance(request.body, bytes) else request.body or ""
        values = dict(parse_qsl(url.query or str(body), keep_blank_values=True))
        asked = Request(str(request.method), unquote(url.path).removeprefix("/api2/json"), values)
        self.asked.append(asked)
        self.headers.append(dict(request.headers))
        name = f"{asked.method} {asked.path}"
        # Who is told by its rows has no raw lines unless a test says so.
        rows = name.removesuffix("/config") + "/pending"
        if name.endswith("/config") and name not in self.routes and rows in self.routes:
            self.routes[name] = repeat(data({}))
        route = self.routes[name]
        answer = route(asked) if callable(route) else next(route)
        if answer.lost:
            raise requests.exceptions.ConnectionError("Connection aborted.", ConnectionResetError(104, "reset by peer"))
        response = requests.Response()
        response.status_code = answer.status
        response.reason = answer.reason
        response.url = str(request.url)
        response.request = request
        response.headers.update(answer.headers)
        response._content = answer.body.encode()
        return response

    def close(self) -> None:
        """Nothing to close."""

    def count(self, method: str) -> int:
        """How many requests with this method came."""
        return sum(asked.method == method for asked in self.asked)

    def client(self, timings: Timings | None = None) -> Proxmox:
        """A client of this server, whose pauses take no time and are kept in `slept`."""
        client = Proxmox(CONNECTION, timings or Timings(), clock=lambda: sum(self.slept), sleep=self.slept.append)
        client._session.mount("https://", self)
        return client
