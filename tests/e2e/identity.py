"""An identity provider for one client: OpenID Connect's code flow, as strict as the specifications ask.

What it checks is what a login depends on: the client and its secret, the redirect URI to the letter, PKCE (RFC 7636,
S256), a code's single use. Passwords are none of it: whoever names a user is that user.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlencode

from aiohttp import encode_basic_auth, web
from joserfc import jwt
from joserfc.jwk import RSAKey


@dataclass
class Provider:
    """`issuer` is where it is reached; `refused` tells what it did not grant, and why."""

    issuer: str
    client_id: str
    client_secret: str
    redirect_uri: str
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "1", "use": "sig", "alg": "RS256"}))
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """User and PKCE challenge by code."""
    refused: list[str] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self.discovery)
        app.router.add_get("/jwks", self.jwks)
        app.router.add_get("/authorize", self.authorize)
        app.router.add_post("/authorize", self.consent)
        app.router.add_post("/token", self.token)
        return app

    async def discovery(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def jwks(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [self.key.as_dict(private=False)]})

    async def authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        wrong = [
            f"{name} is {asked.get(name)!r}"
            for name, value in (
                ("response_type", "code"),
                ("client_id", self.client_id),
                ("redirect_uri", self.redirect_uri),
                ("code_challenge_method", "S256"),
            )
            if asked.get(name) != value
        ]
        if "openid" not in asked.get("scope", "").split():
            wrong.append(f"scope is {asked.get('scope')!r}")
        if wrong or not asked.get("state") or not asked.get("code_challenge"):
            self.refused.append(", ".join(wrong) or "state or code_challenge is missing")
            return web.Response(status=400, text=self.refused[-1])
        page = '<html><body><form method="post"><input name="user"><button>Log in</button></form></body></html>'
        return web.Response(text=page, content_type="text/html")

    async def consent(self, request: web.Request) -> web.Response:
        user = str((await request.post())["user"])
        code = secrets.token_urlsafe(24)
        self.codes[code] = (user, request.query["code_challenge"])
        back = urlencode({"code": code, "state": request.query["state"]})
        return web.Response(status=302, headers={"Location": f"{self.redirect_uri}?{back}"})

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        user, challenge = self.codes.pop(str(form.get("code")), ("", ""))
        digest = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        given = request.headers.get("Authorization", "")
        for fault, wrong in (
            ("invalid_client", given != encode_basic_auth(self.client_id, self.client_secret)),
            ("unsupported_grant_type", form.get("grant_type") != "authorization_code"),
            ("invalid_grant", not user or form.get("redirect_uri") != self.redirect_uri),
            ("invalid_grant", base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge),
        ):
            if wrong:
                self.refused.append(fault)
                return web.json_response({"error": fault}, status=401 if fault == "invalid_client" else 400)
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": user, "aud": self.client_id, "iat": now, "exp": now + 600, "name": user}
        token = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.key)
        return web.json_response(
            {"access_token": secrets.token_urlsafe(24), "token_type": "Bearer", "expires_in": 600, "id_token": token}
        )


@contextmanager
def serving(provider: Provider, host: str, port: int, tls: ssl.SSLContext) -> Iterator[Provider]:
    """The provider on `host`:`port`, in a thread of its own, until the block ends."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(provider.application())

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, host, port, ssl_context=tls).start()

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield provider
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=30)
        loop.close()
