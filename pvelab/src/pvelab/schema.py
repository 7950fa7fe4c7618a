"""Parameter schemas and their messages, as Proxmox words them (facts proxmox 0).

A :class:`Prop` describes one parameter or one key of a property string. ``check_params`` validates a request,
``parse_property_string`` and ``print_property_string`` handle values such as ``local-lvm:8,mp=/data``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pvelab.errors import bad_params

Params = dict[str, str]
Format = Callable[[str], None]
"""Raises ValueError with Proxmox's text; the line end is added by the caller."""

MISSING = "property is missing and it is not optional"
UNKNOWN = "property is not defined in schema and the schema does not allow additional properties"


@dataclass(frozen=True)
class PropertyFormat:
    """A comma-separated list of ``key=value``; ``default_key`` may stand without its name."""

    keys: Mapping[str, Prop]
    default_key: str | None = None


@dataclass(frozen=True)
class Prop:
    type: Literal["string", "integer", "number", "boolean"] = "string"
    required: bool = False
    enum: tuple[str, ...] = ()
    pattern: str | None = None
    format: Format | PropertyFormat | None = None
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    requires: str | None = None


Schema = Mapping[str, Prop]


def without(schema: Schema, unknown: frozenset[str]) -> dict[str, Prop]:
    """The schema of a release that does not know some parameters and keys of property strings."""
    return {
        name: replace(prop, format=replace(prop.format, keys=without(prop.format.keys, unknown)))
        if isinstance(prop.format, PropertyFormat)
        else prop
        for name, prop in schema.items()
        if name not in unknown
    }


_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class FormatError(ValueError):
    """A property string that does not parse; ``str()`` is the text after ``invalid format - ``."""


def check_value(path: str, prop: Prop, value: str) -> str | None:
    """The fault of one value, or None; the first one that Proxmox would find."""
    return (
        _check_type(prop, value)
        or _check_format(path, prop, value)
        or _check_text(prop, value)
        or _check_bounds(prop, value)
    )


def _check_format(path: str, prop: Prop, value: str) -> str | None:
    if prop.format is None:
        return None
    try:
        if isinstance(prop.format, PropertyFormat):
            parse_property_string(prop.format, value, path)
        else:
            prop.format(value)
    except FormatError as error:
        return f"invalid format - {error}"
    except ValueError as error:
        return f"invalid format - {error}\n"
    return None


def _check_text(prop: Prop, value: str) -> str | None:
    if prop.pattern is not None and not re.fullmatch(prop.pattern, value):
        return "value does not match the regex pattern"
    if prop.min_length is not None and len(value) < prop.min_length:
        return f"value must be at least {prop.min_length} characters long"
    if prop.max_length is not None and len(value) > prop.max_length:
        return f"value may only be {prop.max_length} characters long"
    if prop.enum and value not in prop.enum:
        return f"value '{value}' does not have a value in the enumeration '{', '.join(prop.enum)}'"
    return None


def _check_bounds(prop: Prop, value: str) -> str | None:
    if prop.minimum is not None and float(value) < prop.minimum:
        return f"value must have a minimum value of {_bound(prop.minimum)}"
    if prop.maximum is not None and float(value) > prop.maximum:
        return f"value must have a maximum value of {_bound(prop.maximum)}"
    return None


