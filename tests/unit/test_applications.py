"""Another application is a folder and a line: examples/webservice, added to a copy of the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program_copy import copy_with_webservice, ran
from tests.settings import ENVIRONMENT

PROGRAM = """
import json, sys
from applications import application
from components.application import foresee
from provisioning.plans import PhasePlan
from settings.outputs import outputs_of
from settings.read import read_stack
given, environment = json.loads(sys.argv[1])
stack = read_stack("cattle", given, environment)
made = application(stack.application)
plans = foresee(made.phases(stack), {})
answers = made.outputs(stack)
print(json.dumps({
    "phases": {name: [file.path for file in plan.files] for name, plan in plans.items()},
    "kept": all(PhasePlan.from_json(plan.as_json()).files == plan.files for plan in plans.values()),
    "url": answers["url"].read("192.0.2.5"),
    "promised": sorted(outputs_of("webservice").keys() - outputs_of("none").keys()) == sorted(answers),
    "modules": sorted(name for name in sys.modules if name.startswith("applications.")),
}))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the program with one folder and one line more."""
    return copy_with_webservice(tmp_path / "copy")


def test_a_folder_and_a_line_are_another_application(tree: Path) -> None:
    ran(tree, "-m", "settings.generate")
    assert "  webPort:\n    type: integer\n    default: 8080\n" in (tree / "Pulumi.yaml").read_text()
    assert "## The web service" in (tree / "docs" / "options.md").read_text()
    assert "| `url` |" in (tree / "docs" / "outputs.md").read_text()
    given = {"application": "webservice", "webPort": "8081", "cattleMountPath": "/srv/web"}
    found: dict[str, Any] = json.loads(ran(tree, "-c", PROGRAM, json.dumps([given, ENVIRONMENT])))
    assert list(found["phases"]) == ["baseline", "serve"]
    assert "applications/webservice/guest/serve.py" in found["phases"]["serve"]
    assert not [path for path in found["phases"]["serve"] if "hermes" in path]
    assert found["kept"]
    assert found["promised"]
    assert found["url"] == "http://192.0.2.5:8081/"
    # Of the other application only the settings are read.
    assert [
        name for name in found["modules"] if name.startswith("applications.hermes.") and "settings" not in name
    ] == []


def test_its_page_answers_where_it_is_asked(tree: Path, tmp_path: Path) -> None:
    """Its phase writes page and unit, and has asked the page before it ends. Root's tools are stand-ins here."""
    folder, tools, job = tmp_path / "page", tmp_path / "bin", tmp_path / "job"
    for made in (folder, tools, job):
        made.mkdir()
    code = (
        "import sys, http.server, threading, functools, json, pathlib\n"
        "from applications.webservice.guest import serve\n"
        "folder, job = sys.argv[1:]\n"
        "handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "page = {'port': server.server_port, 'text': 'Hello.', 'user': 'web', 'folder': folder}\n"
        "pathlib.Path(job, 'inputs.json').write_text(json.dumps(page))\n"
        "serve.UNIT = pathlib.Path(job, 'web.service')\n"
        "called = []\n"
        "serve.run = lambda *words, **_: called.append(words)\n"
        "serve.install_file = lambda path, text, **_: path.write_text(text) > 0\n"
        "serve.as_user = lambda user, *_, stdin: pathlib.Path(folder, 'index.html').write_text(stdin)\n"
        "print(json.dumps([serve.serve(pathlib.Path(job)), called, serve.UNIT.read_text()]))\n"
    )
    said, called, unit = json.loads(ran(tree, "-c", code, str(folder), str(job)).splitlines()[-1])
    assert said == {"bytes": 6}
    assert ["systemctl", "restart", "web.service"] in called
    assert "User=web\n" in unit
