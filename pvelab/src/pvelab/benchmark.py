"""How the API fares with many guests: ``python -m pvelab.benchmark [--guests N] [--nodes N]``.

Two hundred guests on two nodes unless told otherwise, without containers. It prints what it measured, in milliseconds,
and judges nothing: how fast a machine is does not belong into a test.
"""

from __future__ import annotations

import argparse
import json
import ssl
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from pvelab.config import LabConfig, storages_for
from pvelab.ending import end_with
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template

FIRST = 1000
REPEATS = 15


class Client:
    """One kept connection, as a client of the API has it."""

    def __init__(self, server: LabServer) -> None:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        self._connection = HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)
        self._headers = {"Authorization": f"PVEAPIToken={server.seed_access().api_token}"}

    def call(self, method: str, path: str, **form: str | int) -> Any:
        body = urllib.parse.urlencode(form) if form else None
        self._connection.request(method, f"/api2/json{path}", body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.reason}")
        return json.loads(text)["data"]

    def close(self) -> None:
        self._connection.close()


def measured(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median of some runs, in milliseconds."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1000


def benchmark(guests: int, nodes: int, folder: Path) -> dict[str, float]:
    """Figures by name, in milliseconds."""
    names = ("pve", *(f"pve{number}" for number in range(2, nodes + 1)))
    config = LabConfig(folder, SimulatedRuntime(), nodes=names, storages=storages_for(names), broadcast_interval=0)
    figures: dict[str, float] = {}
    began = time.perf_counter()
    with LabServer(config) as server:
        figures["start of the lab"] = (time.perf_counter() - began) * 1000
        templates = {write_template(config.template_dir(node)).name for node in names}
        client = Client(server)
        places = {FIRST + number: names[number % nodes] for number in range(guests)}
        began = time.perf_counter()
        for vmid, node in places.items():
            client.call(
                "POST",
                f"/nodes/{node}/lxc",
                vmid=vmid,
                ostemplate=f"local:vztmpl/{min(templates)}",
                rootfs="local-lvm:4",
                mp0="local-lvm:1,mp=/data",
                net0="name=eth0,bridge=vmbr0,ip=dhcp",
                features="nesting=1",
                start=vmid % 2,
            )
        server.cluster.tasks.wait_idle(120)
        figures["create, each"] = (time.perf_counter() - began) * 1000 / guests

        def all_configs() -> None:
            for vmid, node in places.items():
                client.call("GET", f"/nodes/{node}/lxc/{vmid}/config")

        reads = {
            "version": "/version",
            "one config": f"/nodes/pve/lxc/{FIRST}/config",
            "cluster/resources, all guests": "/cluster/resources?type=vm",
            "nodes/pve/lxc": "/nodes/pve/lxc",
            "content of local-lvm": "/nodes/pve/storage/local-lvm/content",
            "nextid": "/cluster/nextid",
        }
        for name, path in reads.items():
            figures[name] = measured(lambda path=path: client.call("GET", path))  # type: ignore[misc]
        figures["every config, one by one"] = measured(all_configs, 3)
        client.close()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pvelab.benchmark", description="Measure the lab's API.")
    parser.add_argument("--guests", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = benchmark(chosen.guests, chosen.nodes, Path(folder) / "lab")
    sys.stdout.write(f"{chosen.guests} guests on {chosen.nodes} node(s); milliseconds, medians\n")
    for name, value in figures.items():
        sys.stdout.write(f"{name:<32} {value:9.1f}\n")
    return 0


if __name__ == "__main__":
    end_with(main)