def _bound(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _check_type(prop: Prop, value: str) -> str | None:
    matches = {
        "string": True,
        "integer": bool(_INTEGER.fullmatch(value)),
        "number": bool(_NUMBER.fullmatch(value)),
        "boolean": value in ("0", "1"),
    }[prop.type]
    return None if matches else f"type check ('{prop.type}') failed - got '{value}'"


def check_params(schema: Schema, params: Mapping[str, str], path: str = "", unmet: str = "") -> dict[str, str]:
    """All faults of ``params``, by name (prefixed with ``path.`` inside a property string).

    ``unmet``: what is said of a parameter that another one requires, which stands in the braces.
    """

    def name(key: str) -> str:
        return f"{path}.{key}" if path else key

    faults: dict[str, str] = {}
    for key, value in params.items():
        prop = schema.get(key)
        if prop is None:
            faults[name(key)] = UNKNOWN
            continue
        fault = check_value(name(key), prop, value)
        if fault is not None:
            faults[name(key)] = fault
        elif prop.requires is not None and prop.requires not in params:
            faults[name(prop.requires)] = unmet.format(name(key))
    for key, prop in schema.items():
        if prop.required and key not in params:
            faults[name(key)] = MISSING
    return faults


def validate(schema: Schema, params: Mapping[str, str], unmet: str) -> None:
    """Raise the 400 of facts proxmox 0 when any parameter is at fault."""
    faults = check_params(schema, params, unmet=unmet)
    if faults:
        raise bad_params(faults)


# --- property strings -------------------------------------------------------------------------------------------------

_KEY_VALUE = re.compile(r"([^=]+)=(.+)")


def parse_property_string(fmt: PropertyFormat, text: str, path: str = "") -> Params:
    """Parse and validate; raises FormatError. Keys come back in the order written."""
    found: Params = {}
    for part in text.split(","):
        if not part.strip():
            continue
        match = _KEY_VALUE.fullmatch(part)
        if match:
            key, value = match.group(1), match.group(2)
        elif "=" in part:
            raise FormatError("missing key in comma-separated list property\n")
        elif fmt.default_key is not None:
            key, value = fmt.default_key, part
        else:
            raise FormatError("value without key, but schema does not define a default key\n")
        if key in found:
            raise FormatError(f"duplicate key in comma-separated list property: {key}\n")
        prop = fmt.keys.get(key)
        found[key] = _perl_boolean(value) if prop is not None and prop.type == "boolean" else value
    faults = check_params(fmt.keys, found, path)
    if faults:
        raise FormatError("format error\n" + "".join(f"{key}: {fault}\n" for key, fault in sorted(faults.items())))
    return found


def _perl_boolean(value: str) -> str:
    if value.lower() in ("1", "on", "yes", "true"):
        return "1"
    if value.lower() in ("0", "off", "no", "false"):
        return "0"
    return value


def print_property_string(fmt: PropertyFormat, values: Mapping[str, str]) -> str:
    """The normal form: default key bare, then required keys, then the rest, each group by name (facts proxmox 2.3)."""
    parts: list[str] = []
    if fmt.default_key is not None and fmt.default_key in values:
        parts.append(values[fmt.default_key])
    rest = sorted(key for key in values if key != fmt.default_key)
    required = [key for key in rest if fmt.keys[key].required]
    optional = [key for key in rest if not fmt.keys[key].required]
    parts.extend(f"{key}={values[key]}" for key in required + optional)
    return ",".join(parts)


# --- sizes ------------------------------------------------------------------------------------------------------------

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of ``8G``, ``1536M``, ``1024``; ValueError otherwise."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"value does not look like a valid disk size: {text}")
    return int(float(match.group(1)) * _UNITS[match.group(2) or ""])


def format_size(size: int) -> str:
    """The largest unit that is exact: ``20G``, ``1T``, ``1536M``, and ``0T`` (PVE::JSONSchema::format_size)."""
    for unit in ("T", "G", "M", "K"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


# --- formats ----------------------------------------------------------------------------------------------------------

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DNS_NAME = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_MAC = re.compile(r"[0-9a-fA-F][02468aceACE](?::[0-9a-fA-F]{2}){5}")
_VOLUME_ID = re.compile(r"([a-z][a-z0-9_.-]*[a-z0-9]):(.+)", re.IGNORECASE)
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*")


def split_list(text: str) -> list[str]:
    """Proxmox's list parameters: separated by NUL where there is one, else by comma, semicolon or white space."""
    return [part for part in (text.split("\0") if "\0" in text else re.split(r"[\s,;]+", text)) if part]


def dns_name(value: str) -> None:
    if not _DNS_NAME.fullmatch(value):
        raise ValueError("value does not look like a valid DNS name")


def dns_name_list(value: str) -> None:
    for part in split_list(value):
        dns_name(part)


_INTERFACE = r"[a-zA-Z][a-zA-Z0-9_]{1,20}(?:[:.]\d+)?"


def ip_address(value: str) -> None:
    if not (_is_address(value, 4) or _is_address(value, 6)):
        raise ValueError("value does not look like a valid IP address")


def name_servers(value: str) -> None:
    """Addresses; a link-local one may name its interface (PVE::LXC::Config, verify_ip_with_ll_iface)."""
    for part in split_list(value):
        address, zone, interface = part.partition("%")
        with_interface = zone and address.startswith("fe80:") and re.fullmatch(_INTERFACE, interface)
        ip_address(address if with_interface else part)


def vmid(value: str) -> None:
    if not re.fullmatch(r"[1-9][0-9]{2,8}", value):
        raise ValueError("value does not look like a valid VM ID")


def vmid_list(value: str) -> None:
    for part in split_list(value):
        vmid(part)


def node_name(value: str) -> None:
    if not re.fullmatch(_LABEL, value):
        raise ValueError("value does not look like a valid node name")


def storage_id(value: str) -> None:
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.-]*[a-zA-Z0-9]", value):
        raise ValueError(f"storage ID '{value}' contains illegal characters")


def pool_id(value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+){0,2}", value):
        raise ValueError(f"pool name '{value}' contains invalid characters")


_CONTENT_TYPES = frozenset(("images", "rootdir", "vztmpl", "iso", "backup", "none", "snippets", "import"))


def content_list(value: str) -> None:
    for part in split_list(value):
        if part not in _CONTENT_TYPES:
            raise ValueError(f"invalid content type '{part}'")


def config_id(value: str) -> None:
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]+", value):
        raise ValueError(f"invalid configuration ID '{value}'")


