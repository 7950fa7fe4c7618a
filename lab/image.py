"""The images that the lab's registry serves: Debian, and Hermes Agent with the outer contract of upstream's image.

Built without Docker, from the same mirror and package index as the rest of the lab: a Debian 12 as a first layer, the
packages and files that the agent needs as a second, the agent from PyPI as a third, each one the changes that overlayfs
saw. The third is made in the guests' template, which has the same Python, while the first two are being made. Built
once and cached, like the template, in a folder named by a digest of everything that goes in.
Where the image differs from upstream's: docs/lab.md, "Images".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.instance import CACHE
from lab.oci import Layer, finish_layout, pack_layer, put_image, tags
from lab.place import LabError
from lab.services.releases import PROJECT
from lab.services.standin import TAG, VERSION, package_index
from lab.template import (
    BUNDLE,
    BUNDLE_VARIABLES,
    SUITE,
    Log,
    Recipe,
    Template,
    exclusive,
    need_tools,
    recipe_of_host,
    run_apart,
    run_tool,
    say_build,
    sources_file,
    work_area,
    write_extras,
)

AGENT_REPOSITORY = "nousresearch/hermes-agent"
BASE_REPOSITORY = "library/debian"
BASE_TAG = f"{SUITE}-slim"
NEXT_TAG = f"{TAG}.1"
"""The same agent under another tag and digest, as a rebuilt image is: for trying an upgrade."""
REQUIREMENT = f"{PROJECT}[all,messaging]=={VERSION}"
BASE_PACKAGES = ("ca-certificates",)
AGENT_PACKAGES = ("curl", "git", "procps", "python3", "python3-venv", "ripgrep", "s6")
FILES = Path(__file__).resolve().parent / "agentimage"
UV = CACHE / "uv" / "bin" / "uv"
UV_CACHE = CACHE / "uv-cache"
EPOCH = 1784505600
"""2026-07-20, the agent's release: the time of all that the build itself makes."""
CREATED = "2026-07-20T00:00:00Z"
USER_ID = 10000
DATA = "/opt/data"
CODE = "/opt/hermes"
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageError(LabError):
    """The images can't be built; the text says why and what to do."""


@dataclass(frozen=True)
class Images:
    """Finished images: an OCI image layout, and the digests of what is in it by ``repository:tag``."""

    layout: Path
    digests: Mapping[str, str]


