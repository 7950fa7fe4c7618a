"""The lab's registry against the OCI distribution specification: what a client needs to pull, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from lab.image import Images
from lab.oci import INDEX_TYPE, MANIFEST_TYPE, finish_layout, pack_layer, put_image, tags
from lab.services.registry import Registry
from pvelab.certificates import ensure_certificates

NOBODY = "sha256:" + "0" * 64


@dataclass
class Client:
    address: str
    ca_file: Path
    digest: str

    def ask(self, path: str, method: str = "GET", **headers: str) -> requests.Response:
        address = f"https://{self.address}/v2/{path}"
        return requests.request(method, address, headers=headers, verify=str(self.ca_file), timeout=10)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "changes").mkdir()
    (folder / "changes" / "file").write_text("content\n" * 1000)
    layer = pack_layer(folder / "layout", folder / "changes", 0, 0)
    descriptor = put_image(folder / "layout", [layer], {}, "amd64", "2026-07-20T00:00:00Z")
    finish_layout(folder / "layout", {"some/name:v1": descriptor, "some/name:v2": descriptor})
    trust = ensure_certificates(folder / "tls" / "ca", ["127.0.0.1"])
    registry = Registry("127.0.0.1", 0, Images(folder / "layout", tags(folder / "layout")), trust.server_file)
    registry.start()
    yield Client(registry.address, trust.ca_file, str(descriptor["digest"]))
    registry.stop()


def code_of(answer: requests.Response) -> str:
    code: str = answer.json()["errors"][0]["code"]
    return code


def test_it_says_that_it_is_a_registry(client: Client) -> None:
    assert client.ask("").status_code == 200


def test_an_image_is_pulled_from_its_tag_down_to_its_layers(client: Client) -> None:
    by_tag = client.ask("some/name/manifests/v1", Accept=f"{MANIFEST_TYPE}, {INDEX_TYPE}")
    assert by_tag.headers["Content-Type"] == INDEX_TYPE
    assert by_tag.headers["Docker-Content-Digest"] == client.digest
    assert f"sha256:{hashlib.sha256(by_tag.content).hexdigest()}" == client.digest
    assert client.ask(f"some/name/manifests/{client.digest}").content == by_tag.content

    inner = by_tag.json()["manifests"][0]["digest"]
    manifest = client.ask(f"some/name/manifests/{inner}", Accept=MANIFEST_TYPE)
    assert manifest.headers["Content-Type"] == MANIFEST_TYPE
    for part in (manifest.json()["config"], *manifest.json()["layers"]):
        blob = client.ask(f"some/name/blobs/{part['digest']}")
        assert f"sha256:{hashlib.sha256(blob.content).hexdigest()}" == part["digest"]
        assert len(blob.content) == part["size"]
        # An interrupted pull goes on where it ended.
        rest = client.ask(f"some/name/blobs/{part['digest']}", Range="bytes=10-")
        assert (rest.status_code, rest.content) == (206, blob.content[10:])


def test_a_look_without_the_content(client: Client) -> None:
    whole = client.ask("some/name/manifests/v1")
    head = client.ask("some/name/manifests/v1", "HEAD")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("Docker-Content-Digest", "Content-Length", "Content-Type"):
        assert head.headers[name] == whole.headers[name]
    layer = client.ask(f"some/name/blobs/{client.digest}", "HEAD")
    assert (layer.status_code, layer.content) == (200, b"")


def test_the_tags_are_listed(client: Client) -> None:
    assert client.ask("some/name/tags/list").json() == {"name": "some/name", "tags": ["v1", "v2"]}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("other/name/tags/list", "NAME_UNKNOWN"),
        ("some/name/manifests/v3", "MANIFEST_UNKNOWN"),
        ("other/name/manifests/v1", "MANIFEST_UNKNOWN"),
        (f"some/name/manifests/{NOBODY}", "MANIFEST_UNKNOWN"),
        (f"some/name/blobs/{NOBODY}", "BLOB_UNKNOWN"),
        ("some/name/blobs/sha256:..%2F..%2Findex.json", "BLOB_UNKNOWN"),
    ],
)
def test_what_is_not_there_is_named(client: Client, path: str, code: str) -> None:
    answer = client.ask(path)
    assert (answer.status_code, code_of(answer)) == (404, code)


def test_a_layer_is_no_manifest(client: Client) -> None:
    inner = client.ask("some/name/manifests/v1").json()["manifests"][0]["digest"]
    layer = client.ask(f"some/name/manifests/{inner}").json()["layers"][0]["digest"]
    assert client.ask(f"some/name/manifests/{layer}").status_code == 404


def test_a_client_that_cannot_read_an_index_gets_none(client: Client) -> None:
    answer = client.ask("some/name/manifests/v1", Accept="application/vnd.docker.distribution.manifest.v2+json")
    assert (answer.status_code, code_of(answer)) == (404, "MANIFEST_UNKNOWN")


def test_nothing_is_taken(client: Client) -> None:
    tries = {"POST": "blobs/uploads/", "PUT": "manifests/v9", "DELETE": "manifests/v1"}
    for method, path in tries.items():
        answer = client.ask(f"some/name/{path}", method)
        assert (answer.status_code, code_of(answer)) == (405, "UNSUPPORTED")
    assert client.ask("some/name/manifests/v1").status_code == 200
