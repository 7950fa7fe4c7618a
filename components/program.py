"""What a stack does, in order: read the settings, check the surroundings, declare the resources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
import yaml
from pulumi.runtime.config import CONFIG, is_config_secret

from components.plugins import start_ahead
from components.state import OwnState, read_outputs, read_own_state, why_unreadable
from proxmox.errors import Fault, Faults, ProxmoxError
from proxmox.neighbours import AskedAhead, answer_of
from proxmox.planning import AttachSpec
from settings.read import SECRETS, SETTINGS, UnusableSettings, read_stack, stack_file
from settings.section import NotRead
from settings.shared import completed, correct_in, full, shared_config
from settings.stack import ApplicationStack, CattleStack, PetStack, Stack

if TYPE_CHECKING:
    from components.cattle import Cattle
    from components.network import NetworkPlan
    from components.node_shell import NodeSpec
    from components.pet import PetStorage
    from proxmox.planning import VolumeSpec

ROOT = Path(__file__).resolve().parents[1]


def run() -> dict[str, pulumi.Input[Any]]:
    """Declare the stack's resources and answer its outputs.

    Raises errors written for people before anything is declared: Faults of settings and surroundings.
    """
    try:
        stack = read_settings()
    except UnusableSettings as wrong:
        raise with_surroundings(wrong, _survey) from None
    if isinstance(stack, PetStack):
        return _pet(stack)
    if not stack.makes_image:
        return _cattle(stack)
    if isinstance(stack, ApplicationStack):
        return _image(stack)
    rule = "a golden template is made of an application, and this stack has none"
    remedy = "take it out, and agentMode none as well"
    raise Faults([Fault("application", stack.application, rule, remedy)], what=_cant(stack))


def with_surroundings(wrong: UnusableSettings, survey: Callable[[Stack], object]) -> Faults:
    """All that is wrong with a stack whose settings can't be used: with its surroundings, too.

    ``survey``: checks these, and declares nothing. It ends where it needs a setting that can't be read.
    """
    around: Sequence[Fault] = ()
    try:
        survey(wrong.stack)
    except NotRead:
        pass
    except Faults as error:
        around = error.faults
    except ProxmoxError as error:
        around = [Fault(error.what, "", error.why, error.remedy)]
    return Faults([*wrong.faults, *around], what=f"Stack {wrong.stack.name} can't be brought up") if around else wrong


def _survey(stack: Stack) -> None:
    if isinstance(stack, PetStack):
        survey_pet(stack, read_own_state(stack.claim))
    elif isinstance(stack, CattleStack) and not stack.makes_image:
        owner, volid, found = _volume_for(stack)
        survey_cattle(stack, read_own_state(stack.claim), owner=owner, volid=volid, found=found)
    elif isinstance(stack, ApplicationStack):
        survey_image(stack)


def read_settings() -> PetStack | CattleStack:
    """The settings of the stack that the engine runs."""
    project = pulumi.get_project()
    config = pulumi.Config()
    stack = pulumi.get_stack()
    given = {key.removeprefix(f"{project}:") for key in CONFIG.get() if key.startswith(f"{project}:")}
    secret = frozenset(key for key in given if is_config_secret(f"{project}:{key}"))
    file = stack_file(stack, os.environ, ROOT)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    in_file = {key.removeprefix(f"{project}:") for key in _config_in(text, project)}
    shared = shared_config(file, project)
    return read_stack(
        stack,
        completed({key: config.get(key) for key in SETTINGS.keys() | given}, in_file, shared, project),
        os.environ,
        in_clear=frozenset(given - secret) | parts_in_clear(text, project),
        with_secrets=secret,
        remedy=correct_in(stack) if shared else "",
    )


def _config_in(stack_file: str, project: str) -> dict[str, Any]:
    """The settings in the text of a stack's file, by their full keys."""
    config = (yaml.safe_load(stack_file) or {}).get("config") or {}
    return {full(key, project): value for key, value in config.items()}


