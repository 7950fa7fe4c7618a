"""The container templates: root file systems of Debian 12 and 13, built once and cached.

Two files come out of a build: the archive that the API lists as a ``vztmpl``
(Proxmox's own naming), and the same tree as a ready ext4 image whose owners are
already shifted into the guests' id range. Creating a guest from the image is a
sparse copy; unpacking the archive is only needed when volumes are mounted into
the tree meanwhile.

The cache folder is named by a digest of everything that goes in, so a changed
package list, mirror or CA certificate makes a new template beside the old one.
A build works in memory where there is room, inside a mount namespace of its own,
and its results appear by one rename: a killed build leaves no mounts, and its
leftover folder is removed by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pvelab.idmap import HOST_BASE, in_user_namespace
from pvelab.place import RUN, LabError

Log = Callable[[str], None]

SUITES = {12: "bookworm", 13: "trixie"}
"""Debian's releases that a template can be built of."""
DEBIAN = 12
"""The one that is always built."""
SUITE = SUITES[DEBIAN]
NEWER = 13
"""The one that is built when it is asked for."""
IMAGE_SIZE = 1 << 30
"""Size of the prepared image in bytes; a guest's own image is grown from it."""

PACKAGES = (
    "ca-certificates",
    "cron",
    "dbus",
    "ifupdown",
    "iproute2",
    "isc-dhcp-client",
    "less",
    "libpam-systemd",
    "logrotate",
    "netbase",
    "openssh-server",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
    "tzdata",
)
"""What Debian's standard Proxmox template has and a guest here needs; facts containers, "LXC, unprivileged"."""

EXTRA_CA_FOLDER = Path("/usr/local/share/ca-certificates")
PIP_CONFIGURATION = Path("/etc/pip.conf")
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")
DEADLINE = 900.0
"""Seconds a build may take before it is given up."""


class TemplateError(LabError):
    """The template can't be built; the text says why and what to do."""


@dataclass(frozen=True)
class Template:
    """A finished template: the archive, and the ext4 image prepared from it."""

    archive: Path
    image: Path


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a template holds. Without mirrors of the host's, mmdebstrap's own default serves."""

    mirror: str | None
    security_mirror: str | None
    packages: tuple[str, ...]
    certificates: tuple[tuple[str, str], ...]
    pip_configuration: str
    apt_options: tuple[str, ...]
    architecture: str = "amd64"
    revision: int = 1
    debian: int = DEBIAN

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Recipe:
        """The recipe that was written as JSON."""
        certificates = tuple((name, text) for name, text in raw["certificates"])
        lists = {"packages": tuple(raw["packages"]), "apt_options": tuple(raw["apt_options"])}
        return cls(**{**raw, **lists, "certificates": certificates})

    def digest(self) -> str:
        # What was built before there was a choice stays what it is.
        parts = {key: value for key, value in self.__dict__.items() if (key, value) != ("debian", DEBIAN)}
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def mirrors_from_sources(text: str, os_release: str) -> tuple[str | None, str | None]:
    """The host's Debian mirror and security mirror, from its apt sources (both formats); None unless it has both."""
    if not re.search(r'^ID="?debian"?$', os_release, re.MULTILINE):
        return None, None
    addresses = re.findall(r"^\s*(?:URIs:|deb(?:\s+\[[^\]]*\])?)\s+(https?://\S+)", text, re.MULTILINE)
    main = [a.rstrip("/") for a in addresses if a.rstrip("/").endswith("/debian")]
    security = [a.rstrip("/") for a in addresses if a.rstrip("/").endswith("/debian-security")]
    return (main[0], security[0]) if main and security else (None, None)


def apt_options_from_dump(text: str) -> tuple[str, ...]:
    """The lines of ``apt-config dump`` that decide how archives are reached."""
    wanted = re.compile(r'^Acquire::(https?::Proxy|Check-Valid-Until|Check-Date)\b.* "[^"]+";$')
    return tuple(line for line in text.splitlines() if wanted.match(line))


def recipe_of_host(debian: int = DEBIAN) -> Recipe:
    """The recipe of a release that fits this machine: its mirrors, proxies, CA certificates and pip configuration."""
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(p.read_text() for p in sources if p.is_file() and p.suffix in {".list", ".sources"})
    mirror, security = mirrors_from_sources(text, _read(Path("/etc/os-release")))
    certificates: tuple[tuple[str, str], ...] = ()
    if EXTRA_CA_FOLDER.is_dir():
        certificates = tuple((p.name, p.read_text()) for p in sorted(EXTRA_CA_FOLDER.glob("*.crt")))
    dump = ""
    if shutil.which("apt-config"):
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=30, check=False).stdout
    pip = _read(PIP_CONFIGURATION)
    options = apt_options_from_dump(dump)
    return Recipe(mirror, security, PACKAGES, certificates, pip, options, architecture(), debian=debian)


