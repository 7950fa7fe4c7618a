"""HTTPS to a node's API: pinned, with a deadline for each request, and with the secrets that it has seen."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pvelab.conformance.judge import Answer

REQUEST_SECONDS = 60.0
_IDLE_SECONDS = 1.0
_KEPT_FROM_REPORTS = frozenset(("password", "ticket", "csrfpreventiontoken"))


class ClientError(Exception):
    """The node can't be reached, or refuses what the command needs. The text names no secret."""


class _Pinned(http.client.HTTPSConnection):
    """A connection to the one certificate with a fingerprint (SHA-256, hex digits)."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, fingerprint: str | None) -> None:
        super().__init__(host, port, timeout=REQUEST_SECONDS, context=context)
        self._fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        shown = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if self._fingerprint is not None and shown != self._fingerprint:
            self.close()
            raise ClientError(f"the certificate's fingerprint is {shown}, not {self._fingerprint}")


class Client:
    """One node. ``secrets`` grows with each answer that holds one; :meth:`hide` keeps them out of texts."""

    def __init__(self, endpoint: str, *, ca_file: str | None = None, fingerprint: str | None = None) -> None:
        """ClientError where the address is none; ``fingerprint`` instead of a CA, as Proxmox's own pages show it."""
        parts = urlsplit(endpoint)
        if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.username:
            raise ClientError(f"{endpoint!r} is not an address as https://HOST:8006")
        self._host, self._port = parts.hostname, parts.port or 8006
        self._fingerprint = re.sub(r"[^0-9a-f]", "", fingerprint.lower()) if fingerprint else None
        if self._fingerprint is not None and len(self._fingerprint) != 64:
            raise ClientError("a fingerprint is the SHA-256 of the certificate: 64 hex digits")
        try:
            self._context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ClientError(f"{ca_file}: {error.strerror or error}") from None
        if self._fingerprint is not None:
            # It says more than a chain would, and nothing is sent before it is compared.
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        self._connection: _Pinned | None = None
        self._used = 0.0
        self.secrets: set[str] = set()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(
        self,
        method: str,
        path: str,
        given: Mapping[str, Any] | str | None = None,
        *,
        json_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, sent once; ClientError when there is no answer. A text is sent as it is, as a form's body."""
        place = "/api2/json" + quote(path, safe="/%:@!$&'()*+,;=?~-._")
        sent = {**(headers or {})}
        body: str | None = None
        if json_body is not None:
            body, sent["Content-Type"] = json.dumps(json_body), "application/json"
        elif method in ("GET", "DELETE") and not isinstance(given, str):
            place += ("&" if "?" in place else "?") + urlencode(given) if given else ""
        else:
            body = given if isinstance(given, str) else urlencode(given or {})
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection = self._connected()
            connection.request(method, place, body, sent)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ClientError(f"no answer to {method} {path}: {type(error).__name__} {error}") from None
        except BaseException:
            # Interrupted: what is still on the way is no answer to the next request.
            self.close()
            raise
        self._used = time.monotonic()
        found = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close:
            self.close()
        answer = Answer(response.status, response.reason, found, text)
        self._learn(answer)
        return answer

    def _connected(self) -> _Pinned:
        # A node closes an idle connection; a request that was sent on such a one must not be sent twice.
        if self._connection is not None and time.monotonic() - self._used > _IDLE_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = _Pinned(self._host, self._port, self._context, self._fingerprint)
        return self._connection

    def _learn(self, answer: Answer) -> None:
        if answer.status != 200:
            return
        try:
            data = answer.body.get("data")
        except (ValueError, AttributeError):
            return
        if isinstance(data, dict):
            # A token's secret is "value", beside its "full-tokenid".
            names = ("ticket", "CSRFPreventionToken", *(("value",) if "full-tokenid" in data else ()))
            self.secrets |= {str(data[name]) for name in names if data.get(name)}

    def hide(self, value: Any) -> Any:
        """A value for a report: without the secrets of this client, and without fields that hold one."""
        if isinstance(value, Mapping):
            return {
                self.hide(key): "***" if str(key).lower() in _KEPT_FROM_REPORTS and entry else self.hide(entry)
                for key, entry in value.items()
            }
        if isinstance(value, str):
            for secret in sorted(filter(None, self.secrets), key=len, reverse=True):
                value = value.replace(secret, "***")
            return value
        if isinstance(value, Iterable) and not isinstance(value, bytes):
            return [self.hide(entry) for entry in value]
        return value
