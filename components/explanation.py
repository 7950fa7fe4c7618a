"""Why a phase runs again, in the preview's words: what is declared now beside what its last run has carried out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provisioning.plans import READ_AT_START, differing_keys

SAID = re.compile(r"(?P<phase>\S+) runs again \((?P<why>[^()]*)\)(?:; (?P<then>.*))?")
"""What `explain` says, in its parts: scripts/preview takes it apart."""


def explain(phase: str, before: Mapping[str, Any], declared: Mapping[str, Any], digest: str) -> str | None:
    """One line for people; None when nothing changes. ``before``: a phase's outputs in the state (declared, digest)."""
    if before.get("digest") == digest:
        return None
    old = before.get("declared") or {}
    changes = sorted(differing_keys(_without(old), _without(declared)))
    cause = f"changed: {', '.join(changes)}" if changes else "this program's own part of it has changed"
    return f"{phase} runs again ({cause}){_another_container(old, declared) or _restarts(old, declared)}"


def _without(declared: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in declared.items() if key != READ_AT_START}


def _another_container(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    was, wanted = old.get("container"), new.get("container")
    # Of verify it is a word only.
    if not isinstance(was, Mapping) or not isinstance(wanted, Mapping) or was.get("identity") == wanted.get("identity"):
        return ""
    return "; makes another container, and what was written inside of the old one is lost"


def _restarts(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    before, after = old.get(READ_AT_START), new.get(READ_AT_START)
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return ""
    units = sorted(name for name, word in after.items() if before.get(name) != word)
    ended = sorted(before.keys() - after.keys())
    said = [f"restarts {' and '.join(units)}" if units else "", f"ends {' and '.join(ended)}" if ended else ""]
    return "; " + (" and ".join(part for part in said if part) or "restarts no service")
