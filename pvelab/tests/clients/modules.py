"""Run modules of Ansible's collection community.proxmox, one after the other, as ansible-playbook does on localhost.

One process for all: a playbook starts two for each task, and takes a second or more for it. Standard input: a JSON list
of ``[module, arguments]``. Standard output: a JSON list of what each module says.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from typing import Any

from ansible.module_utils.testing import patch_module_args  # type: ignore[import-not-found]


def run(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the module prints as it exits."""
    code = importlib.import_module(f"ansible_collections.community.proxmox.plugins.modules.{module}")
    printed = io.StringIO()
    with patch_module_args(arguments), contextlib.redirect_stdout(printed):
        try:
            code.main()
        except SystemExit:
            pass
        except Exception as error:
            return {"failed": True, "msg": str(error)}
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def main() -> None:
    results = [run(module, arguments) for module, arguments in json.load(sys.stdin)]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