def parts_in_clear(stack_file: str, project: str) -> frozenset[str]:
    """The parts of secret objects that a stack's file holds unencrypted, as KEY.PART.

    The engine tells of an object only whether there is any secret in it, so its own file is asked (tried with 3.276).
    """
    config = _config_in(stack_file, project)
    found: set[str] = set()
    for key in SECRETS:
        value = config.get(f"{project}:{key}")
        if isinstance(value, dict) and value.keys() != {"secure"}:
            found |= {
                f"{key}.{name}" for name, part in value.items() if not (isinstance(part, dict) and "secure" in part)
            }
    return frozenset(found)


def _pet(stack: PetStack) -> dict[str, pulumi.Input[Any]]:
    pet = declare_pet("pet", stack, read_own_state(stack.claim), reached=start_ahead)
    return {"vmid": pet.vmid, "node": pet.node, "volumes": pet.volumes}


def declare_pet(
    name: str, stack: PetStack, state: OwnState, *, reached: Callable[[], object] = tuple, **more: Any
) -> PetStorage:
    """Check a pet's surroundings, then declare it.

    ``reached``: called once the node has answered, with much still to be asked; ``more``: as the component takes it.
    """
    from components.pet import PetStorage  # noqa: PLC0415 - a stack imports what it needs, see facts pulumi "Cost"

    stack, volumes, network, warnings = survey_pet(stack, state, reached)
    _warn(warnings)
    return PetStorage(name, stack, volumes, there=network.there, **more)


def survey_pet(
    stack: PetStack, state: OwnState, reached: Callable[[], object] = tuple
) -> tuple[PetStack, tuple[VolumeSpec, ...], NetworkPlan, list[str]]:
    """Check a pet's surroundings. Answers what is declared of it, and what has to be known before. Raises Faults."""
    from components.preflight import chosen_template, judge_pet, pet_check, pet_place_faults  # noqa: PLC0415

    # Before all else: what is said of another guest would only confuse.
    _refuse(stack, pet_place_faults(stack, state))
    stack = stack.model_copy(update={"template": chosen_template(stack, state)})
    check = pet_check(stack, state)
    faults, warnings, network = judge_pet(stack, check, state, reached)
    _refuse(stack, faults)
    return stack, check.volumes, network, [*warnings, *network.warnings(stack.pet.vmid)]


def _image(stack: ApplicationStack) -> dict[str, pulumi.Input[Any]]:
    from components.image import GoldenTemplate  # noqa: PLC0415

    stack, keys, warnings = survey_image(stack, start_ahead)
    _warn(warnings)
    return GoldenTemplate("image", stack, keys).exports


def survey_image(
    stack: ApplicationStack, reached: Callable[[], object] = tuple
) -> tuple[ApplicationStack, list[str], list[str]]:
    """Check an image stack's surroundings. Answers it with its template, the keys that may log in, and what has to be
    known before. Raises Faults.
    """
    from components.image import build_stack  # noqa: PLC0415
    from components.preflight import cattle_check, chosen_template, image_number, judge_cattle, public_keys  # noqa: PLC0415

    state = read_own_state(stack.claim)
    stack = stack.model_copy(update={"template": chosen_template(stack, state)})
    keys, key_faults = public_keys(stack, state)
    _refuse(stack, key_faults)
    # Where a template is built is a container like a cattle's, under the number that it will have.
    vmid = image_number(stack, state)
    build = build_stack(stack)
    build = build.model_copy(update={"cattle": build.cattle.model_copy(update={"vmid": vmid})})
    check = cattle_check(build, state, owner=None, volid=None, keys=keys)
    faults, warnings, _, network = judge_cattle(build, check, state, reached)
    _refuse(stack, [replace(fault, key=fault.key.replace("cattleVmid", "imageVmid")) for fault in faults])
    return stack, keys, [*warnings, *network.warnings(vmid)]


def _cattle(stack: CattleStack) -> dict[str, pulumi.Input[Any]]:
    owner, volid, found = _volume_for(stack)
    state = read_own_state(stack.claim)
    return declare_cattle("cattle", stack, state, owner=owner, volid=volid, found=found, reached=start_ahead).exports


