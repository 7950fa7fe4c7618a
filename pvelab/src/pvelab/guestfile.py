"""The guest's configuration file, read and written in Proxmox's format.

``key: value`` lines sorted by key, the description as comment lines on top, raw ``lxc.`` lines last, then a
``[pve:pending]`` section and one section per snapshot (facts proxmox 17).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from pvelab.errors import die
from pvelab.schema import GUEST_OPTIONS, MOUNT_POINT, ROOTFS, FormatError, Params, parse_property_string

# Everything printable except the colon and the percent sign stays as it is.
_SAFE_TEXT = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in ":%")

_SECTION = re.compile(r"\[([a-z][a-z0-9_-]+)\]\s*", re.IGNORECASE)
_PENDING = re.compile(r"\[pve:pending\]\s*", re.IGNORECASE)
_RAW = re.compile(r"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*")
_OPTION = re.compile(r"([a-z][a-z_]*\d*):\s*(\S.*?)\s*")

_BOOLEAN = {"on": "1", "yes": "1", "true": "1", "1": "1", "off": "0", "no": "0", "false": "0", "0": "0"}


@dataclass
class Section:
    """The options of one section; ``description`` is kept as plain text."""

    options: dict[str, str] = field(default_factory=dict)
    raw: list[tuple[str, str]] = field(default_factory=list)

    def copy(self) -> Section:
        return Section(dict(self.options), list(self.raw))

    def render(self) -> str:
        description = self.options.get("description", "").removesuffix("\n")
        lines = [f"#{quote(line, safe=_SAFE_TEXT)}" for line in description.split("\n")] if description else []
        for key in sorted(self.options):
            if key == "description":
                continue
            value = self.options[key]
            if "\n" in value:
                raise die(f"detected invalid newline inside property '{key}'")
            lines.append(f"{key}: {value}")
        lines.extend(f"{key}: {value}" for key, value in self.raw)
        return "".join(line + "\n" for line in lines)


@dataclass
class GuestConfig:
    """A guest as configured: effective options, what waits for a restart, and its snapshots."""

    main: Section = field(default_factory=Section)
    pending: Section = field(default_factory=Section)
    delete: list[str] = field(default_factory=list)
    snapshots: dict[str, Section] = field(default_factory=dict)
    digest: str = ""

    @property
    def options(self) -> dict[str, str]:
        return self.main.options

    def get(self, key: str) -> str | None:
        return self.main.options.get(key)

    def flag(self, key: str) -> bool:
        return self.main.options.get(key) == "1"

    def render(self) -> str:
        # A volume that is in use is not unused: Proxmox drops the entry on every write.
        used = {mount["volume"] for _, mount in mount_points(self.main.options)}
        for key in [k for k, v in self.main.options.items() if k.startswith("unused") and v in used]:
            del self.main.options[key]
        text = self.main.render()
        if self.pending.options or self.delete:
            text += "\n[pve:pending]\n"
            if self.delete:
                text += f"delete: {','.join(self.delete)}\n"
            text += self.pending.render()
        for name in sorted(self.snapshots):
            text += f"\n[{name}]\n" + self.snapshots[name].render()
        return text

    def drop_pending(self, key: str) -> None:
        self.pending.options.pop(key, None)
        if key in self.delete:
            self.delete.remove(key)


def parse(text: str) -> GuestConfig:
    """Read a file; lines that Proxmox could not parse are left out, as it does on the next write."""
    config = GuestConfig(digest=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    section = config.main
    for line in text.split("\n"):
        if not line.strip():
            continue
        if _PENDING.fullmatch(line):
            section = config.pending
        elif match := _SECTION.fullmatch(line):
            section = config.snapshots.setdefault(match.group(1), Section())
        elif line.startswith("#"):
            section.options["description"] = section.options.get("description", "") + unquote(line[1:]) + "\n"
        elif match := _RAW.fullmatch(line):
            section.raw.append((match.group(1), match.group(2)))
        elif match := _OPTION.fullmatch(line):
            _parse_option(config, section, match.group(1), match.group(2))
    return config


def _parse_option(config: GuestConfig, section: Section, key: str, value: str) -> None:
    if key == "delete":
        if section is config.pending:
            config.delete.extend(part.lstrip("!") for part in re.split(r"[,;\s]+", value) if part)
    elif key == "description":
        section.options["description"] = unquote(value) + "\n"
    else:
        prop = GUEST_OPTIONS.get(key)
        if prop is not None and prop.type == "boolean":
            value = _BOOLEAN.get(value.lower(), value)
        section.options[key] = value


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` so that a reader sees the old or the new content, nothing between."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


# --- mount points -----------------------------------------------------------------------------------------------------

NEW_DISK = re.compile(r"([^:\s]+):(\d+(?:\.\d+)?)")


def slot_key(key: str) -> tuple[int, int]:
    """Sort key of volume slots: rootfs, mp0, mp1 ... mp255, unused0 ... (facts proxmox 2.3)."""
    for rank, prefix in enumerate(("rootfs", "mp", "unused")):
        if key.startswith(prefix):
            return rank, int(key[len(prefix) :] or 0)
    raise ValueError(f"'{key}' is no volume slot")


def is_mount(key: str) -> bool:
    return key == "rootfs" or (key.startswith("mp") and key[2:].isdigit())


def is_unused(key: str) -> bool:
    return key.startswith("unused") and key[6:].isdigit()


def parse_mount(key: str, value: str) -> Params:
    """The keys of one ``rootfs`` or ``mpN``; ``mp`` is ``/`` for the root file system."""
    if key == "rootfs":
        return {**parse_property_string(ROOTFS, value, key), "mp": "/"}
    return parse_property_string(MOUNT_POINT, value, key)


def mount_points(options: dict[str, str]) -> Iterator[tuple[str, Params]]:
    """``rootfs`` and the mount points in Proxmox's order; entries that do not parse are left out."""
    for key in sorted((k for k in options if is_mount(k)), key=slot_key):
        try:
            yield key, parse_mount(key, options[key])
        except FormatError:
            continue


def mount_type(volume: str) -> str:
    """``volume``, ``device`` or ``bind``."""
    if volume.startswith("/dev/"):
        return "device"
    return "bind" if volume.startswith("/") else "volume"
