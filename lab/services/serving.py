"""An HTTP service of the lab, in a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading

from aiohttp import web

START_DEADLINE = 20.0


class Service:
    """Serves what ``application`` makes. ``start`` returns when it listens; port 0 becomes the port that was had."""

    def __init__(self, name: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.host, self.port = host, port
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        """The routes."""
        raise NotImplementedError

    def start(self) -> None:
        """Listen; OSError when the address can't be had."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_DEADLINE)

    def stop(self) -> None:
        """Stop listening and end the thread; when that is done already, nothing."""
        if self._loop.is_closed():
            return
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(START_DEADLINE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_DEADLINE)
        if not self._thread.is_alive():
            self._loop.close()

    async def _listen(self) -> None:
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=self._tls).start()
        if self.port == 0:
            self.port = self._runner.addresses[0][1]