def _volume_for(stack: CattleStack) -> tuple[int | None, str | None, Faults | None]:
    """Owner and volid of a cattle's volume, None for both without one; and what is wrong with it, or with its pet."""
    if not stack.cattle.volume:
        return None, None, None
    try:
        pet = pet_outputs(stack)
        return int(pet["vmid"]), _volume_of(pet, stack)["volid"], None
    except Faults as faults:
        return None, None, faults


def declare_cattle(
    name: str,
    stack: CattleStack,
    state: OwnState,
    *,
    owner: int | None,
    volid: str | None,
    later: pulumi.Output[str] | None = None,
    found: Faults | None = None,
    reached: Callable[[], object] = tuple,
    **more: Any,
) -> Cattle:
    """Check a cattle's surroundings, then declare it.

    ``later``: the volume, where it is yet to be made, and nothing is known of it; ``found``: what is wrong with the
    volume, to be told with all else that is; ``reached``, ``more``: as with `declare_pet`.
    """
    # Nobody answers there, as it should be, and that takes a second to know.
    answer = AskedAhead(None if state.vmid else stack.cattle.network.static_ip)
    from components.cattle import Cattle  # noqa: PLC0415

    surveyed = survey_cattle(stack, state, owner=owner, volid=volid, found=found, reached=reached, answer=answer)
    _warn(surveyed.warnings)
    attach = surveyed.attach
    if later is not None:
        attach = AttachSpec(
            stack.cattle.vmid, stack.connection.node, "", stack.cattle.mount_path, owner=0, recorded=state.volid
        )
    return Cattle(
        name,
        surveyed.stack,
        attach=attach,
        volid=later,
        host=surveyed.host,
        ssh_public_keys=surveyed.keys,
        phases=state.phases,
        network=surveyed.network,
        golden=surveyed.golden,
        **more,
    )


@dataclass(frozen=True)
class Surveyed:
    """What is declared of a cattle whose surroundings were checked; ``warnings``: what has to be known before."""

    stack: CattleStack
    keys: list[str]
    attach: AttachSpec | None
    host: NodeSpec | None
    golden: int | None
    network: NetworkPlan
    warnings: list[str]


def survey_cattle(
    stack: CattleStack,
    state: OwnState,
    *,
    owner: int | None,
    volid: str | None,
    found: Faults | None = None,
    reached: Callable[[], object] = tuple,
    answer: Callable[[str], str | None] = answer_of,
) -> Surveyed:
    """Check a cattle's surroundings. Raises Faults. ``found``, ``reached``: as with `declare_cattle`; ``answer``: as
    with `preflight_cattle`.
    """
    from components.preflight import (  # noqa: PLC0415
        cattle_check,
        chosen_template,
        home_faults,
        host_spec,
        judge_cattle,
        number_faults,
        public_keys,
        warnings_of,
    )

    stack = stack.model_copy(update={"template": chosen_template(stack, state)})
    keys, key_faults = public_keys(stack, state)
    host = host_spec(stack, state)
    golden, golden_faults = golden_template(stack, state, keys)
    check = cattle_check(stack, state, owner=owner, volid=volid, host=host, keys=keys, golden=golden)
    _refuse(stack, number_faults("cattleVmid", stack.cattle.vmid, state))
    faults, warnings, folders, network = judge_cattle(stack, check, state, reached, answer)
    vmid = stack.cattle.vmid
    lost = network.faults(vmid, stack.connection.node)
    faults = [*key_faults, *golden_faults, *home_faults(stack, keys, state), *faults, *lost]
    if found is not None and not faults:
        raise found
    _refuse(stack, [*(found.faults if found is not None else ()), *faults])
    return Surveyed(
        stack,
        keys,
        check.attach,
        None if host is None else replace(host, folders=tuple(folders)),
        golden,
        network,
        [*warnings, *warnings_of(check, stack.cattle, state), *network.warnings(vmid)],
    )


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        pulumi.log.warn(warning)


