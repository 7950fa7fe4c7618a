"""Runs while the image is built: has the agent phase's own program build what the arguments name, and says what came.

From the environment: AGENT_SOURCE (git|pypi), AGENT_VERSION, AGENT_REPOSITORY, AGENT_TAG, AGENT_COMMIT, AGENT_EXTRAS,
AGENT_WEB_UI (prebuilt|build)
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
# As docker/Dockerfile lays them out, or a checkout.
sys.path[:0] = [str(HERE), str(HERE.parent)]

from applications.hermes.guest.build import CACHE, ROOT, build  # noqa: E402
from applications.hermes.guest.inputs import Build  # noqa: E402
from provisioning.guest.common import Refusal, as_user, run  # noqa: E402

BAKED = Path("/opt/hermes-agent")
USER = "hermes"


def faults_of(given: Mapping[str, str]) -> list[str]:
    """All that is wrong with the arguments."""
    source, commit = given["AGENT_SOURCE"], given["AGENT_COMMIT"]
    found = []
    if source == "git":
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            found.append(f"AGENT_COMMIT is '{commit}': name the full 40-character commit")
        if not given["AGENT_TAG"]:
            found.append("AGENT_TAG is empty: name the tag that AGENT_COMMIT belongs to")
        if not given["AGENT_REPOSITORY"]:
            found.append("AGENT_REPOSITORY is empty: name the repository")
    elif source != "pypi":
        found.append(f"AGENT_SOURCE is '{source}': it is git or pypi")
    if not re.fullmatch(r"[0-9]+(\.[0-9a-z]+)+", given["AGENT_VERSION"]):
        found.append(f"AGENT_VERSION is '{given['AGENT_VERSION']}': name a version, 0.20.3 for one")
    if given["AGENT_WEB_UI"] not in ("prebuilt", "build"):
        found.append(f"AGENT_WEB_UI is '{given['AGENT_WEB_UI']}': it is prebuilt or build")
    return found


def bake(given: Mapping[str, str]) -> None:
    """Build the agent, and lead BAKED to it."""
    os.environ["HP_JOB"] = str(HERE)
    inputs = Build(
        source=given["AGENT_SOURCE"],
        version=given["AGENT_VERSION"],
        directory=given["AGENT_VERSION"],
        build_id="image",
        extras=tuple(filter(None, given["AGENT_EXTRAS"].split(","))),
        extra_python_packages=(),
        git_url=given["AGENT_REPOSITORY"],
        git_tag=given["AGENT_TAG"],
        git_commit=given["AGENT_COMMIT"],
        web_ui=given["AGENT_WEB_UI"],
        python_mirror="",
        user=USER,
    )
    build(HERE, inputs)
    BAKED.symlink_to(ROOT / "wanted")
    shutil.rmtree(CACHE, ignore_errors=True)
    program = BAKED / "venv" / "bin" / "hermes"
    home = as_user(USER, "mktemp", "-d").strip()
    variables = (f"HERMES_HOME={home}", "HERMES_DISABLE_LAZY_INSTALLS=1")
    version = as_user(USER, "env", *variables, str(program), "--version").partition("\n")[0]
    run("rm", "-rf", home)
    print(f"image: {program} is {version}")


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if faults := faults_of(os.environ):
        sys.stderr.write("".join(f"error: build argument {fault}\n" for fault in faults))
        return 1
    try:
        bake(os.environ)
    except (Refusal, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
