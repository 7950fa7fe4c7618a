"""Real reverse proxies, with the configurations of examples/reverse-proxy, on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tenacity
import trustme

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "reverse-proxy"
TOOLS = CHECKOUT / ".cache" / "tools" / "usr"
NAME = "hermes.home.arpa"
"""The host name in the examples."""


@dataclass(frozen=True)
class Proxy:
    """`authority`: a PEM file with what certifies the proxy's name."""

    port: int
    authority: Path

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def program(name: str) -> str:
    """Its path: as the set-up unpacked it, or the machine's own."""
    path = os.pathsep.join([str(TOOLS / "bin"), str(TOOLS / "sbin"), os.environ["PATH"], "/usr/sbin"])
    found = shutil.which(name, path=path)
    assert found is not None, f"{name} is not here: scripts/setup --tests"
    return found


@contextlib.contextmanager
def running(command: list[str], log: Path, proxy: Proxy, env: dict[str, str] | None = None) -> Iterator[Proxy]:
    """A proxy's program, serving under its name on loopback, until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
    try:

        @tenacity.retry(
            retry=tenacity.retry_if_exception_type(OSError),
            stop=tenacity.stop_after_delay(60),
            wait=tenacity.wait_fixed(0.05),
            reraise=True,
        )
        def serves() -> None:
            # Caddy listens before it has made its certificates.
            assert process.poll() is None, log.read_text()
            tls = ssl.create_default_context(cafile=str(proxy.authority))
            with (
                socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as plain,
                tls.wrap_socket(plain, server_hostname=NAME),
            ):
                pass

        serves()
        yield proxy
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextlib.contextmanager
def caddy(folder: Path, dashboard: str, port: int) -> Iterator[Proxy]:
    """Caddy with the example, with an authority of its own that nothing on this machine trusts."""
    data = folder / "data"
    main = folder / "Caddyfile"
    options = "admin off\nskip_install_trust\nauto_https disable_redirects\ndefault_bind 127.0.0.1\n"
    main.write_text(f'{{\n{options}storage file_system {data}\n}}\nimport "{EXAMPLE / "Caddyfile"}"\n')
    env = {"HERMES_NAME": f"{NAME}:{port}", "HERMES_DASHBOARD": dashboard, "HOME": str(folder)}
    command = [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(main)]
    proxy = Proxy(port, data / "pki" / "authorities" / "local" / "root.crt")
    with running(command, folder / "caddy.log", proxy, env):
        yield proxy


@contextlib.contextmanager
def nginx(folder: Path, dashboard: str, port: int) -> Iterator[Proxy]:
    """nginx with the example, its address, port and certificate put in."""
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "privkey.pem"))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(folder / "fullchain.pem"), append=True)
    site = (EXAMPLE / "nginx.conf").read_text()
    for old, new in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/hermes/", f"{folder}/"),
        ("192.168.1.205:9119", dashboard),
    ):
        assert old in site.split("\nserver", 1)[1]
        site = site.replace(old, new)
    temporary = "".join(
        f"{kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off;\nuser root;\npid {folder / 'nginx.pid'};\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    command = [program("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(main)]
    proxy = Proxy(port, folder / "ca.pem")
    with running(command, folder / "nginx.log", proxy):
        yield proxy
