"""What a build of the agent says of itself, as one JSON object: run by its own interpreter, as the agent's user.

`shipped` counts what it finds of what comes with it, where its own code looks for that (by functions of 0.19.0 and
0.20.3); null: this release is asked in another way.
"""

import importlib
import json
import sys
from pathlib import Path

agent = importlib.import_module("hermes_cli")
config = importlib.import_module("hermes_cli.config")

SHIPPED = {
    "skills": ("tools.skills_sync", "_get_bundled_dir", "**/SKILL.md"),
    "plugins": ("hermes_cli.plugins", "get_bundled_plugins_dir", "**/plugin.yaml"),
    "languages": ("agent.i18n", "_locales_dir", "*.yaml"),
    "MCP servers": ("hermes_cli.mcp_catalog", "_catalog_root", "*/*.yaml"),
}


def count(module: str, function: str, pattern: str) -> int | None:
    try:
        folder = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError):
        return None
    return len(list(Path(folder).glob(pattern)))


package = Path(str(agent.__file__)).parent
# Behind whatever its libraries had to say.
sys.stdout.write(
    "\n"
    + json.dumps(
        {
            "version": agent.__version__,
            "config_version": config.DEFAULT_CONFIG["_config_version"],
            "dashboard_available": (package / "web_dist" / "index.html").is_file(),
            "terminal_available": (package / "tui_dist" / "entry.js").is_file(),
            "python": sys.version.split()[0],
            "shipped": {name: count(*where) for name, where in SHIPPED.items()},
        }
    )
)
