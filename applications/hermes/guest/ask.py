"""What a build or an image of the agent says of itself, as one line of JSON behind whatever its libraries had to say.

Run as a program by itself by the agent's own interpreter, as the agent's user: so it imports nothing of this package.
`shipped` counts what it finds of what comes with it, where its own code looks for that (by functions of 0.19.0 and
0.20.3); null: this release is asked in another way.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

SHIPPED = {
    "skills": ("tools.skills_sync", "_get_bundled_dir", "**/SKILL.md"),
    "plugins": ("hermes_cli.plugins", "get_bundled_plugins_dir", "**/plugin.yaml"),
    "languages": ("agent.i18n", "_locales_dir", "*.yaml"),
    "MCP servers": ("hermes_cli.mcp_catalog", "_catalog_root", "*/*.yaml"),
}
IMAGES_CODE = Path("/opt/hermes/hermes_cli")
"""Where upstream's image has the checkout beside the package."""


def count(module: str, function: str, pattern: str) -> int | None:
    try:
        folder = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError):
        return None
    return len(list(Path(folder).glob(pattern)))


def answer() -> dict[str, Any]:
    agent = importlib.import_module("hermes_cli")
    config = importlib.import_module("hermes_cli.config")
    places = (Path(str(agent.__file__)).parent, IMAGES_CODE)
    return {
        "version": agent.__version__,
        "config_version": config.DEFAULT_CONFIG["_config_version"],
        "dashboard_available": any((place / "web_dist" / "index.html").is_file() for place in places),
        "terminal_available": any((place / "tui_dist" / "entry.js").is_file() for place in places),
        "python": sys.version.split()[0],
        "shipped": {name: count(*where) for name, where in SHIPPED.items()},
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(answer()))
