"""A stack's settings: read once, typed, every fault reported at once.

Nothing here talks to Pulumi's engine or to Proxmox, so every rule is a table test. `read_stack` is the door.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from applications import NAMES, Group, declared
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.errors import Fault, Faults
from settings.cattle import CattleSettings
from settings.connection import ConnectionSettings, NodeSshSettings
from settings.image import ImageSettings
from settings.network import NetworkSettings
from settings.pet import PetSettings
from settings.section import (
    HIDDEN,
    UNREAD,
    Reading,
    Section,
    broken_rules,
    is_secret,
    is_tree,
    own_settings,
    read_section,
)
from settings.stack import CattleStack, PetStack, Role, Stack, role_of

KEY_FILE_VARIABLE = "HERMES_SSH_KEY_FILE"
CONFIG_FILE_VARIABLE = "PULUMI_OPTION_CONFIG_FILE"
PLACEHOLDER = "placeholder-of-a-secret-0000000000000000"
"""What stands for a secret where settings are read without their secrets."""


def stack_file(stack: str, environment: Mapping[str, str], project: Path) -> Path:
    """The file of a stack's settings, as the CLI finds it. `project`: the project's folder. Of --config-file only the
    CLI knows.
    """
    return Path(environment.get(CONFIG_FILE_VARIABLE) or project / f"Pulumi.{stack}.yaml")


class UnusableSettings(Faults):
    """`stack`: the settings as far as they can be read. One that can't raises NotRead where it is asked for."""

    def __init__(self, faults: Sequence[Fault], what: str, stack: Stack) -> None:
        super().__init__(faults, what)
        self.stack = stack


# --- which settings there are -------------------------------------------------------------------

OWN_GROUPS = (
    Group("The Proxmox", (ConnectionSettings, Stack)),
    Group("The pet", (PetSettings,)),
    Group("The cattle", (CattleStack, CattleSettings, NetworkSettings, NodeSshSettings)),
    Group(
        "The golden template",
        (ImageSettings,),
        "What `pulumi up` of an image stack makes: [A golden template](operations.md#a-golden-template). Of the "
        "cattle's and the agent's settings it reads those that are built in; the container in which it is built has "
        "the cattle's network card, cores and memory.",
    ),
)
OWN_SECTIONS = frozenset(section for group in OWN_GROUPS for section in group.sections)
GROUPS = (*OWN_GROUPS, *(group for name in NAMES for group in declared(name).groups))
"""Every section, in the order of the documents."""
SECTIONS: dict[str, type[Section]] = {
    key: section for group in GROUPS for section in group.sections for key in own_settings(section)
}
"""Which section a setting belongs to, by its key."""
OF_APPLICATIONS = frozenset(key for key, section in SECTIONS.items() if section not in OWN_SECTIONS)
"""The settings of applications."""
SETTINGS: dict[str, FieldInfo] = {key: own_settings(section)[key] for key, section in SECTIONS.items()}
"""Every setting by its key."""
SECRETS = frozenset(key for key, found in SETTINGS.items() if is_secret(found))
"""What must be stored with --secret."""
TREES = frozenset(key for key, found in SETTINGS.items() if key not in SECRETS and is_tree(found))
"""What reaches the preview and the state in clear, with whatever is in it: a secret among it would, too."""


# --- reading ------------------------------------------------------------------------------------


def usable_settings(given: Mapping[str, Any], project: str) -> dict[str, Any]:
    """A stack file's keys without the project's name and without secrets.

    A secret object keeps its names with PLACEHOLDER as values, because other keys refer to them (`key_env`, `${NAME}`).
    """
    found: dict[str, Any] = {}
    for full, value in given.items():
        # The CLI takes a key without a namespace as the project's.
        namespace, _, key = full.partition(":") if ":" in full else (project, "", full)
        if namespace != project:
            continue
        if key not in SECRETS:
            found[key] = value
        elif isinstance(value, dict) and value.keys() != {"secure"}:
            found[key] = dict.fromkeys(value, PLACEHOLDER)
    return found