def architecture(machine: str | None = None) -> str:
    """Debian's name for this machine's processor; TemplateError for one that the lab was never tried on."""
    machine = machine or platform.machine()
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    if machine not in names:
        raise TemplateError(f"the lab runs on {' and '.join(names)}, not on {machine}")
    return names[machine]


def sources_file(recipe: Recipe) -> str | None:
    """The guests' apt sources; None where mmdebstrap writes them."""
    if recipe.mirror is None or recipe.security_mirror is None:
        return None
    suite = SUITES[recipe.debian]
    entries = ((recipe.mirror, f"{suite} {suite}-updates"), (recipe.security_mirror, f"{suite}-security"))
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        for uri, suites in entries
    )


def volid_of(template: Template) -> str:
    """How the API calls a template."""
    return f"local:vztmpl/{template.archive.name}"


def cached_template(cache: Path, debian: int) -> Template | None:
    """The template of a Debian for this host, where it was built already."""
    return _finished(cache / recipe_of_host(debian).digest())


def ensure_template(cache: Path, log: Log, debian: int = DEBIAN) -> Template:
    """The template of a Debian for this host, built when the cache has none.

    One build at a time per cache; a second caller waits for it and uses its result.
    """
    recipe = recipe_of_host(debian)
    folder = cache / recipe.digest()
    if template := _finished(folder):
        return template
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache / ".lock", "template", log):
        if template := _finished(folder):
            return template
        for leftover in cache.glob(".building-*"):
            shutil.rmtree(leftover)
        need_tools("the template")
        started = time.monotonic()
        log(f"building the container template (Debian {debian}); this is done once")
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
        try:
            (building / "recipe.json").write_text(json.dumps(recipe.__dict__))
            run_apart("pvelab.template", building, "template", log)
            building.chmod(0o755)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        log(f"template ready after {time.monotonic() - started:.0f} s")
    template = _finished(folder)
    if template is None:
        raise TemplateError(f"the template build left no complete result in {folder}; remove that folder and try again")
    return template


def _finished(folder: Path) -> Template | None:
    archives = sorted(folder.glob("debian-*-standard_*.tar.zst"))
    image = folder / "rootfs.img"
    return Template(archives[0], image) if archives and image.exists() else None


@contextlib.contextmanager
def exclusive(path: Path, what: str, log: Log) -> Iterator[None]:
    """Held by the one build of ``what`` per cache."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"another process is building the {what}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def need_tools(what: str) -> None:
    """TemplateError unless this process can build ``what``."""
    if os.geteuid() != 0:
        raise TemplateError(f"building {what} needs root: it makes device nodes and files of other owners")
    missing = [tool for tool in ("mmdebstrap", "mkfs.ext4", "zstd", "lxc-usernsexec") if not shutil.which(tool)]
    if missing:
        raise TemplateError(
            f"building {what} needs {', '.join(missing)}, which this machine lacks. On Debian or Ubuntu:\n"
            f"  apt-get install --no-install-recommends {debian_packages()}"
        )


def debian_packages() -> str:
    """What a lab with containers needs on Debian or Ubuntu, as words for apt-get."""
    return " ".join((Path(__file__).parent / "debian-packages.txt").read_text().split())


def run_apart(module: str, building: Path, what: str, log: Log) -> None:
    """Run ``module``'s build in a mount namespace of its own, so that whatever it mounts ends with it."""
    command = [
        # Killed with this process, and all below it with unshare's child.
        "setpriv", "--pdeathsig", "KILL",
        "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
        sys.executable, "-m", module, str(building),
    ]  # fmt: skip
    # The module is imported as this process would.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C"}
    environment = {k: v for k, v in environment.items() if k not in {"TMPDIR", "SOURCE_DATE_EPOCH"}}
    tail: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        late = threading.Timer(DEADLINE, process.kill)
        late.start()
        try:
            for line in process.stdout or ():
                tail = [*tail[-30:], line.rstrip()]
                if line.startswith(("I: ", "build: ")) and "customize-hook" not in line:
                    log(line.rstrip().removeprefix("build: "))
        except BaseException:
            process.kill()
            raise
        finally:
            late.cancel()
    if process.returncode == -signal.SIGKILL:
        raise TemplateError(f"the {what} was not ready after {DEADLINE:.0f} s; is the mirror reachable?")
    if process.returncode:
        raise TemplateError(f"the {what} could not be built; the last lines were:\n  " + "\n  ".join(tail[-12:]))


def work_area(building: Path, gigabytes: int) -> Path:
    """A place for a build that runs apart, in memory where there is enough.

    The path has no blanks, and the guests' ids may enter it. The labs' own mounts are let go of first: a copy of one in
    this namespace would keep a guest's loop device busy until the build ends.
    """
    mounted = [line.split()[4] for line in _read(Path("/proc/self/mountinfo")).splitlines()]
    for point in reversed([path for path in mounted if Path(path).is_relative_to(RUN)]):
        run_tool(["umount", "--lazy", point])
    work = Path("/mnt")
    if free_memory() > gigabytes << 30:
        run_tool(["mount", "-t", "tmpfs", "-o", f"size={gigabytes}g,mode=755", "tmpfs", str(work)])
    else:
        (building / "work").mkdir(mode=0o755)
        run_tool(["mount", "--bind", str(building / "work"), str(work)])
    return work


