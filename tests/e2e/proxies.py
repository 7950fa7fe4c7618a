"""Real reverse proxies, with the configurations of examples/reverse-proxy, on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path

import tenacity
import trustme

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "reverse-proxy"
TOOLS = CHECKOUT / ".cache" / "tools" / "usr"
NAME = "hermes.home.arpa"
"""The host name in the examples."""
PATIENCE = 240
"""Seconds; generous, as a machine may be busy with other things."""


@dataclass(frozen=True)
class Proxy:
    """`authority`: a PEM file with what certifies the proxy's name."""

    port: int
    authority: Path

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str


@dataclass
class Visitor:
    """A client that believes the proxy's authority and no other, and keeps its cookies."""

    proxy: Proxy
    cookies: dict[str, str] = field(default_factory=dict)

    def connect(self, name: str = NAME) -> ssl.SSLSocket:
        tls = ssl.create_default_context(cafile=str(self.proxy.authority))
        plain = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=PATIENCE)
        try:
            return tls.wrap_socket(plain, server_hostname=name)
        except OSError:
            plain.close()
            raise

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def ask(
        self, path: str, body: dict[str, str] | None = None, host: str = NAME, claims: Mapping[str, str] | None = None
    ) -> Answer:
        """`claims`: headers that a browser would not send by itself."""
        headers = {
            "Host": f"{host}:{self.proxy.port}",
            "Cookie": self.cookie,
            "Origin": self.proxy.url,
            **(claims or {}),
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        with contextlib.closing(http.client.HTTPConnection(NAME)) as connection:
            connection.sock = self.connect()
            method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            found = Answer(answer.status, answer.headers, answer.read().decode())
        for line in found.headers.get_all("Set-Cookie", []):
            self.cookies |= {name: item.value for name, item in SimpleCookie(line).items() if item.value}
        return found


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


def site(folder: Path, dashboard: str, port: int) -> str:
    """nginx.conf of the examples, its address, port and certificate put in; ``ca.pem`` in the folder certifies it."""
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "privkey.pem"))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(folder / "fullchain.pem"), append=True)
    text = (EXAMPLE / "nginx.conf").read_text()
    for old, new in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/hermes/", f"{folder}/"),
        ("192.168.1.205:9119", dashboard),
    ):
        assert old in text.split("\nserver", 1)[1]
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def serving(folder: Path, sites: str, port: int) -> Iterator[Proxy]:
    """nginx with what is given to its http block."""
    temporary = "".join(
        f"{kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off;\nuser root;\npid {folder / 'nginx.pid'};\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{sites}}}\n"
    )
    command = [program("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(main)]
    proxy = Proxy(port, folder / "ca.pem")
    with running(command, folder / "nginx.log", proxy):
        yield proxy


@contextlib.contextmanager
def nginx(folder: Path, dashboard: str, port: int) -> Iterator[Proxy]:
    """nginx with the example as it is."""
    with serving(folder, site(folder, dashboard, port), port) as proxy:
        yield proxy


@contextlib.contextmanager
def nginx_proxy_manager(folder: Path, dashboard: str, port: int) -> Iterator[Proxy]:
    """nginx as Nginx Proxy Manager sets it up, with the example's location pasted as the README says.

    What the manager (2.12) makes around it: headers and a read timeout for all hosts; a neighbour's word (X-Real-IP)
    for who it is; websockets and the redirect to https in the host's server block. Its own location is left out where
    one for / was pasted.
    """
    example = site(folder, dashboard, port)
    host, default = example.split("server {", 1)[1].split("# Any other name", 1)
    location = host[host.index("    location / {") : host.rindex("}")]
    around = (
        "proxy_read_timeout 90s;\nproxy_http_version 1.1;\nproxy_set_header X-Forwarded-Scheme $scheme;\n"
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\nproxy_set_header Accept-Encoding '';\n"
        "set_real_ip_from 192.168.0.0/16;\nreal_ip_header X-Real-IP;\nreal_ip_recursive on;\n"
        # The tests' visitors are neighbours.
        "set_real_ip_from 127.0.0.0/8;\n"
    )
    inside = (
        "proxy_set_header Upgrade $http_upgrade;\nproxy_set_header Connection $http_connection;\n"
        'set $force "";\nif ($scheme = "http") { set $force "yes"; }\n'
        'if ($force = "yes") { return 301 https://$host$request_uri; }\n'
    )
    server = f"server {{{host[: host.index('    location / {')]}{inside}{location}}}\n"
    with serving(folder, f"{around}{server}# Any other name{default}", port) as proxy:
        yield proxy
