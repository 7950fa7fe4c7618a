"""A newcomer's first minute: a fresh clone in a folder with a space in its name, and nothing outside it touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 600


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.timeout(DEADLINE + 60)
def test_set_up_of_a_fresh_clone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    clone = tmp_path / "with a space" / "clone"
    # Where the archives are beside this checkout they are not beside the clone.
    archives = os.environ.get("HERMES_TOOLCHAIN") or str(ROOT.parent / "shared" / "toolchain")
    env = {**os.environ, "HOME": str(home), "HERMES_TOOLCHAIN": archives}
    for name in ("PULUMI_HOME", "PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV"):
        env.pop(name, None)
    # The tools are to be found by the set-up, not inherited from this checkout's.
    env["PATH"] = os.pathsep.join(entry for entry in env["PATH"].split(os.pathsep) if str(ROOT) not in entry)
    run("git", "-c", "safe.directory=*", "clone", "--quiet", ROOT, clone, cwd=tmp_path, env=env)

    first = run(clone / "scripts" / "setup", cwd=tmp_path, env=env)
    assert "done" in first.stderr
    stamp = clone / ".cache" / "setup.stamp"
    when = stamp.stat().st_mtime_ns

    second = run(clone / "scripts" / "setup", cwd=tmp_path, env=env)
    assert (second.stdout, second.stderr) == ("", "")
    assert stamp.stat().st_mtime_ns == when

    # The tools run from there, the user's home has no Pulumi in it, and git sees nothing new.
    tools = {**env, "PULUMI_HOME": str(clone / ".cache" / "pulumi-home")}
    pinned = tomllib.loads((ROOT / "toolchain.toml").read_text())["pulumi"]["version"]
    version = run(clone / ".cache" / "pulumi-cli" / "bin" / "pulumi", "version", cwd=clone, env=tools).stdout
    assert version.strip().removeprefix("v") == pinned
    run(clone / ".cache" / "venv" / "bin" / "python", "-c", "import components.program, lab.cli", cwd=clone, env=tools)
    assert not (home / ".pulumi").exists()
    assert not (home / ".gitconfig").exists()
    assert run("git", "status", "--porcelain", cwd=clone, env=env).stdout == ""
    shutil.rmtree(clone)
