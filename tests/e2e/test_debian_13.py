"""The cattle on Debian 13: Python 3.13, systemd 257, OpenSSH 10. What depends on the system, once, from end to end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from provisioning import BaselineInputs, Dashboard, render_baseline
from tests.e2e.phase_guest import Guest, a_guest, needs_root

pytestmark = needs_root


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with a_guest(tmp_path_factory.mktemp("debian-13"), debian=13) as made:
        yield made


def test_the_agent_is_installed_answers_and_stays_in_its_sandbox(guest: Guest) -> None:
    assert guest.shell(". /etc/os-release; echo $VERSION_CODENAME").strip() == "trixie"
    guest.run(render_baseline(BaselineInputs()))
    installed = guest.run(guest.agent("git"))
    assert installed["version"] == guest.release.version
    assert str(installed["python"]).startswith("3.13."), "Debian's own"
    configure = guest.configure(dashboard=Dashboard(enabled=False))
    assert guest.run(configure)["restarted"] == ["hermes-gateway.service"]
    told = {"version": guest.release.version, "dashboard": False}
    status, _, said = guest.verify(**told)
    assert status == 0, said
    # Its shell may write where its data is, and nowhere else.
    tried = "for place in .hermes workspace /etc/hermes /opt/hermes/current/venv; do touch $place/.try 2>/dev/null && "
    prompt = f"run: cd /home/hermes; {{ {tried} echo $place; done; }} >workspace/let"
    status, _, said = guest.verify(**told, prompt=prompt, expect="Done. The tool said")
    assert status == 0, said
    assert guest.shell("cat /home/hermes/workspace/let").split() == [".hermes", "workspace"]
    assert guest.shell("systemctl list-units --failed --plain --no-legend 'hermes-*' 'ssh*'") == ""
    # A second run changes nothing.
    assert guest.run(configure)["restarted"] == []
