"""The lab's image files: what the OCI image format prescribes, and that nothing but the content decides the digests."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lab.oci import Layer, blob_path, finish_layout, pack_layer, put_image, tags

EPOCH = 1_000_000_000
MADE = 1_700_000_000.0


def changes_in(folder: Path, made: float) -> Path:
    """A small tree; ``made`` is when the build touched it."""
    (folder / "usr" / "bin").mkdir(parents=True)
    (folder / "usr" / "bin" / "tool").write_bytes(b"#!/bin/sh\n")
    (folder / "usr" / "bin" / "tool").chmod(0o755)
    (folder / "usr" / "bin" / "same").hardlink_to(folder / "usr" / "bin" / "tool")
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc").mkdir()
    (folder / "etc" / "old").write_text("from a package\n")
    (folder / "etc" / "new").write_text("from the build\n")
    (folder / "log").mkdir()
    (folder / "log" / "today").write_text(str(made))
    for path in folder.rglob("*"):
        os.utime(path, (made, made), follow_symlinks=False)
    os.utime(folder / "etc" / "old", (900_000_000, 900_000_000))
    return folder


def pack(layout: Path, changes: Path) -> Layer:
    return pack_layer(layout, changes, MADE, EPOCH, lambda path: path.startswith("log/"))


def test_time_and_place_of_a_build_do_not_show(tmp_path: Path) -> None:
    one = pack(tmp_path / "one", changes_in(tmp_path / "a", MADE + 1))
    two = pack(tmp_path / "two", changes_in(tmp_path / "b", MADE + 1000))
    assert one == two
    (tmp_path / "b" / "etc" / "new").write_text("something else\n")
    assert pack(tmp_path / "three", tmp_path / "b").diff_id != one.diff_id


def test_a_layer_is_what_its_digests_say(tmp_path: Path) -> None:
    layer = pack(tmp_path / "layout", changes_in(tmp_path / "a", MADE + 1))
    blob = blob_path(tmp_path / "layout", layer.digest).read_bytes()
    assert len(blob) == layer.size
    assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == layer.digest
    assert f"sha256:{hashlib.sha256(gzip.decompress(blob)).hexdigest()}" == layer.diff_id


def test_a_layer_holds_links_modes_and_times(tmp_path: Path) -> None:
    layer = pack(tmp_path / "layout", changes_in(tmp_path / "a", MADE + 1))
    with tarfile.open(blob_path(tmp_path / "layout", layer.digest)) as tar:
        members = {member.name: member for member in tar}
    assert sorted(members) == [
        "bin",
        "etc",
        "etc/new",
        "etc/old",
        "log",
        "usr",
        "usr/bin",
        "usr/bin/same",
        "usr/bin/tool",
    ]
    assert (members["bin"].type, members["bin"].linkname) == (tarfile.SYMTYPE, "usr/bin")
    # One of the two names is the file, the later one a link to it.
    assert (members["usr/bin/tool"].type, members["usr/bin/tool"].linkname) == (tarfile.LNKTYPE, "usr/bin/same")
    assert members["usr/bin/same"].mode == 0o755
    assert members["etc/old"].mtime == 900_000_000
    assert members["etc/new"].mtime == EPOCH


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what overlayfs leaves")
def test_what_overlayfs_calls_deleted_is_deleted_in_the_layer(tmp_path: Path) -> None:
    changes = tmp_path / "a"
    (changes / "etc" / "replaced").mkdir(parents=True)
    os.mknod(changes / "etc" / "gone", stat.S_IFCHR, os.makedev(0, 0))
    try:
        os.setxattr(changes / "etc" / "replaced", "trusted.overlay.opaque", b"y")
    except OSError as error:
        pytest.skip(f"no trusted attributes here: {error}")
    layer = pack_layer(tmp_path / "layout", changes, MADE, EPOCH)
    with tarfile.open(blob_path(tmp_path / "layout", layer.digest)) as tar:
        names = {member.name: member for member in tar}
    # The image specification's whiteouts: empty regular files of these names.
    assert set(names) == {"etc", "etc/.wh.gone", "etc/replaced", "etc/replaced/.wh..wh..opq"}
    assert names["etc/.wh.gone"].isreg()
    assert names["etc/.wh.gone"].size == 0


def test_an_image_leads_from_its_tag_to_its_layers(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    layer = pack(layout, changes_in(tmp_path / "a", MADE + 1))
    descriptor = put_image(layout, [layer], {"User": "root"}, "amd64", "2026-07-20T00:00:00Z")
    finish_layout(layout, {"some/name:v1": descriptor, "some/name:latest": descriptor})
    assert tags(layout) == {"some/name:v1": descriptor["digest"], "some/name:latest": descriptor["digest"]}

    def read(wanted: dict[str, Any]) -> dict[str, Any]:
        content = blob_path(layout, str(wanted["digest"])).read_bytes()
        assert len(content) == wanted["size"]
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == wanted["digest"]
        found: dict[str, Any] = json.loads(content)
        assert found.get("mediaType", wanted["mediaType"]) == wanted["mediaType"]
        return found

    index = read(descriptor)
    (inner,) = index["manifests"]
    assert inner["platform"] == {"architecture": "amd64", "os": "linux"}
    manifest = read(inner)
    config = read(manifest["config"])
    assert config["rootfs"] == {"type": "layers", "diff_ids": [layer.diff_id]}
    assert config["config"] == {"User": "root"}
    assert [entry["digest"] for entry in manifest["layers"]] == [layer.digest]