def _refuse(stack: Stack, faults: list[Fault]) -> None:
    if faults:
        raise Faults(faults, what=_cant(stack))


def _cant(stack: Stack) -> str:
    return f"Stack {stack.name} can't be brought up on {stack.connection.endpoint}"


def pet_outputs(stack: CattleStack) -> Mapping[str, Any]:
    """The outputs of the pet stack, known before anything is declared.

    Read, and not declared as a StackReference: each run refreshes what is in the state first, so a reference to a pet
    that was renamed or removed would end every command in the engine's words, ``destroy`` included.
    Raises Faults when the stack, or an output of it, is not there.
    """
    name = stack.cattle.pet_stack
    try:
        outputs = read_outputs(name)
    except Exception as error:
        why = why_unreadable(error)
        if why == "unknown":
            gone = Fault(
                "petStack",
                name,
                "there is no stack of that name, or it has never been up",
                f"pulumi up --stack {name}; or, where the pet's stack was renamed, set petStack to the new name "
                "(pulumi stack ls lists them): nothing else changes by it",
            )
            raise Faults([gone], what=f"Stack {stack.name} needs a pet") from None
        if why == "sealed":
            same = Fault(
                "petStack",
                name,
                "both stacks must share one passphrase or secrets provider (pulumi#5151)",
                f"pulumi stack change-secrets-provider passphrase --stack {name}",
            )
            raise Faults([same], what=f"Stack {stack.name} can't read the outputs of its pet") from None
        raise
    if not {"vmid", "node", "volumes"} <= set(outputs):
        rule = "the pet's stack has no outputs: it was never up, was destroyed, or is not a pet"
        first = Fault("petStack", name, rule, f"pulumi up --stack {name}, or name the stack of the pet")
        raise Faults([first], what=f"Stack {stack.name} needs a pet")
    return outputs


def golden_template(stack: CattleStack, state: OwnState, keys: Sequence[str]) -> tuple[int | None, list[Fault]]:
    """The number of the template that a new cattle is cloned from, None without one; and what is wrong with it.

    A cattle that is there goes on without its image stack: only one that is to be made needs it.
    """
    name = stack.cattle.golden_template
    if not name:
        return None, []
    try:
        outputs = read_outputs(name)
    except Exception as error:
        if not why_unreadable(error):
            raise
        outputs = {}
    if outputs.get("vmid") is None or "keys" not in outputs:
        rule = "must be an image stack that has been up, with the same passphrase or secrets provider"
        remedy = f"pulumi up --stack {name}; or leave the key out"
        return None, [] if state.vmid else [Fault("goldenTemplate", name, rule, remedy)]
    faults = []
    if outputs["node"] != stack.connection.node:
        rule = f"its templates are on node {outputs['node']}, and a clone is made on its template's node"
        faults.append(Fault("goldenTemplate", name, rule, "make an image stack for this node, or leave the key out"))
    let_in = {tuple(key.split()[:2]) for key in outputs["keys"]}
    if keys and tuple(keys[0].split()[:2]) not in let_in:
        rule = "its templates let in other keys only than that of sshPrivateKeyFile"
        remedy = f"set cattleSshKeys of stack {name} to the public half, then pulumi up there"
        faults.append(Fault("goldenTemplate", name, rule, remedy))
    return int(outputs["vmid"]), faults


def _volume_of(pet: Mapping[str, Any], stack: CattleStack) -> dict[str, Any]:
    volumes: dict[str, dict[str, Any]] = pet["volumes"]
    cattle = stack.cattle
    faults = []
    if cattle.volume not in volumes:
        listed = ", ".join(sorted(volumes)) or "none"
        faults.append(
            Fault(
                "cattleVolume",
                cattle.volume,
                f"must be a volume of stack {stack.cattle.pet_stack}, which has: {listed}",
                f"correct cattleVolume, or add it to petVolumes and: pulumi up --stack {stack.cattle.pet_stack}",
            )
        )
    _refuse(stack, faults)
    return volumes[cattle.volume]
