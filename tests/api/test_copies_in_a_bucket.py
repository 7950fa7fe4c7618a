"""The second copy in S3, by the true restic (Debian's) against a server that verifies each signature."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import copies
from applications.hermes.guest.copies import Repository, Snapshot
from applications.hermes.guest.inputs import Copy
from provisioning.guest.common import Refusal
from provisioning.guest.pipe import End, piped
from tests import bucket

RESTIC = Path(__file__).parents[2] / ".cache" / "tools" / "usr" / "bin" / "restic"
PASSWORD = "canary-of-the-copy-3f19"
CONTENT = b"the hedgehog is called Bodo\n" * 4096
NAMES = ("20261128T033000Z-0.20.3", "20261129T033000Z-0.20.3")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bucket.Bucket]:
    with bucket.running(tmp_path_factory.mktemp("s3") / "server") as made:
        yield made


@dataclass(frozen=True)
class Trusting(Repository):
    """It trusts the server's authority, as a cattle with agentCaFile does."""

    ca: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "SSL_CERT_FILE": self.ca}


@pytest.fixture
def place(server: bucket.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A place in the bucket that is new."""
    for name, value in {"RESTIC": str(RESTIC), "FOLDER": tmp_path / "copy", "CACHE": tmp_path / "cache"}.items():
        monkeypatch.setattr(copies, name, value)
    copies.FOLDER.mkdir(mode=0o700)
    kept = {"last": 1, "daily": 0, "weekly": 0, "monthly": 0}
    made = Copy(f"s3:{server.address}/{bucket.NAME}/{tmp_path.name}", server.key, "us-east-1", None, "", kept, 7)
    keys(made, server.secret)
    return Trusting(made, str(server.ca))


def keys(copy: Copy, secret: str, password: str = PASSWORD) -> None:
    for name, text in copies.files_of(copy, {"copy.password": password, "copy.secret_key": secret}).items():
        (copies.FOLDER / name).write_text(text)


def push(repository: Repository, name: str) -> None:
    line = Snapshot("", "cattle", name, "0" * 64, len(CONTENT), "a-volume", "")
    words = [
        "backup",
        "--quiet",
        "--stdin",
        "--stdin-filename",
        copies.FILE_NAME,
        "--host",
        "cattle",
        "--tag",
        line.tags,
    ]
    given = copies.FOLDER / "given"
    given.write_bytes(CONTENT)
    source = End("cat", ("/usr/bin/cat", str(given)))
    piped(source, End("restic", repository.argv(*words), repository.environment), limit=1 << 20, timeout_s=60)
    given.unlink()


def test_a_life_of_a_copy_in_a_bucket(
    place: Repository, server: bucket.Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Refusal, match="there is no copy at"):
        place.snapshots()
    place.begin()
    place.begin()
    assert "is there already" in capsys.readouterr().out
    for name in NAMES:
        push(place, name)
    assert [each.set for each in place.snapshots()] == [NAMES[1], NAMES[0]]
    noted: dict[str, Any] = {}
    copies._thin(place, "cattle")
    copies._check(place, noted)
    assert noted["check_fault"] == ""
    (left,) = place.snapshots()
    assert left.set == NAMES[1]
    command = place.argv("dump", left.id, f"/{copies.FILE_NAME}")
    assert subprocess.run(command, env=place.environment, capture_output=True, check=True, timeout=60).stdout == CONTENT
    # What the server has is encrypted.
    stored = server.objects()
    assert len(stored) > 3
    assert not [key for key, data in stored.items() if b"Bodo" in data or PASSWORD.encode() in data]


def test_another_password_and_another_key_are_told_without_them(place: Repository, server: bucket.Bucket) -> None:
    place.begin()
    keys(place.copy, server.secret, password="another-canary-77")
    with pytest.raises(Refusal, match="was made with another password"):
        place.snapshots()
    with pytest.raises(Refusal, match="was made with another password"):
        place.begin()
    keys(place.copy, "wrong-canary-5512")
    with pytest.raises(Refusal) as refused:
        place.snapshots()
    assert "there is no copy" not in str(refused.value)
    assert "canary" not in str(refused.value)
    # A bucket that is not there is not made by asking.
    elsewhere = replace(place, copy=replace(place.copy, repository=f"s3:{server.address}/another-bucket/x"))
    keys(elsewhere.copy, server.secret)
    with pytest.raises(Refusal):
        elsewhere.snapshots()
    assert [each["Name"] for each in server.client("s3").list_buckets()["Buckets"]] == [bucket.NAME]
