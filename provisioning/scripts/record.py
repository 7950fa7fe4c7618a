"""What the agent phase tells of a build, once the build's own answer (ask.py) is what was declared. Run by root.

Usage: record.py ANSWER TARGET, two files. From the environment: SOURCE, VERSION (may be empty), BUILD_ID, GIT_COMMIT,
FINAL.
"""

import json
import os
import sys
from pathlib import Path


def main(answer: Path, target: Path) -> None:
    wanted, source = os.environ["VERSION"], os.environ["SOURCE"]
    told = json.loads(answer.read_text(encoding="utf-8"))
    if wanted not in ("", told["version"]):
        sys.exit(
            f"error: the new installation calls itself {told['version']}, but {wanted} is declared. "
            "It was not switched to."
        )
    missing = [name for name, number in told["shipped"].items() if number == 0]
    if missing and source == "git":
        sys.exit(
            f"error: the new installation finds no {' and no '.join(missing)} of those that come with it. "
            "It was not switched to.\n"
            "error: agentCommit is no whole checkout of upstream's, or this release has them elsewhere."
        )
    commit = os.environ["GIT_COMMIT"] if source == "git" else ""
    build = {"build_id": os.environ["BUILD_ID"], "source": source, "commit": commit}
    target.write_text(json.dumps({**build, **told, "directory": os.environ["FINAL"]}), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