def config_id_list(value: str) -> None:
    for part in split_list(value):
        config_id(part)


def tag_list(value: str) -> None:
    for part in split_list(value):
        if not _TAG.fullmatch(part):
            raise ValueError("invalid characters in tag")


def mount_path(value: str) -> None:
    if re.search(r"/\.\.?/", value) or re.search(r"/\.\.?$", value) or re.match(r"\.\./", value):
        raise ValueError(f"{value} contains illegal character sequences")


def mac_address(value: str) -> None:
    if not _MAC.fullmatch(value):
        raise ValueError("value does not look like a valid unicast MAC address")


def disk_size(value: str) -> None:
    parse_size(value)


def volume_id(value: str) -> None:
    if not _VOLUME_ID.fullmatch(value):
        raise ValueError("unable to parse volume ID '" + value + "'")


def _is_address(value: str, version: int) -> bool:
    try:
        # Python takes a zone (fe80::1%eth0), Proxmox does not.
        return "%" not in value and ipaddress.ip_address(value).version == version
    except ValueError:
        return False


def _is_cidr(value: str, version: int) -> bool:
    """An address and the length of a prefix, 8 or more; no mask (PVE::JSONSchema, pve_verify_cidrv4 and v6)."""
    address, separator, bits = value.partition("/")
    longest = 32 if version == 4 else 128
    return bool(separator) and _is_address(address, version) and bits.isdecimal() and 8 <= int(bits) <= longest


def ipv4(value: str) -> None:
    if not _is_address(value, 4):
        raise ValueError("value does not look like a valid IPv4 address")


def ipv6(value: str) -> None:
    if not _is_address(value, 6):
        raise ValueError("value does not look like a valid IPv6 address")