def read_stack(
    stack: str,
    config: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    in_clear: frozenset[str] = frozenset(),
    with_secrets: frozenset[str] = frozenset(),
    remedy: str = "",
) -> PetStack | CattleStack:
    """Read a stack's settings; a cattle with an application is an `ApplicationStack`.

    `config` holds the project's keys without its name, as texts of Pulumi's or as YAML has them; what is not in it has
    its default. `in_clear`: the keys that are stored unencrypted, for a part of an object with its path
    (agentSecretEnvironment.NAME); `with_secrets`: the keys that hold something stored encrypted. `remedy`: for what has
    none of its own; empty: the stack's file.

    Raises UnusableSettings with every fault that there is.
    """
    config = {key: _text(value) for key, value in config.items() if value is not None}
    reading = Reading(remedy or f"correct it in Pulumi.{stack}.yaml; docs/options.md describes the key")
    reading.faults += [*_unknown_keys(config), *_in_clear(config, in_clear, stack), *_encrypted_trees(with_secrets)]
    if environment.get(KEY_FILE_VARIABLE):
        config["sshPrivateKeyFile"] = environment[KEY_FILE_VARIABLE]
    given: dict[str, Any] = {"name": stack, "connection": UNREAD}
    try:
        sources = {key: config.get(key, _text(SETTINGS[key].default)) for key in ENVIRONMENT}
        given["connection"] = Connection.from_sources(environment, sources)
    except Faults as error:
        reading.faults += error.faults
    model: type[Stack] = Stack
    role = role_of(stack, config.get("role"))
    if role is None:
        given_role = config.pop("role", "")
        reading.faults.append(
            Fault(
                "role",
                given_role or f"(empty, and the stack is called {stack})",
                "must be pet, cattle or image, or the stack be called so, or pet-NAME, cattle-NAME or image-NAME",
                f"pulumi config set --stack {stack} role cattle",
            )
        )
    elif role is Role.PET:
        model = PetStack
    elif (name := config.get("application", SETTINGS["application"].default)) not in NAMES:
        # None, or one that is not there, which is a fault of its own.
        model = CattleStack
    else:
        model, chosen = declared(name).model(config)
        given |= chosen
        if role is Role.IMAGE:
            # The engine hands over the project's default, an empty text, where a stack sets nothing.
            config |= {key: value for key, value in declared(name).not_in_images.items() if not config.get(key)}
    found = read_section(model, config, reading, **given)
    reading.faults += broken_rules(found)
    if reading.faults or not isinstance(found, PetStack | CattleStack):
        raise UnusableSettings(reading.faults, f"The settings of stack {stack} can't be used", found)
    return found


def _text(value: Any) -> Any:
    """A scalar as Pulumi hands it over."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _in_clear(config: Mapping[str, Any], in_clear: frozenset[str], stack: str) -> Iterator[Fault]:
    """Secrets, or parts of them, that are stored unencrypted."""
    found = [key for key in sorted(in_clear) if key in SECRETS and config.get(key) not in (None, "", "{}", {})]
    found += [path for path in sorted(in_clear) if path.partition(".")[0] in SECRETS and "." in path]
    for key in found:
        # Its parts are reported one by one.
        if not any(other.startswith(f"{key}.") for other in found):
            remedy = f"pulumi config set --stack {stack} --secret {'--path ' if '.' in key else ''}{key}"
            yield Fault(key, HIDDEN, "a secret must not be stored in clear", remedy)


def _encrypted_trees(with_secrets: frozenset[str]) -> Iterator[Fault]:
    for key in sorted(TREES & with_secrets):
        yield Fault(
            key,
            HIDDEN,
            "is shown in the preview and stored in clear, so it can't hold a secret",
            SECTIONS[key].for_secrets,
        )


def nearest_setting(key: str) -> str | None:
    """The setting that a misspelt key most likely means. One with the same letters comes first: two were swapped."""
    letters = sorted(key.lower())
    same = [name for name in SETTINGS if sorted(name.lower()) == letters]
    return next(iter(same or difflib.get_close_matches(key, SETTINGS, n=1)), None)


def _unknown_keys(config: Mapping[str, Any]) -> Iterator[Fault]:
    for key in sorted(set(config) - set(SETTINGS)):
        near = nearest_setting(key)
        remedy = f"did you mean {near}?" if near else "docs/options.md lists every key"
        yield Fault(key, str(config[key]), "is not a key of this project", remedy)