def _build(building: Path) -> None:
    """The build itself, already in its own mount namespace."""
    recipe = Recipe.from_json(json.loads((building / "recipe.json").read_text()))
    work = work_area(building, gigabytes=3)
    extra = work / "extra"
    write_extras(extra, recipe)
    tree = work / "tree.tar"
    sources = sources_file(recipe)
    # Those that mmdebstrap was given go; its own stay where the host has none to offer.
    given = "apt/sources.list apt/sources.list.d/0*" if sources else ""
    (work / "tmp").mkdir(mode=0o1777)
    run_tool(
        [
            "mmdebstrap", "--variant=minbase", "--mode=root", "--skip=output/dev", "--format=tar",
            f"--architectures={recipe.architecture}", f"--include={','.join(recipe.packages)}",
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=force-unsafe-io",
            *(f"--aptopt={option}" for option in recipe.apt_options),
            f'--customize-hook=cp -r {extra}/. "$1"/',
            '--customize-hook=chroot "$1" update-ca-certificates',
            '--customize-hook=chroot "$1" systemctl mask sys-kernel-debug.mount systemd-journald-audit.socket',
            '--customize-hook=cd "$1"/etc && rm -f ssh/ssh_host_* ' + given,
            '--customize-hook=: > "$1"/etc/machine-id',
            SUITES[recipe.debian], str(tree), *(["-"] if sources else []),
        ],
        stdin=sources or "",
        TMPDIR=str(work / "tmp"),
    )  # fmt: skip
    say_build("making the image")
    root = work / "root"
    root.mkdir()
    os.chown(root, HOST_BASE, HOST_BASE)
    run_tool(in_user_namespace(["tar", "-xpf", str(tree), "-C", str(root), "--numeric-owner", "--xattrs",
                            "--xattrs-include=*", "--exclude=./dev/*"]))  # fmt: skip
    version = (root / "etc" / "debian_version").read_text().strip()
    image = work / "rootfs.img"
    make_image(image, IMAGE_SIZE, root)
    say_build("packing the archive")
    archive = f"debian-{recipe.debian}-standard_{version}-1_{recipe.architecture}.tar.zst"
    run_tool(["zstd", "-q", "-3", "-T0", str(tree), "-o", str(building / archive)])
    run_tool(["cp", "--sparse=always", str(image), str(building / "rootfs.img")])
    shutil.rmtree(building / "work", ignore_errors=True)


def make_image(image: Path, size: int, tree: Path | None = None, root_owner: int = HOST_BASE) -> None:
    """An ext4 image of ``size`` bytes, empty or filled from ``tree``."""
    with image.open("wb") as handle:
        handle.truncate(size)
    fill = ["-d", str(tree)] if tree else []
    # No discard: the file is sparse already. Lazy tables keep it so.
    options = f"root_owner={root_owner}:{root_owner},nodiscard,lazy_itable_init=1,lazy_journal_init=1"
    run_tool(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", options, *fill, str(image)])


def write_extras(extra: Path, recipe: Recipe) -> None:
    """Files that every guest gets: how to reach registries from here, and dpkg without its syncs."""
    files = {
        "etc/dpkg/dpkg.cfg.d/unsafe-io": "force-unsafe-io\n",
    }
    if sources := sources_file(recipe):
        files["etc/apt/sources.list.d/debian.sources"] = sources
    if recipe.apt_options:
        files["etc/apt/apt.conf.d/90host"] = "\n".join(recipe.apt_options) + "\n"
    if recipe.certificates:
        files["etc/environment"] = "".join(f"{name}={BUNDLE}\n" for name in BUNDLE_VARIABLES)
        files |= {f"usr/local/share/ca-certificates/{name}": text for name, text in recipe.certificates}
    if recipe.pip_configuration:
        files["etc/pip.conf"] = recipe.pip_configuration
    for name, text in files.items():
        target = extra / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def run_tool(command: Sequence[str], stdin: str = "", **environment: str) -> None:
    """One step of a build; SystemExit that names the tool when it fails."""
    result = subprocess.run(command, input=stdin, text=True, env={**os.environ, **environment}, check=False)
    if result.returncode:
        raise SystemExit(f"{command[0]} failed with exit code {result.returncode}")


def say_build(text: str) -> None:
    """A line that run_apart hands on."""
    sys.stdout.write(f"build: {text}\n")
    sys.stdout.flush()


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the template into a folder; called by ensure_template.")
    parser.add_argument("folder", type=Path)
    _build(parser.parse_args().folder)