def ipv4_config(value: str) -> None:
    if value not in ("dhcp", "manual") and not _is_cidr(value, 4):
        raise ValueError("value does not look like a valid ipv4 network configuration")


def ipv6_config(value: str) -> None:
    if value not in ("auto", "dhcp", "manual") and not _is_cidr(value, 6):
        raise ValueError("value does not look like a valid ipv6 network configuration")


def device_path(value: str) -> None:
    if not value.startswith("/dev/") or re.search(r"/\.\.?(?:/|$)", value):
        raise ValueError(f"{value} is not a valid device path")


def startup_order(value: str) -> None:
    """Perl takes an empty text and "0" for nothing (PVE::JSONSchema, pve_parse_startup_order)."""
    parts = [part for part in value.split(",") if part.strip()]
    if value in ("", "0") or not all(re.fullmatch(r"(?:order=)?\d+|(?:up|down)=\d+", part) for part in parts):
        raise ValueError("unable to parse startup options")


_ZONES = Path("/usr/share/zoneinfo/zone.tab")


def time_zone(value: str) -> None:
    """One of the node's list (PVE::JSONSchema, pve_verify_timezone); any where this machine has no such list."""
    lines = _ZONES.read_text().splitlines() if _ZONES.exists() else []
    zones = {line.split("\t")[2] for line in lines if not line.lstrip().startswith("#")}
    if value not in ("host", "UTC") and zones and value not in zones:
        raise ValueError(f"invalid time zone '{value}'")


_USER = r"[^\s:/@!]+@[A-Za-z][A-Za-z0-9.\-_]+"


def user_id(value: str) -> None:
    if not re.fullmatch(_USER, value):
        raise ValueError(f"value '{value}' does not look like a valid user name")


def token_id_list(value: str) -> None:
    for part in split_list(value):
        if not re.fullmatch(rf"{_USER}![A-Za-z][A-Za-z0-9.\-_]+", part):
            raise ValueError(f"value '{part}' does not look like a valid token ID")


# --- guests -----------------------------------------------------------------------------------------------------------

MAX_MOUNT_POINTS = 256
MAX_NETWORKS = 32
MAX_DEVICES = 256

FEATURES = PropertyFormat(
    {
        "force_rw_sys": Prop("boolean"),
        "fuse": Prop("boolean"),
        "keyctl": Prop("boolean"),
        "mknod": Prop("boolean"),
        "mount": Prop(pattern=r"[a-zA-Z0-9_; ]+"),
        "nesting": Prop("boolean"),
    }
)

_PLAIN = r"[^\x00-\x08\x0a-\x1f\x7f]"
_MOUNT_OPTION = "(?:discard|lazytime|noatime|nodev|noexec|nosuid)"
_ID_MAP = "[ug]:[0-9]+:[0-9]+:[1-9][0-9]*"

_ROOTFS_KEYS = {
    "volume": Prop(required=True, format=mount_path),
    "size": Prop(format=disk_size),
    "acl": Prop("boolean"),
    "mountoptions": Prop(pattern=f"{_MOUNT_OPTION}(?:;{_MOUNT_OPTION})*"),
    "ro": Prop("boolean"),
    "quota": Prop("boolean"),
    "replicate": Prop("boolean"),
    "shared": Prop("boolean"),
    "idmap": Prop(pattern=f"passthrough|{_ID_MAP}(?:;{_ID_MAP})*"),
}
ROOTFS = PropertyFormat(_ROOTFS_KEYS, default_key="volume")
MOUNT_POINT = PropertyFormat(
    {
        **_ROOTFS_KEYS,
        "mp": Prop(required=True, format=mount_path),
        "backup": Prop("boolean"),
        "keepattrs": Prop("boolean"),
    },
    default_key="volume",
)
NETWORK = PropertyFormat(
    {
        "name": Prop(required=True, pattern=r"[-_.\w\d]+"),
        "type": Prop(enum=("veth",)),
        "bridge": Prop(pattern=r"[-_.\w\d]+"),
        "hwaddr": Prop(format=mac_address),
        "mtu": Prop("integer", minimum=64, maximum=65535),
        "ip": Prop(format=ipv4_config),
        "gw": Prop(format=ipv4),
        "ip6": Prop(format=ipv6_config),
        "gw6": Prop(format=ipv6),
        "firewall": Prop("boolean"),
        "tag": Prop("integer", minimum=1, maximum=4094),
        "trunks": Prop(pattern=r"\d+(?:;\d+)*"),
        "rate": Prop("number"),
        "link_down": Prop("boolean"),
        "host-managed": Prop("boolean"),
    }
)
DEVICE = PropertyFormat(
    {
        "path": Prop(format=device_path),
        "mode": Prop(pattern=r"0[0-7]{3}"),
        "uid": Prop("integer", minimum=0),
        "gid": Prop("integer", minimum=0),
        "deny-write": Prop("boolean"),
    },
    default_key="path",
)
UNUSED = PropertyFormat({"volume": Prop(required=True, format=volume_id)}, default_key="volume")

