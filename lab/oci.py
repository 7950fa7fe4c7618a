"""Container images as files: layers, configurations, manifests and indexes of the OCI image format, in one folder.

The folder is an OCI image layout: ``blobs/sha256/<hex>`` and ``index.json``, whose entries name
``repository:tag`` in the annotation ``org.opencontainers.image.ref.name``. A layer is made from a folder
of changes as overlayfs leaves it. What is written depends on the content alone, not on when or where.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LAYOUT = "1.0.0"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Layer:
    """A packed layer: its blob, and the digest of the tar archive inside (the "diff id")."""

    digest: str
    size: int
    diff_id: str


def blob_path(layout: Path, digest: str) -> Path:
    """Where the blob of ``digest`` (``sha256:<hex>``) lies."""
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def pack_layer(
    layout: Path, changes: Path, made: float, epoch: int, skip: Callable[[str], bool] | None = None
) -> Layer:
    """Pack a folder of changes as one layer.

    Times from ``made`` on are those of the build itself and become ``epoch``; older ones are the packages' own
    and stay, since compiled Python files name them. ``skip`` says which paths (relative) are left out.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    temporary = blobs / f".{changes.name}.part"
    with temporary.open("wb") as handle:
        packed = _Gzip(handle)
        with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for member, path in _members(changes, skip or (lambda _: False)):
                member.mtime = epoch if member.mtime >= made else int(member.mtime)
                with path.open("rb") if member.isreg() and member.size else open(os.devnull, "rb") as content:  # noqa: PTH123
                    tar.addfile(member, content)
        packed.finish()
    temporary.rename(blobs / packed.outer.hexdigest())
    return Layer(f"sha256:{packed.outer.hexdigest()}", packed.written, f"sha256:{packed.inner.hexdigest()}")


def _members(changes: Path, skip: Callable[[str], bool]) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    """The entries of a layer, sorted; what overlayfs marks as deleted becomes the image format's own marks."""
    seen: dict[tuple[int, int], str] = {}
    for folder, folders, files in os.walk(changes):
        folders.sort()
        relative = Path(folder).relative_to(changes)
        folders[:] = [name for name in folders if not skip(str(relative / name))]
        if _opaque(folder):
            yield _mark(relative / ".wh..wh..opq"), Path(folder)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*files, *folders]):
            path = Path(folder) / name
            inside = relative / name
            if skip(str(inside)):
                continue
            state = path.lstat()
            if stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
                yield _mark(relative / f".wh.{name}"), path
                continue
            if stat.S_ISSOCK(state.st_mode):
                continue
            member = _member(inside, path, state, seen)
            yield member, path
        folders[:] = [name for name in folders if name not in links]


def _member(inside: Path, path: Path, state: os.stat_result, seen: dict[tuple[int, int], str]) -> tarfile.TarInfo:
    member = tarfile.TarInfo(str(inside))
    member.mode = stat.S_IMODE(state.st_mode)
    member.uid, member.gid, member.mtime = state.st_uid, state.st_gid, state.st_mtime
    first = seen.get((state.st_dev, state.st_ino))
    if stat.S_ISDIR(state.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(state.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif stat.S_ISFIFO(state.st_mode):
        member.type = tarfile.FIFOTYPE
    elif stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode):
        member.type = tarfile.CHRTYPE if stat.S_ISCHR(state.st_mode) else tarfile.BLKTYPE
        member.devmajor, member.devminor = os.major(state.st_rdev), os.minor(state.st_rdev)
    elif first is not None:
        member.type, member.linkname = tarfile.LNKTYPE, first
    else:
        member.size = state.st_size
        if state.st_nlink > 1:
            seen[state.st_dev, state.st_ino] = str(inside)
        capability = _attribute(path, "security.capability")
        if capability:
            text = capability.decode("utf-8", "surrogateescape")
            member.pax_headers = {"SCHILY.xattr.security.capability": text}
    return member


def _mark(inside: Path) -> tarfile.TarInfo:
    return tarfile.TarInfo(str(inside))


def _opaque(folder: str) -> bool:
    return _attribute(Path(folder), "trusted.overlay.opaque") == b"y"


def _attribute(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None


class _Gzip:
    """A gzip stream without a time in its head, which also knows the digests of what goes in and comes out."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self.inner, self.outer, self.written = hashlib.sha256(), hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.inner.update(data)
        self._put(self._packer.compress(data))
        return len(data)

    def finish(self) -> None:
        self._put(self._packer.flush())

    def _put(self, data: bytes) -> None:
        self.outer.update(data)
        self.written += len(data)
        self._out.write(data)


def put_json(layout: Path, content: Mapping[str, Any]) -> tuple[str, int]:
    """Store a document as a blob; returns digest and size."""
    data = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    path = blob_path(layout, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest, len(data)


def put_image(
    layout: Path, layers: Sequence[Layer], settings: Mapping[str, Any], architecture: str, created: str
) -> dict[str, Any]:
    """Store an image for one architecture, and the index around it, as the large registries hand them out.

    ``settings`` is the image's ``config`` (Env, Entrypoint, Volumes, ...). Returns the index's descriptor.
    """
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": "the lab's build"} for _ in layers],
    }
    digest, size = put_json(layout, config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": digest, "size": size},
        "layers": [{"mediaType": LAYER_TYPE, "digest": layer.digest, "size": layer.size} for layer in layers],
    }
    digest, size = put_json(layout, manifest)
    platform = {"architecture": architecture, "os": "linux"}
    inner = {"mediaType": MANIFEST_TYPE, "digest": digest, "size": size, "platform": platform}
    digest, size = put_json(layout, {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [inner]})
    return {"mediaType": INDEX_TYPE, "digest": digest, "size": size}


def finish_layout(layout: Path, images: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the layout's own files; ``images`` maps ``repository:tag`` to a descriptor."""
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": LAYOUT}) + "\n")
    named = [{**descriptor, "annotations": {REF_NAME: name}} for name, descriptor in images.items()]
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": named}
    (layout / "index.json").write_text(json.dumps(index, indent=2) + "\n")


def tags(layout: Path) -> dict[str, str]:
    """What a finished layout holds: ``repository:tag`` to digest."""
    index = json.loads((layout / "index.json").read_text())
    return {entry["annotations"][REF_NAME]: entry["digest"] for entry in index["manifests"]}
