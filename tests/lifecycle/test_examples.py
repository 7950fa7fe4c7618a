"""The examples that are programs of their own, run by the real engine."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab import engine
from lab.environment import CONFIG_FILE_VARIABLE
from lab.instance import CHECKOUT
from tests.lifecycle.homesite import Site, needs_yaml_host


@needs_yaml_host
def test_a_program_in_yaml_reads_the_outputs_of_the_cattle(with_both: Site, tmp_path: Path) -> None:
    own = shutil.copytree(CHECKOUT / "examples" / "other-stack" / "yaml", tmp_path / "own")
    hostname = with_both.outputs("cattle")["hostname"]
    with_both.overrides[CONFIG_FILE_VARIABLE] = None
    engine.command("stack", "init", "home", cwd=own, env=with_both.env)
    run = with_both.pulumi("home", "up", "--yes", "--skip-preview", cwd=own)
    assert run.ok, run.explain()
    found = engine.outputs("home", cwd=own, env=with_both.env)
    # Without containers there is no agent, so nothing has an address.
    assert found["record"] == f"host-record={hostname}.lan,"
    assert found.keys() == {"record", "api", "apiKey"}
