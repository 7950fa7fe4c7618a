"""Cutting an operation off at each of its API calls: the tools of the tests about that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import requests
from requests.adapters import BaseAdapter

from lab.config import LabConfig
from lab.server import LabServer
from lab.simulated import SimulatedRuntime
from proxmox.client import Proxmox, Timings
from proxmox.connection import Connection

TEMPLATE = "local:vztmpl/debian-12.tar.zst"
QUICK = Timings(retry=20, lock=20, task=30, poll=0.02, first_poll=0.005)


class KilledError(BaseException):
    """The process is gone: nothing that it would still do reaches the server."""


@dataclass
class Cutter(BaseAdapter):
    """Hands requests on, and does `what` at request number `at`, counted from 0.

    kill-before, kill-after: the process dies before or after the request's effect. drop-before, drop-after: the
    connection breaks. error-after: the effect is there, the answer is a proxy's error. lock: the guest is held once.
    """

    inner: BaseAdapter
    at: int = -1
    what: str = ""
    calls: list[str] = field(default_factory=list)
    dead: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        with self._guard:
            if self.dead:
                raise KilledError
            number = len(self.calls)
            self.calls.append(f"{request.method} {request.path_url}")
            mine = number == self.at
            self.dead = mine and self.what == "kill-before"
        if mine and self.what == "kill-before":
            raise KilledError
        if mine and self.what == "drop-before":
            raise requests.exceptions.ConnectionError("Connection aborted.", ConnectionResetError(104, "reset"))
        if mine and self.what == "lock":
            return _answer(request, 500, "can't lock file '/run/lock/lxc/pve-config-105.lock' - got timeout")
        response = self.inner.send(request, *args, **kwargs)
        if mine:
            response.close()
        if mine and self.what == "kill-after":
            self.dead = True
            raise KilledError
        if mine and self.what == "drop-after":
            raise requests.exceptions.ConnectionError("Connection aborted.", ConnectionResetError(104, "reset"))
        if mine and self.what == "error-after":
            return _answer(request, 596, "Connection timed out")
        return response

    def close(self) -> None:
        """Close the connections."""
        self.inner.close()


def _answer(request: requests.PreparedRequest, status: int, reason: str) -> requests.Response:
    response = requests.Response()
    response.status_code, response.reason, response.url, response.request = status, reason, str(request.url), request
    response._content = b'{"data":null}'
    return response


class Lab:
    """A lab without containers, and clients for it."""

    def __init__(self, folder: Path) -> None:
        self.config = LabConfig(state_dir=folder, runtime=SimulatedRuntime(), auth_delay=0)
        self.config.template_dir("pve").mkdir(parents=True, exist_ok=True)
        (self.config.template_dir("pve") / "debian-12.tar.zst").write_bytes(b"template")
        self.server = LabServer(self.config)
        self._numbers = count(200, 10)

    @contextmanager
    def serve(self) -> Iterator[Lab]:
        with self.server:
            self.token = self.server.seed_demo_access().api_token
            yield self

    def connection(self, **more: str) -> Connection:
        env = {
            "PROXMOX_VE_ENDPOINT": self.server.endpoint,
            "PROXMOX_VE_API_TOKEN": self.token,
            "PROXMOX_VE_CA_FILE": str(self.server.ca_file),
            "PROXMOX_VE_NODE": "pve",
        }
        return Connection.from_sources(env | more, {})

    def client(self) -> Proxmox:
        return Proxmox(self.connection(), QUICK)

    def cut_client(self, at: int = -1, what: str = "") -> tuple[Proxmox, Cutter]:
        client = self.client()
        cutter = Cutter(client._session.get_adapter(self.server.endpoint), at, what)
        client._session.mount("https://", cutter)
        return client, cutter

    def numbers(self) -> int:
        """The first of ten numbers that no guest has yet."""
        return next(self._numbers)


def make(client: Proxmox, vmid: int, *, protection: bool = False) -> None:
    """A container as the provider plugin makes it: stopped."""
    values = {
        "vmid": vmid,
        "ostemplate": TEMPLATE,
        "rootfs": "local-lvm:1",
        "hostname": f"ct{vmid}",
        "unprivileged": 1,
        "features": "nesting=1",
        "protection": int(protection),
        "memory": 256,
    }
    client.wait_task(client._send("POST", ("nodes", "pve", "lxc"), values))


def unmake(client: Proxmox, vmid: int) -> None:
    """Stop, unprotect and destroy."""
    if client.guest_status("pve", vmid).running:
        client.stop("pve", vmid)
    client._send("PUT", ("nodes", "pve", "lxc", vmid, "config"), {"protection": 0})
    client.wait_task(client._send("DELETE", ("nodes", "pve", "lxc", vmid)))


def volumes(client: Proxmox, vmid: int) -> list[str]:
    """The volumes of a guest, by the storage's list."""
    return [volume.volid for volume in client.storage_content("pve", "local-lvm", vmid=vmid)]


Act = Callable[[Proxmox], object]
