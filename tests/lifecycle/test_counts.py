"""What a run costs, whatever the machine: processes, SSH connections, requests. Seconds: scripts/bench."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from lab import engine
from lab.counting import connections_of, processes_of, traced
from lab.instance import CACHE
from tests.lifecycle.homesite import Site, good

REQUESTS = 1 + 3 + 2 * 5 + 18

counted = pytest.mark.skipif(shutil.which("strace") is None, reason="strace counts the processes")


def processes(site: Site, folder: Path, stack: str, *argv: str, cwd: Path | None = None) -> int:
    """The programs that a run starts; it opens no SSH connection."""
    record = folder / "trace"
    site.forget()
    run = site.pulumi(stack, *argv, before=traced(record), cwd=cwd)
    good(run)
    text = record.read_text(errors="replace")
    assert connections_of(text) == 0
    return processes_of(text)


def empty_program(site: Site, folder: Path) -> Path:
    """The least that the engine can run, in the environment of the stacks."""
    folder.mkdir()
    runtime = {"name": "python", "options": {"toolchain": "pip", "virtualenv": str(CACHE / "stack-venv")}}
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "empty", "runtime": runtime}))
    (folder / "__main__.py").write_text("import pulumi\n")
    site.overrides["PULUMI_OPTION_CONFIG_FILE"] = None
    engine.command("stack", "init", "empty", cwd=folder, env=site.env)
    return folder


@counted
def test_a_preview_starts_each_plugin_twice_and_nothing_else(with_both: Site, tmp_path: Path) -> None:
    """Once to refresh what is in the state, once for the program. More is our own doing."""
    ours = processes(with_both, tmp_path, "cattle", "preview")
    # The dynamic resources' server is a shell that becomes Python.
    plugins = 2 * (1 + 2)
    assert with_both.writes == []
    empty = empty_program(with_both, tmp_path / "empty")
    least = processes(with_both, tmp_path, "empty", "preview", cwd=empty)
    # The engine asks git about the checkout, and the empty program is in none.
    assert ours - 1 <= least + plugins


def test_a_run_without_changes_asks_no_more_than_it_did(with_both: Site) -> None:
    """The way to Proxmox, the container as its plugin reads it, two parts that are refreshed, and the preflight."""
    with_both.preview("cattle")
    assert len(with_both.sent) <= REQUESTS, [str(request) for request in with_both.sent]
    assert with_both.writes == []


def test_a_state_has_no_provider_that_nothing_uses(with_both: Site) -> None:
    """Our server is asked for ahead of the resources: it has to be the one that they name."""
    for stack in ("pet", "cattle"):
        resources = json.loads(with_both.command("stack", "export", "--stack", stack))["deployment"]["resources"]
        made = {one["urn"] for one in resources if one["type"].startswith("pulumi:providers:")}
        used = {one["provider"].rpartition("::")[0] for one in resources if "provider" in one}
        # The engine's own, which tells of other stacks' outputs.
        assert {urn for urn in made - used if "::pulumi:providers:pulumi::" not in urn} == set()
