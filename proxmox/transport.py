"""The client's way to the API: a session that trusts what the connection names, and requests by proxmoxer."""

from __future__ import annotations

import json
import ssl
from typing import Any

import requests
from proxmoxer.backends.https import Backend, JsonSerializer
from proxmoxer.core import ProxmoxResource
from proxmoxer.core import ResourceException as Answered
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from requests.exceptions import SSLError as Untrusted
from requests.exceptions import TooManyRedirects as Redirected
from urllib3.exceptions import HTTPError

from proxmox.connection import Connection
from proxmox.errors import Unreachable

__all__ = ["BAD_WAY", "Answered", "Redirected", "Untrusted", "opened"]

BAD_WAY = (RequestException, HTTPError, OSError)
"""No answer came. Those of Untrusted and Redirected are among them."""


def opened(connection: Connection, timeouts: tuple[float, float]) -> tuple[requests.Session, Any]:
    """A session, and the API's root in it. ``timeouts``: seconds to connect, and to wait for the next byte."""
    user, _, name = connection.token_id.rpartition("!")
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    backend = Backend(
        host,
        user=user,
        token_name=name,
        token_value=connection.token_secret.get_secret_value(),
        port=connection.port,
        # The adapter verifies. False for a fingerprint, because urllib3 then compares it and asks for no chain.
        verify_ssl=not (connection.fingerprint or connection.insecure),
        timeout=timeouts,
    )
    session = backend.get_session()
    session.max_redirects = 0
    # The environment is asked for a proxy here, once; with trust_env it would be at every request, and could also
    # add certificates (REQUESTS_CA_BUNDLE) and credentials (.netrc) that the settings do not name.
    session.proxies.update(requests.utils.get_environ_proxies(connection.endpoint))
    session.trust_env = False
    session.mount("https://", _PinnedAdapter(connection))
    return session, ProxmoxResource(base_url=backend.get_base_url(), session=session, serializer=_Answers())


class _Answers(JsonSerializer):  # type: ignore[misc]  # proxmoxer has no types
    """Reads bodies more strictly than proxmoxer's own: what is not Proxmox's JSON is an error, not a result."""

    def loads(self, response: requests.Response) -> object:
        body = _json_object(response)
        if body is None or "data" not in body:
            raise Unreachable(
                f"{response.url.split('?')[0]} gave an answer that is not Proxmox's",
                "the body is not a JSON object with data",
                "check that the endpoint is the Proxmox API itself, not a proxy's page",
            )
        return body["data"]

    def loads_errors(self, response: requests.Response) -> object:
        return _json_object(response) or {}


def _json_object(response: requests.Response) -> dict[str, object] | None:
    try:
        body = json.loads(response.content.decode("utf-8"))
    except (UnicodeDecodeError, ValueError):
        return None
    return body if isinstance(body, dict) else None


class _PinnedAdapter(HTTPAdapter):
    """Verifies the server by the connection's own rule alone: CA file, fingerprint, or the system's store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        super().__init__(pool_connections=1, pool_maxsize=16)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        if self._connection.fingerprint:
            kwargs["assert_fingerprint"] = self._connection.fingerprint
        kwargs["ssl_context"] = _tls_context(self._connection)
        super().init_poolmanager(connections, maxsize, block, **kwargs)

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        """The same, deaf to REQUESTS_CA_BUNDLE, whose certificates would be trusted besides the context's."""
        del verify
        proved = not (self._connection.fingerprint or self._connection.insecure)
        return super().build_connection_pool_key_attributes(request, proved, cert)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Nothing: the context decides. The base class would add the certifi bundle to what is trusted."""


def _tls_context(connection: Connection) -> ssl.SSLContext:
    if connection.fingerprint or connection.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context = ssl.create_default_context(cafile=connection.ca_file)
    if connection.ca_file:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