OS_TYPES = ("debian", "devuan", "ubuntu", "centos", "fedora", "opensuse", "archlinux", "alpine", "gentoo", "nixos")
LOCKS = (
    *("backup", "create", "destroyed", "disk", "fstrim", "migrate"),
    *("mounted", "rollback", "snapshot", "snapshot-delete"),
)

GUEST_OPTIONS: dict[str, Prop] = {
    "arch": Prop(enum=("amd64", "i386", "arm64", "armhf", "riscv32", "riscv64")),
    "cmode": Prop(enum=("shell", "console", "tty")),
    "console": Prop("boolean"),
    "cores": Prop("integer", minimum=1, maximum=8192),
    "cpulimit": Prop("number", minimum=0, maximum=8192),
    "cpuunits": Prop("integer", minimum=0, maximum=500000),
    "debug": Prop("boolean"),
    "description": Prop(max_length=8192),
    "entrypoint": Prop(pattern=_PLAIN + "+"),
    "env": Prop(pattern=rf"\w+={_PLAIN}*(?:\0\w+={_PLAIN}*)*"),
    "features": Prop(format=FEATURES),
    "hookscript": Prop(format=volume_id),
    "hostname": Prop(format=dns_name, max_length=255),
    "lock": Prop(enum=LOCKS),
    "memory": Prop("integer", minimum=16),
    "nameserver": Prop(format=name_servers),
    "onboot": Prop("boolean"),
    "ostype": Prop(enum=(*OS_TYPES, "unmanaged")),
    "protection": Prop("boolean"),
    "rootfs": Prop(format=ROOTFS),
    "searchdomain": Prop(format=dns_name_list),
    "startup": Prop(format=startup_order),
    "swap": Prop("integer", minimum=0),
    "tags": Prop(format=tag_list),
    "template": Prop("boolean"),
    "timezone": Prop(format=time_zone),
    "tty": Prop("integer", minimum=0, maximum=6),
    "unprivileged": Prop("boolean"),
    **{f"net{n}": Prop(format=NETWORK) for n in range(MAX_NETWORKS)},
    **{f"mp{n}": Prop(format=MOUNT_POINT) for n in range(MAX_MOUNT_POINTS)},
    **{f"unused{n}": Prop(format=UNUSED) for n in range(MAX_MOUNT_POINTS)},
    **{f"dev{n}": Prop(format=DEVICE) for n in range(MAX_DEVICES)},
}
"""Every option of a container that the API can set; ``parent`` and ``snaptime`` are internal."""

INTEGER_OPTIONS = frozenset(
    {key for key, prop in GUEST_OPTIONS.items() if prop.type in ("integer", "boolean")} | {"snaptime"}
)
"""What GET config shows as JSON numbers; ``cpulimit`` stays a string (facts proxmox 12)."""
