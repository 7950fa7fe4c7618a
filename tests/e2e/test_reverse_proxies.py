"""What the examples' proxies hand on to the dashboard, seen from its place; with it: test_dashboard.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e import proxies
from tests.e2e.proxies import NAME, Proxy, Visitor
from tests.listening import free_port

PROXIES = {"caddy": proxies.caddy, "nginx": proxies.nginx, "manager": proxies.nginx_proxy_manager}


class Mirror(BaseHTTPRequestHandler):
    """Answers with the headers of the request, their names in lower case."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps([[name.lower(), value] for name, value in self.headers.items()]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module", params=PROXIES)
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp(request.param)
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as mirror:
        thread = threading.Thread(target=mirror.serve_forever)
        thread.start()
        try:
            with PROXIES[request.param](folder, f"127.0.0.1:{mirror.server_port}", free_port()) as made:
                yield made
        finally:
            mirror.shutdown()
            thread.join()


def seen(proxy: Proxy, **claims: str) -> list[tuple[str, str]]:
    headers = {name.replace("_", "-"): value for name, value in claims.items()}
    return [(name, value) for name, value in json.loads(Visitor(proxy).ask("/", claims=headers).text)]


def test_the_dashboard_learns_who_came_and_nothing_that_was_claimed(proxy: Proxy) -> None:
    claims = {
        "X_Forwarded_For": "203.0.113.7, 10.0.0.1",
        "X_Real_IP": "203.0.113.8",
        "X_Forwarded_Proto": "http",
    }
    found = seen(proxy, **claims)
    assert [value for name, value in found if name == "x-forwarded-for"] == ["127.0.0.1"]
    assert [value for name, value in found if name == "x-forwarded-proto"] == ["https"]
    assert [value for name, value in found if name == "host"] == [f"{NAME}:{proxy.port}"]


@pytest.mark.parametrize("asked", ["Upgrade", "keep-alive, Upgrade"])
def test_the_wish_for_a_websocket_is_handed_on(proxy: Proxy, asked: str) -> None:
    found = dict(seen(proxy, Upgrade="websocket", Connection=asked))
    assert found["upgrade"] == "websocket"
    assert "upgrade" in found["connection"].lower()
    assert "upgrade" not in dict(seen(proxy))
