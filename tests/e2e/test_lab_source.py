"""The lab's git repository: one tree, one commit; fetched by its id as from a large host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.instance import CACHE
from lab.services.releases import Release, SourceError
from lab.services.source import SOURCE_CACHE, GitDaemon, Source, ensure_source, ensure_standin
from lab.services.standin import TAG, build_repository
from pvelab.place import Place
from tests.listening import free_port

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def tree_in(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "main.py").write_bytes(b"print('one')\r\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".gitignore").write_text("*.dist\n")
    (folder / "web.dist").write_text("built, and wanted although it is ignored\n")
    return folder


def git(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    return subprocess.run(
        ["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def test_the_tree_alone_decides_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_repository(tree_in(tmp_path / "a"), tmp_path / "a.git")
    # Another day, another user, with a configuration of his own.
    other = tree_in(tmp_path / "b")
    os.utime(other / "run.sh", (0, 0))
    configuration = tmp_path / "gitconfig"
    configuration.write_text("[user]\n name = Somebody\n email = x@example.org\n[core]\n autocrlf = input\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
    assert build_repository(other, tmp_path / "b.git") == first
    (other / "run.sh").chmod(0o644)
    assert build_repository(other, tmp_path / "c.git") != first


def test_no_client_has_the_repository_packed_for_it(tmp_path: Path) -> None:
    build_repository(tree_in(tmp_path / "tree"), tmp_path / "a.git")
    assert git("count-objects", cwd=tmp_path / "a.git").stdout == "0 objects, 0 kilobytes\n"


def test_a_commit_is_fetched_by_its_id_with_all_files(tmp_path: Path) -> None:
    repository = tmp_path / "served folder" / "hermes-agent.git"
    repository.parent.mkdir()
    commit = build_repository(tree_in(tmp_path / "tree"), repository)
    place = Place.of(tmp_path / "lab", run=tmp_path / "run")
    place.make_run_dir()
    daemon = GitDaemon(place, "127.0.0.1", repository.parent, free_port())
    daemon.start()
    try:
        daemon.start()  # harmless
        url = daemon.url(Source(repository, "stand-in", (Release("0.19.0", TAG, commit),)))
        clone = tmp_path / "clone"
        clone.mkdir()
        git("init", "-q", cwd=clone)
        fetched = git("fetch", "-q", "--depth=1", url, commit, cwd=clone)
        assert fetched.returncode == 0, fetched.stderr
        assert git("checkout", "-q", "FETCH_HEAD", cwd=clone).returncode == 0
        assert (clone / "pkg" / "main.py").read_bytes() == b"print('one')\r\n"
        assert (clone / "web.dist").exists()
        assert os.access(clone / "run.sh", os.X_OK)
        assert git("ls-remote", "--tags", url, cwd=clone).stdout.split() == [commit, f"refs/tags/{TAG}"]
        assert git("fetch", "-q", "--depth=1", url, "0" * 39 + "1", cwd=clone).returncode != 0
        # What clients send is refused, and nothing outside the folder is served.
        assert git("push", "-q", url, "FETCH_HEAD:refs/heads/mine", cwd=clone).returncode != 0
        outside = url.replace("hermes-agent.git", f"..{tmp_path}/tree")
        assert git("ls-remote", outside, cwd=clone).returncode != 0
    finally:
        daemon.stop()
    end = time.monotonic() + 10
    while git("ls-remote", url, cwd=tmp_path).returncode == 0:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_daemon_that_was_left_serves_what_the_lab_has_now(tmp_path: Path) -> None:
    place = Place.of(tmp_path / "lab", run=tmp_path / "run")
    place.make_run_dir()
    port = free_port()
    url = f"git://127.0.0.1:{port}/hermes-agent.git"
    daemons = []
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            tree = tree_in(tmp_path / f"tree {name}")
            (tree / "name").write_text(name)
            commit = build_repository(tree, tmp_path / name / "hermes-agent.git")
            daemons.append(GitDaemon(place, "127.0.0.1", tmp_path / name, port))
            daemons[-1].start()
            assert git("ls-remote", "--tags", url, cwd=tmp_path).stdout.split() == [commit, f"refs/tags/{TAG}"]
    finally:
        daemons[-1].stop()


def test_a_busy_port_is_told(tmp_path: Path) -> None:
    place = Place.of(tmp_path / "lab", run=tmp_path / "run")
    place.make_run_dir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        daemon = GitDaemon(place, "127.0.0.1", tmp_path, listener.getsockname()[1])
        with pytest.raises(SourceError, match="can't listen"):
            daemon.start()


@pytest.fixture(scope="module", params=["stand-in", "upstream"])
def checkout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of what the lab serves; each test holds the stand-in to what upstream's does."""
    source = (ensure_standin if request.param == "stand-in" else ensure_source)(SOURCE_CACHE, lambda _: None)
    if source.kind != request.param:
        pytest.skip("upstream's repository is not to be had here")
    folder = tmp_path_factory.mktemp("checkout") / "tree"
    assert git("clone", "-q", str(source.repository), str(folder), cwd=CACHE).returncode == 0
    return folder


def uv(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    found = CACHE / "uv" / "bin" / "uv"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("UV_") and k != "VIRTUAL_ENV"}
    clean |= {"UV_CACHE_DIR": str(CACHE / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never", **environment}
    command = [str(found), *arguments, "--python", sys.executable]
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=300, check=False)


def test_no_wheel_can_be_built_of_a_checkout(checkout: Path, tmp_path: Path) -> None:
    for kind in ("--wheel", "--sdist"):
        done = uv(checkout, "build", kind, "--out-dir", str(tmp_path))
        assert done.returncode != 0
        assert "RuntimeError" in done.stderr
        assert "uv sync" in done.stderr, "it says what to do instead"
    assert list(tmp_path.glob("*.whl")) == []


def test_the_lock_holds_with_the_projects_own_settings_only(checkout: Path) -> None:
    held = uv(checkout, "lock", "--check")
    assert held.returncode == 0, held.stderr
    hidden = uv(checkout, "lock", "--check", UV_NO_CONFIG="1")
    assert hidden.returncode != 0
    assert "needs to be updated" in hidden.stderr


def test_a_checkout_is_laid_out_as_upstreams(checkout: Path) -> None:
    assert (checkout / ".python-version").read_text().strip() == "3.11"
    for folder in ("skills", "optional-skills", "plugins", "locales", "optional-mcps", "web", "ui-tui"):
        assert any((checkout / folder).iterdir()), folder
    kept = git("ls-files", cwd=checkout).stdout.splitlines()
    for built in ("hermes_cli/web_dist/", "hermes_cli/tui_dist/", "ui-tui/dist/", "hermes_agent.egg-info/"):
        assert [path for path in kept if path.startswith(built)] == []
    assert os.access(checkout / "hermes", os.X_OK)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_an_old_node_is_refused(checkout: Path) -> None:
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) >= 22:
        pytest.skip("this machine's Node is new enough")
    workspaces = ("--workspace", "ui-tui", "--workspace", "web", "--include-workspace-root")
    command = ["npm", "ci", "--include=dev", *workspaces]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "EBADENGINE" in done.stderr
