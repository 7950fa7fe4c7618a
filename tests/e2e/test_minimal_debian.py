"""Set-up on a minimal Debian 12, where pip, curl and git may be missing and Python is Debian's own 3.11.2."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from container_bench import GIB, Bench, bench_in

from pvelab.runtime import Completed, GuestSpec

ROOT = Path(__file__).parents[2]
CLONE = "/root/a clone"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")


def archives() -> bytes:
    """The folder of release archives as a tar, empty where there is none: then the downloads serve."""
    folder = Path(os.environ.get("HERMES_TOOLCHAIN") or ROOT.parent / "shared" / "toolchain")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(folder.glob("*.tar.gz")) if folder.is_dir() else []:
            tar.add(file, file.name)
    return buffer.getvalue()


def unpack(bench: Bench, spec: GuestSpec, tar: bytes, folder: str) -> None:
    done = bench.runtime.execute(
        spec, ["sh", "-ec", f"mkdir -p {shlex.quote(folder)} && tar x -C {shlex.quote(folder)}"], tar
    )
    assert done.returncode == 0, done.stderr.decode()


def set_up(bench: Bench, spec: GuestSpec) -> Completed:
    # /etc/environment is what a login would have: the CA files of a host that has some of its own.
    script = (
        f"set -a; . /etc/environment; cd {shlex.quote(CLONE)}; HERMES_TOOLCHAIN=/root/archives scripts/setup --no-lab"
    )
    return bench.runtime.execute(spec, ["sh", "-ec", script])


@pytest.mark.timeout(600)
def test_it_installs_what_it_needs_and_then_does_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="minimal-") as folder, bench_in(Path(folder) / "lab") as bench:
        bare = bench.spec(301, root_size=4 * GIB)
        bench.made.remove(bare)
        spec = bench.create(301)
        bench.runtime.start(spec, lambda _line: None)
        bench.booted(spec)
        for tool in ("pip3", "curl", "git", "uv", "pulumi"):
            assert bench.runtime.execute(spec, ["sh", "-c", f"command -v {tool}"]).returncode != 0, tool
        head = subprocess.run(
            ["git", "-c", "safe.directory=*", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
        )
        unpack(bench, spec, head.stdout, CLONE)
        unpack(bench, spec, archives(), "/root/archives")

        first = set_up(bench, spec)
        assert first.returncode == 0, first.stderr.decode()
        assert "setup: done" in first.stderr.decode()
        second = set_up(bench, spec)
        assert (second.returncode, second.stdout, second.stderr) == (0, b"", b"")
        version = bench.sh(spec, f"PULUMI_HOME=/tmp/p {shlex.quote(CLONE)}/.cache/pulumi-cli/bin/pulumi version")
        assert version.removeprefix("v") in (ROOT / "toolchain.toml").read_text()
        bench.sh(spec, f"cd {shlex.quote(CLONE)} && .cache/stack-venv/bin/python -c 'import components.program'")
        # Nothing of it lies outside the checkout.
        assert bench.sh(spec, "ls -A /root | grep -vE '^(a clone|archives|\\.bashrc|\\.profile|\\.ssh)$' || true") == ""
