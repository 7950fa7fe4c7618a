"""A container registry on the bridge: the pulling half of the OCI distribution protocol, over TLS, from one layout.

Read-only: what would write is answered with 405. Repositories, tags, manifests and blobs by digest, HEAD and ranges
are there; search, referrers and tokens are not, and answer 404.
"""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path

from aiohttp import web

from lab.image import Images
from lab.oci import blob_path
from lab.services.serving import Service

NAME = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Registry(Service):
    """The registry."""

    def __init__(self, host: str, port: int, images: Images, certificate: Path) -> None:
        """``certificate`` holds key and chain, PEM."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        super().__init__("registry", host, port, tls)
        self._images = images

    @property
    def address(self) -> str:
        """``host:port``, as an image's reference begins."""
        return f"{self.host}:{self.port}"

    def reference(self, repository: str, tag: str) -> str:
        """A pinned reference, ``host:port/repository:tag@sha256:...``."""
        return f"{self.address}/{repository}:{tag}@{self._images.digests[f'{repository}:{tag}']}"

    def application(self) -> web.Application:
        application = web.Application()
        routes = application.router
        routes.add_get("/v2/", self._hello)
        routes.add_get(f"/v2/{{name:{NAME}}}/tags/list", self._tags)
        routes.add_get(f"/v2/{{name:{NAME}}}/manifests/{{reference}}", self._manifest)
        routes.add_get(f"/v2/{{name:{NAME}}}/blobs/{{digest}}", self._blob)
        routes.add_route("*", "/{any:.*}", self._nothing)
        return application

    async def _hello(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers={"Docker-Distribution-API-Version": "registry/2.0"})

    async def _tags(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        found = sorted(key.rpartition(":")[2] for key in self._images.digests if key.rpartition(":")[0] == name)
        if not found:
            return _error(404, "NAME_UNKNOWN", "repository name not known to registry")
        return web.json_response({"name": name, "tags": found})

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        name, reference = request.match_info["name"], request.match_info["reference"]
        digest = reference if DIGEST.fullmatch(reference) else self._images.digests.get(f"{name}:{reference}")
        content = self._read(name, digest) if digest else None
        if content is None or digest is None:
            return _error(404, "MANIFEST_UNKNOWN", "manifest unknown")
        kind = json.loads(content).get("mediaType")
        accepted = ",".join(request.headers.getall("Accept", ["*/*"]))
        if kind is None or ("*/*" not in accepted and kind not in accepted):
            # A client that knows no OCI types is told so by the absence of what it could read.
            return _error(404, "MANIFEST_UNKNOWN", f"{kind} found, but the Accept header does not allow it")
        headers = {"Docker-Content-Digest": digest, "Content-Type": kind, "Etag": f'"{digest}"'}
        return web.Response(body=content, headers=headers)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        path = blob_path(self._images.layout, digest)
        if not DIGEST.fullmatch(digest) or not self._knows(request.match_info["name"]) or not path.is_file():
            return _error(404, "BLOB_UNKNOWN", "blob unknown to registry")
        # Not what the file's name would suggest, and no compression on top.
        headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
        return web.FileResponse(path, headers=headers)

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        if request.method not in {"GET", "HEAD"}:
            return _error(405, "UNSUPPORTED", "this registry is read-only")
        return _error(404, "NOT_FOUND", "not found")

    def _knows(self, name: str) -> bool:
        return any(key.rpartition(":")[0] == name for key in self._images.digests)

    def _read(self, name: str, digest: str) -> bytes | None:
        """A manifest's text; a layer is none, and far larger."""
        path = blob_path(self._images.layout, digest)
        if not self._knows(name) or not path.is_file() or path.stat().st_size > 1 << 20:
            return None
        content = path.read_bytes()
        return content if content.startswith(b"{") else None


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": message}]}, status=status)
