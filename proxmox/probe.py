"""Whether Proxmox and the node answer, before anything else asks them: in milliseconds where they do."""

from __future__ import annotations

import http.client
import os
import ssl

from proxmox.connection import Connection
from proxmox.nodes import prove_node

SECONDS = 3.0
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def prove(connection: Connection) -> None:
    """Return where the server is proved to be ours, takes the token, and reaches the node of the settings.

    Raises ProxmoxError, within seconds, where not. Of a node that does not answer the plugin would be told 595, and ask
    again and again; one of a name that is none of the cluster's it would look up.
    The client says why; its import takes a fifth of a second, so it is asked only where something is wrong.
    """
    if _answers(connection):
        return
    from proxmox.client import Proxmox  # noqa: PLC0415 - see above

    with Proxmox(connection) as client:
        client.version()
        prove_node(connection.node, client.nodes())


def _answers(connection: Connection) -> bool:
    """One request, by the standard library. False also where only the client knows the way."""
    if connection.fingerprint or connection.insecure or any(os.environ.get(name) for name in _PROXIES):
        return False
    context = ssl.create_default_context(cafile=connection.ca_file)
    if connection.ca_file:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    way = http.client.HTTPSConnection(connection.host, connection.port, timeout=SECONDS, context=context)
    token = connection.api_token.get_secret_value()
    try:
        way.request(
            "GET", f"/api2/json/nodes/{connection.node}/version", headers={"Authorization": f"PVEAPIToken={token}"}
        )
        return way.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        way.close()