@dataclass(frozen=True)
class ImageRecipe:
    """Everything that decides what the images hold."""

    base: Recipe
    base_packages: tuple[str, ...] = BASE_PACKAGES
    agent_packages: tuple[str, ...] = AGENT_PACKAGES
    requirement: str = REQUIREMENT
    revision: int = 1

    def digest(self, files: Path = FILES) -> str:
        """Of the recipe and of the files that go into the image."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode())
        for path in sorted(p for p in files.rglob("*") if p.is_file()):
            digest.update(f"\0{path.relative_to(files)}\0".encode() + path.read_bytes())
        digest.update(Path(__file__).read_bytes())
        return digest.hexdigest()[:16]


def ensure_images(cache: Path, template: Template, log: Log, recipe: ImageRecipe | None = None) -> Images:
    """The images of ``recipe`` (default: this host's), built when the cache has none, with the help of ``template``.

    One build at a time per cache; a second caller waits for it and uses its result.
    """
    recipe = recipe or ImageRecipe(recipe_of_host())
    found = cached_images(cache, recipe)
    if found is None:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(cache / ".lock", "images", log):
            found = cached_images(cache, recipe)
            if found is None:
                folder = cache / recipe.digest()
                _build_into(folder, template, recipe, log)
                found = Images(folder, tags(folder))
    return found


def cached_images(cache: Path, recipe: ImageRecipe | None = None) -> Images | None:
    """The images of ``recipe`` (default: this host's) if they were built before."""
    folder = cache / (recipe or ImageRecipe(recipe_of_host())).digest()
    return Images(folder, tags(folder)) if (folder / "index.json").exists() else None


def _build_into(folder: Path, template: Template, recipe: ImageRecipe, log: Log) -> None:
    for leftover in folder.parent.glob(".building-*"):
        shutil.rmtree(leftover)
    need_tools("the container images")
    if not UV.exists():
        raise ImageError(f"building the container images needs {UV}: run scripts/setup")
    started = time.monotonic()
    log(f"building the container images (Debian 12, {PROJECT} {VERSION}); this is done once")
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        (building / "recipe.json").write_text(json.dumps({**asdict(recipe), "template": str(template.archive)}))
        run_apart("lab.image", building, "container images", log)
        building.chmod(0o755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    log(f"container images ready after {time.monotonic() - started:.0f} s")


def agent_settings(recipe: Recipe) -> dict[str, Any]:
    """The agent image's configuration; facts hermes 2, "Docker image"."""
    return {
        "User": "root",
        "WorkingDir": CODE,
        "Entrypoint": [f"{CODE}/docker/entrypoint-dispatch.sh"],
        "Env": [
            f"PATH={CODE}/bin:{CODE}/.venv/bin:{DATA}/.local/bin:{STANDARD_PATH}",
            "PYTHONUNBUFFERED=1",
            "PYTHONDONTWRITEBYTECODE=1",
            f"HERMES_WEB_DIST={CODE}/hermes_cli/web_dist",
            f"HERMES_HOME={DATA}",
            f"HERMES_WRITE_SAFE_ROOT={DATA}",
            "HERMES_DISABLE_LAZY_INSTALLS=1",
            *_trust(recipe),
        ],
        "Volumes": {DATA: {}},
    }


def base_settings(recipe: Recipe) -> dict[str, Any]:
    """The Debian image's configuration."""
    return {"Cmd": ["bash"], "Env": [f"PATH={STANDARD_PATH}", *_trust(recipe)]}


def _trust(recipe: Recipe) -> list[str]:
    """Where this machine's own CA certificates are found; a container reads no /etc/environment."""
    return [f"{name}={BUNDLE}" for name in BUNDLE_VARIABLES] if recipe.certificates else []


# --- the build itself, already in its own mount namespace ----------------------------------------


def _build(building: Path) -> None:
    raw = json.loads((building / "recipe.json").read_text())
    template = Path(raw["template"])
    recipe = ImageRecipe(
        Recipe.from_json(raw["base"]), tuple(raw["base_packages"]), tuple(raw["agent_packages"]), raw["requirement"]
    )
    made = time.time() - 1
    work = work_area(building, gigabytes=4)

    def pack(changes: Path) -> Layer:
        return pack_layer(building, changes, made, EPOCH, _left_out)

    def agent_layer() -> tuple[Path, Layer]:
        changes = _agent(work, template, recipe.requirement)
        return changes, pack(changes)

    with ThreadPoolExecutor(3) as pool:
        agent = pool.submit(agent_layer)
        base = _debian(work, recipe)
        first = pool.submit(pack, base)
        say_build("adding the agent's packages")
        packages = _packages(work, base, recipe.agent_packages)
        second = pool.submit(pack, packages)
        changes, third = agent.result()
        say_build("trying the agent in its image")
        with _Chroot(work, "image", [changes, packages, base]) as image:
            image.run([f"{CODE}/bin/hermes", "--version"], HERMES_HOME="/tmp/home", HERMES_DISABLE_LAZY_INSTALLS="1")  # noqa: S108
        layers = [first.result(), second.result(), third]
    _finish(building, layers, recipe.base)


def _finish(building: Path, layers: Sequence[Layer], recipe: Recipe) -> None:
    def image(layers: Sequence[Layer], settings: dict[str, Any]) -> dict[str, Any]:
        return put_image(building, layers, settings, recipe.architecture, CREATED)

    agent = agent_settings(recipe)
    current = image(layers, {**agent, "Labels": {"org.opencontainers.image.version": TAG}})
    later = image(layers, {**agent, "Labels": {"org.opencontainers.image.version": NEXT_TAG}})
    finish_layout(
        building,
        {
            f"{BASE_REPOSITORY}:{BASE_TAG}": image(layers[:1], base_settings(recipe)),
            f"{AGENT_REPOSITORY}:{TAG}": current,
            f"{AGENT_REPOSITORY}:latest": current,
            f"{AGENT_REPOSITORY}:{NEXT_TAG}": later,
        },
    )
    shutil.rmtree(building / "work", ignore_errors=True)


def _left_out(path: str) -> bool:
    """What differs from build to build, or is the running system's own."""
    top = path.partition("/")[0]
    return (
        (top in {"proc", "sys", "dev", "run", "tmp"} and "/" in path)
        or path.startswith(
            ("var/log/", "var/cache/apt/", "var/lib/apt/lists/", "var/cache/ldconfig/", "var/cache/debconf/")
        )
        or path.endswith("-old")
    )


def _debian(work: Path, recipe: ImageRecipe) -> Path:
    base, extra, scratch = work / "base", work / "extra", work / "tmp"
    scratch.mkdir(mode=0o1777)
    write_extras(extra, recipe.base)
    sources = sources_file(recipe.base)
    given = "apt/sources.list apt/sources.list.d/0*" if sources else ""
    run_tool(
        [
            "mmdebstrap", "--variant=minbase", "--mode=root", "--skip=output/dev", "--format=directory",
            f"--architectures={recipe.base.architecture}", f"--include={','.join(recipe.base_packages)}",
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=force-unsafe-io",
            *(f"--aptopt={option}" for option in recipe.base.apt_options),
            f'--customize-hook=cp -r {extra}/. "$1"/',
            '--customize-hook=chroot "$1" update-ca-certificates',
            '--customize-hook=cd "$1"/etc && rm -f hostname ' + given,
            '--customize-hook=: > "$1"/etc/machine-id',
            '--customize-hook=: > "$1"/etc/resolv.conf',
            SUITE, str(base), *(["-"] if sources else []),
        ],
        stdin=sources or "",
        TMPDIR=str(scratch),
        SOURCE_DATE_EPOCH=str(EPOCH),
    )  # fmt: skip
    return base


class _Chroot:
    """A tree on top of others, in which commands can be run; ``changes`` is what they left."""

    def __init__(self, work: Path, name: str, below: Sequence[Path]) -> None:
        self.root, self.changes = work / f"{name}.root", work / name
        self._scratch, self._below = work / f"{name}.work", below

    def __enter__(self) -> _Chroot:
        for folder in (self.root, self.changes, self._scratch):
            folder.mkdir()
        options = f"lowerdir={':'.join(str(path) for path in self._below)},upperdir={self.changes}"
        options += f",workdir={self._scratch},redirect_dir=off,metacopy=off,index=off"
        run_tool(["mount", "-t", "overlay", "-o", options, "overlay", str(self.root)])
        run_tool(["mount", "-t", "proc", "proc", str(self.root / "proc")])
        run_tool(["mount", "--bind", "/dev", str(self.root / "dev")])
        self.bind(Path("/etc/resolv.conf").resolve(), "/etc/resolv.conf")
        return self

    def bind(self, source: Path, inside: str) -> None:
        run_tool(["mount", "--bind", str(source), f"{self.root}{inside}"])

    def run(self, command: Sequence[str], **environment: str) -> None:
        kept = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
        trust = dict.fromkeys(BUNDLE_VARIABLES, BUNDLE)
        fixed = {"PATH": STANDARD_PATH, "HOME": "/root", "LC_ALL": "C", "SOURCE_DATE_EPOCH": str(EPOCH)}
        done = subprocess.run(
            ["chroot", str(self.root), *command],
            stdin=subprocess.DEVNULL, env={**kept, **trust, **fixed, **environment}, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{command[0]} in the image failed with exit code {done.returncode}")

    def __exit__(self, *_: object) -> None:
        run_tool(["umount", "--recursive", "--lazy", str(self.root)])


def _packages(work: Path, base: Path, packages: Sequence[str]) -> Path:
    """The second layer: Debian's packages, the agent's user, and the files of the outer contract."""
    options = ["--yes", "-qq", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"]
    user = ["useradd", "--uid", str(USER_ID), "--create-home", "--home-dir", DATA, "--skel", "/nonexistent", "hermes"]
    with _Chroot(work, "packages", [base]) as tree:
        tree.run(["apt-get", "-qq", "update"])
        tree.run(["apt-get", "install", *options, *packages], DEBIAN_FRONTEND="noninteractive")
        tree.run(user)
        _place_files(tree.root)
    return tree.changes


def _agent(work: Path, template: Path, requirement: str) -> Path:
    """The third layer: the agent's virtual environment, built in a tree that has the same Python."""
    below = work / "template"
    below.mkdir()
    unpack = ["tar", "--zstd", "-xpf", str(template), "-C", str(below), "--numeric-owner", "--exclude=./dev/*"]
    run_tool(unpack)
    (below / "dev").mkdir(exist_ok=True)
    venv = f"{CODE}/.venv"
    uv = {
        "UV_CACHE_DIR": "/mnt/cache", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1",
        "UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "60", "UV_DEFAULT_INDEX": package_index(),
    }  # fmt: skip
    UV_CACHE.mkdir(parents=True, exist_ok=True)
    with _Chroot(work, "agent", [below]) as tree:
        for source, inside in ((UV.parent, "/mnt/uv"), (UV_CACHE, "/mnt/cache")):
            (below / inside[1:]).mkdir()
            tree.bind(source, inside)
        tree.run(["/mnt/uv/uv", "venv", "--quiet", "--no-project", "--python", "/usr/bin/python3", venv], **uv)
        install = ["/mnt/uv/uv", "pip", "install", "--quiet", "--python", venv, "--only-binary", ":all:", requirement]
        tree.run(install, **uv)
        # By content, so that the files' times, which are made equal, don't count.
        compiling = ["python3", "-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash", f"{venv}/lib"]
        tree.run(compiling)
    # By this the agent knows how it was installed; it looks beside its own code.
    (site,) = (tree.changes / venv[1:]).glob("lib/python3*/site-packages")
    (site / ".install_method").write_text("docker\n")
    only = work / "agent.only"
    (only / CODE[1:]).mkdir(parents=True)
    (tree.changes / venv[1:]).rename(only / venv[1:])
    return only


def _place_files(root: Path) -> None:
    code = root / CODE[1:]
    for source, target in (
        ("entrypoint-dispatch.sh", f"{CODE}/docker/entrypoint-dispatch.sh"),
        ("main-wrapper.sh", f"{CODE}/docker/main-wrapper.sh"),
        ("stage2-hook.sh", f"{CODE}/docker/stage2-hook.sh"),
        ("rc.init", f"{CODE}/docker/rc.init"),
        ("hermes-exec-shim.sh", f"{CODE}/bin/hermes"),
        ("init", "/init"),
        ("with-contenv", "/command/with-contenv"),
        ("reconcile.sh", "/etc/cont-init.d/02-reconcile-profiles"),
        ("dashboard/run", "/etc/s6-overlay/s6-rc.d/dashboard/run"),
        ("dashboard/finish", "/etc/s6-overlay/s6-rc.d/dashboard/finish"),
        ("seed/env", f"{CODE}/docker/seed/env"),
        ("seed/config.yaml", f"{CODE}/docker/seed/config.yaml"),
        ("seed/SOUL.md", f"{CODE}/docker/seed/SOUL.md"),
    ):
        place = root / target[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FILES / source, place)
        place.chmod(0o644 if source.startswith("seed/") else 0o755)
    for tool in sorted((root / "usr/bin").glob("s6-*")):
        (root / "command" / tool.name).symlink_to(f"/usr/bin/{tool.name}")
    hook = root / "etc/cont-init.d/01-hermes-setup"
    hook.write_text(f"#!/command/with-contenv sh\nexec {CODE}/docker/stage2-hook.sh\n")
    hook.chmod(0o755)
    (python,) = (root / "usr/lib").glob("python3.*")
    (code / "hermes_cli").mkdir()
    web = f"{CODE}/.venv/lib/{python.name}/site-packages/hermes_cli/web_dist"
    (code / "hermes_cli/web_dist").symlink_to(web)
    (code / ".install_method").write_text("docker\n")
    provenance = {
        "schema": 1, "deployment_kind": "image", "manager": "docker", "image": AGENT_REPOSITORY, "version": VERSION,
        "revision": None,
    }  # fmt: skip
    own = root / "etc/hermes/image-provenance.json"
    own.parent.mkdir()
    own.write_text(json.dumps(provenance, sort_keys=True, separators=(",", ":")) + "\n")
    own.chmod(0o444)


__all__ = ["ImageError", "ImageRecipe", "Images", "ensure_images"]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the images into a folder; called by ensure_images.")
    parser.add_argument("folder", type=Path)
    _build(parser.parse_args().folder)
