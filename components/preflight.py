"""What must be true around a stack before it changes anything: told all at once, in preview too."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from components.host_settings import host_mounts_of, node_ssh_of
from components.network import NetworkPlan, network_spec
from components.node_shell import NodeSpec, node_shell
from components.state import OwnState
from provisioning.errors import PrivateKeyError
from provisioning.ssh import HostKey, public_half
from proxmox.client import Proxmox
from proxmox.connection import ENVIRONMENT, check_plugin_trust
from proxmox.errors import Fault, NodeShellFailed, ProxmoxError, Subject
from proxmox.facts import read_cluster
from proxmox.golden import free_number, goldens
from proxmox.host_mounts import HostMountSpec, commands_to_paste, judge_folders, paste
from proxmox.hostshell import read_folders, require_node, with_ids
from proxmox.mountpoint import normal_path
from proxmox.neighbours import answer_of
from proxmox.network import NetworkSpec
from proxmox.nodes import prove_node
from proxmox.planning import AttachSpec, RemovalSpec, VolumeSpec
from proxmox.preflight import CattleCheck, GuestCheck, PetCheck, preflight_cattle, preflight_pet
from proxmox.templates import newest_on
from settings.cattle import CattleSettings
from settings.stack import CattleStack, PetStack, Stack
from settings.subjects import of_stack


def pet_check(stack: PetStack, state: OwnState) -> PetCheck:
    """What the pet wants of a Proxmox."""
    pet = stack.pet
    return PetCheck(
        guest=GuestCheck(
            vmid=pet.vmid,
            node=stack.connection.node,
            root_storage=pet.storage,
            root_gb=pet.disk,
            template=stack.template,
            claim=state.claim,
            ours=known_without_claim(state, pet.vmid),
        ),
        volumes=tuple(
            VolumeSpec(
                name=volume.name,
                vmid=pet.vmid,
                storage=volume.storage,
                size_gb=volume.size,
                path=volume.path,
                volid=volume.volid,
                recorded=state.volumes.get(volume.name),
            )
            for volume in pet.volumes
        ),
        deletions=tuple(RemovalSpec(pet.vmid, volid) for volid in pet.delete_volumes),
        made=state.complete and not pet.start_empty,
    )


def known_without_claim(state: OwnState, vmid: int) -> bool:
    """Whether the number alone says that the guest is ours: of one that was imported, or made before there were claims.

    Once there is a claim it decides alone, for the number may be another guest's by now.
    """
    return state.vmid == vmid and state.claim is None


def cattle_check(
    stack: CattleStack,
    state: OwnState,
    *,
    owner: int | None,
    volid: str | None,
    host: HostMountSpec | None = None,
    keys: Sequence[str] = (),
    golden: int | None = None,
) -> CattleCheck:
    """What the cattle wants of a Proxmox. ``owner`` and ``volid`` None: no volume; ``keys``: as of `public_keys`;
    ``golden``: the number of the template that it is cloned from.
    """
    node, cattle = stack.connection.node, stack.cattle
    return CattleCheck(
        guest=GuestCheck(
            vmid=cattle.vmid,
            node=node,
            root_storage=cattle.storage,
            root_gb=cattle.disk,
            template=stack.template,
            golden=golden,
            bridge=cattle.network.bridge,
            address=None if cattle.network.static_ip is None else cattle.network.address,
            address6=cattle.network.address6 if "/" in cattle.network.address6 else None,
            claim=state.claim,
            ours=known_without_claim(state, cattle.vmid),
            remade=bool(remaking(stack, keys, state)),
        ),
        attach=None
        if owner is None or volid is None
        else AttachSpec(
            vmid=cattle.vmid,
            node=node,
            volid=volid,
            path=cattle.mount_path,
            owner=owner,
            recorded=state.volid,
            takeover=cattle.take_over == volid,
        ),
        host=host,
        root_access=bool(stack.node_ssh.host_key),
        home=cattle.home_folder,
    )


def host_spec(stack: CattleStack, state: OwnState) -> NodeSpec | None:
    """What the cattle wants of root on the node; None when nothing."""
    if not stack.cattle.host_mounts and not stack.keyctl:
        return None
    kept = {"vmid": stack.cattle.vmid, "node": stack.connection.node, "recorded": state.placed}
    return replace(NodeSpec.from_props(kept), mounts=host_mounts_of(stack), keyctl=stack.keyctl, ssh=node_ssh_of(stack))


def image_number(stack: CattleStack, state: OwnState) -> int:
    """The number under which the next golden template is built, or of the newest one that is there.

    Raises a ProxmoxError where the API can't be asked.
    """
    with Proxmox(stack.connection) as client:
        ours = goldens(read_cluster(client), state.claim) if state.claim else ()
        finished = [one.vmid for one in ours if one.finished and one.node == stack.connection.node]
        return finished[0] if finished else free_number(client, stack.image.vmid)


def number_faults(key: str, vmid: int, state: OwnState) -> list[Fault]:
    """Another number than that of the guest that is there: to the engine a new guest, and the old one's end."""
    if state.vmid in (None, vmid):
        return []
    if key == "petVmid":
        rule = f"the pet is CT {state.vmid}, and its volumes go by its number: another one would be an empty pet"
        remedy = f"set it back to {state.vmid}; a second pet is a stack of its own, called pet-NAME"
    else:
        rule = f"the cattle of this stack is CT {state.vmid}: another number would destroy it and make another one"
        remedy = f"set it back to {state.vmid}, or pulumi destroy with that number, then pulumi up with the new one"
    return [Fault(key, str(vmid), rule, remedy)]


def _told(state: OwnState, *path: str) -> Any:
    """What the plugin last told of the container; None where it did not."""
    value: Any = state.container
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def pet_place_faults(stack: PetStack, state: OwnState) -> list[Fault]:
    """What would make the pet anew: the engine refuses that, too, and advises to take the protection away."""
    node, storage = _told(state, "nodeName"), _told(state, "disk", "datastoreId")
    pet = stack.pet
    faults = number_faults("petVmid", pet.vmid, state)
    if node and node != stack.connection.node:
        rule = f"the pet is on node {node}, with its volumes: on another one it would be an empty pet"
        remedy = f"set it back to {node}; or, where the pet was moved or its node renamed: scripts/adopt --moved"
        faults.append(Fault("node", stack.connection.node, rule, remedy))
    if storage and storage != pet.storage:
        rule = f"the pet's root file system is on {storage}, and a setting does not move it"
        remedy = f"set it back to {storage}; or on node {node}: pct move-volume {pet.vmid} rootfs {pet.storage}"
        faults.append(Fault("petStorage", pet.storage, rule, remedy))
    return faults


def home_faults(stack: CattleStack, keys: Sequence[str], state: OwnState) -> list[Fault]:
    """A home that would be hidden by a volume, left without one, or destroyed with its root file system."""
    if state.vmid is None or state.home is None:
        return []
    cattle = stack.cattle
    at_home = (mount["source"] for mount in state.placed or () if normal_path(mount["path"]) == cattle.mount_path)
    placed = next(at_home, None)
    now, wanted = _place(state.home == "volume", placed), _place(bool(cattle.volume), cattle.home_folder)
    if now != wanted:
        rule = f"the cattle that is there has its home on {now}; it would begin again with an empty one"
        remedy = "copy what you want to keep, pulumi destroy, then pulumi up with the new setting; or set it back"
        return [Fault("cattleHostMounts" if placed else "cattleVolume", cattle.volume, rule, remedy)]
    return _remaking(stack, keys, state) if cattle.home_on_root else []


def _place(volume: bool, folder: str | None) -> str:
    """In words, for there may be more than one folder to tell apart."""
    if volume:
        return "a volume of the pet's"
    return f"the node's folder {folder}" if folder else "its own root file system"


def _remaking(stack: CattleStack, keys: Sequence[str], state: OwnState) -> list[Fault]:
    """Settings that make the cattle anew, where that costs the home."""
    return [
        Fault(
            key,
            "" if key == "cattleSshKeys" else wanted,
            f"a change replaces CT {stack.cattle.vmid}, and its home, on its root file system, would be lost",
            "set it back; or copy what you want to keep, pulumi destroy, then pulumi up",
        )
        for key, wanted in remaking(stack, keys, state).items()
    ]


def remaking(stack: CattleStack, keys: Sequence[str], state: OwnState) -> dict[str, Any]:
    """Settings that the plugin can change by a new container only (field reports B6, B7), and differ; their values."""
    declared: dict[str, tuple[Any, Any]] = {
        "node": (_told(state, "nodeName"), stack.connection.node),
        "template": (_told(state, "operatingSystem", "templateFileId"), stack.template),
        "cattleStorage": (_told(state, "disk", "datastoreId"), stack.cattle.storage),
        "cattleSshKeys": (_told(state, "initialization", "userAccount", "keys"), list(keys)),
    }
    # What the plugin does not tell, as of a guest that was imported, it can't find changed. No key: told elsewhere.
    return {key: wanted for key, (now, wanted) in declared.items() if now and wanted and now != wanted}


def chosen_template(stack: Stack, state: OwnState) -> str:
    """The template that is named; where none is, that of the guest that is there, or the newest on the node.

    Raises Faults where the node has none, or another ProxmoxError where it can't be asked.
    """
    found = stack.template or _told(state, "operatingSystem", "templateFileId")
    if found:
        return str(found)
    with Proxmox(stack.connection) as client:
        prove_node(stack.connection.node, client.nodes())
        return newest_on(client, stack.connection.node)


def warnings_of(check: CattleCheck, cattle: CattleSettings, state: OwnState) -> list[str]:
    """What is allowed, and has to be known before: shown in preview and up."""
    warnings = []
    if cattle.home_on_root:
        warnings.append(
            f"cattleVolume is empty: {cattle.mount_path}, with all that the agent remembers, is on the root file "
            f"system of CT {cattle.vmid}. Whatever destroys or replaces the cattle destroys it, too."
        )
    if state.volid and check.attach is not None and check.attach.volid != state.volid:
        warnings.append(
            f"The home moves from volume {state.volid} to {check.attach.volid}: what the agent remembers is not copied "
            "with it, and stays on the one that it leaves."
        )
    if check.host is not None and not check.root_access and state.vmid is None:
        commands = paste(commands_to_paste(None, check.host), indent=2)
        warnings.append(
            f"What only root on node {check.host.node} may set is asked for, and nodeSshHostKey is not set: pulumi up "
            f"makes CT {cattle.vmid}, then stops until this was pasted there:{commands}"
        )
    return warnings


def network_plan(client: Proxmox, spec: NetworkSpec | None, guest: GuestCheck, state: OwnState) -> NetworkPlan:
    """What is declared of a container's network, and what it has. One that can't be read is the preflight's to tell."""
    there = None
    if state.vmid == guest.vmid:
        with contextlib.suppress(ProxmoxError):
            # What is pending counts as there, as the plugin has it.
            there = client.guest_config(guest.node, guest.vmid, current=False)
    return NetworkPlan(spec, there, guest.remade)


def judge_pet(
    stack: PetStack, check: PetCheck, state: OwnState, reached: Callable[[], object] = tuple
) -> tuple[list[Fault], list[str], NetworkPlan]:
    """What stands in the pet's way, what is to be known of its node, and its network; reads only.

    ``reached``: called once the node has answered, with much still to be asked.
    """
    warnings: list[str] = []
    with Proxmox(stack.connection) as client:
        trust = partial(check_plugin_trust, stack.connection, _plugin_environment())
        found = preflight_pet(client, check, trust, warn=warnings.extend, reached=reached)
        # Only warnings come of it, and a node that does not answer is not waited for twice.
        network = NetworkPlan(None) if found else network_plan(client, None, check.guest, state)
    return [of_stack(fault, "pet") for fault in found], warnings, network


def judge_cattle(
    stack: CattleStack,
    check: CattleCheck,
    state: OwnState,
    reached: Callable[[], object] = tuple,
    answer: Callable[[str], str | None] = answer_of,
) -> tuple[list[Fault], list[str], list[str], NetworkPlan]:
    """What stands in the cattle's way, what is to be known of its node, what is to be done to its host mounts' folders,
    and its network; reads only. ``reached``: as with `judge_pet`; ``answer``: as with `preflight_cattle`.
    """
    warnings: list[str] = []
    with Proxmox(stack.connection) as client:
        trust = partial(check_plugin_trust, stack.connection, _plugin_environment())
        found = preflight_cattle(client, check, trust, answer, warn=warnings.extend, reached=reached)
        folders, steps = judged_folders(client, stack, check.host)
        spec = network_spec(stack.cattle.network)
        network = network_plan(client, spec, check.guest, state) if client.answered else NetworkPlan(spec)
    # An application may ask for it by a setting of its own.
    own = {Subject.KEYCTL: stack.keyctl_key}
    return [of_stack(fault, "cattle", own) for fault in (*found, *folders)], warnings, steps, network


def judged_folders(client: Proxmox, stack: CattleStack, spec: HostMountSpec | None) -> tuple[list[Fault], list[str]]:
    """What stands in the way on the node itself, and what is to be done there, where there is a way to root."""
    root = node_ssh_of(stack)
    if spec is None or root is None:
        return [], []
    try:
        with node_shell(root) as shell:
            if shell is None:
                return [], []
            require_node(shell, spec.node)
            refusals, steps = judge_folders(read_folders(shell, spec), with_ids(client, spec))
    except NodeShellFailed as error:
        return [Fault(Subject.NODE_SSH, root.host, f"{error.what}: {error.why}", error.remedy)], []
    except ProxmoxError:
        return [], []  # told by the preflight already
    faults = [Fault(Subject.HOST_MOUNT, "", f"{refusal.what}: {refusal.why}", refusal.remedy) for refusal in refusals]
    return faults, [step.describe() for step in steps]


def public_keys(stack: CattleStack, state: OwnState) -> tuple[list[str], list[Fault]]:
    """The keys that may log in to the cattle: that of the private key, and those of the settings; and what is wrong.

    Another list of keys is another container (field reports B6), so the own one is derived from the private key, and a
    list that means the same keys as the state's stays as the state has it: comment and order are no difference.
    """
    path = Path(stack.ssh_private_key_file)
    try:
        own = public_half(str(path))
        _refuse_others_copy(path, own)
    except PrivateKeyError as error:
        rule, _, remedy = str(error).partition("\n")
        return [], [Fault("sshPrivateKeyFile", str(path), rule, remedy)]
    keys = list(dict.fromkeys([own, *stack.cattle.ssh_keys]))
    recorded = _told(state, "initialization", "userAccount", "keys") or []
    return (list(recorded) if _same_keys(recorded, keys) else keys), []


def _same_keys(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of lines hold the same keys: type and body, whatever the comments, order and white space."""
    return {tuple(line.split()[:2]) for line in one} == {tuple(line.split()[:2]) for line in other}


def _refuse_others_copy(path: Path, own: str) -> None:
    """`ssh -i` offers what the .pub file beside the key says, so one of another key would keep people out.

    Like `ssh`, the first line counts that is a key; a file without one counts as none.
    """
    public = path.with_name(f"{path.name}.pub")
    try:
        lines = public.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        try:
            copy = HostKey.parse(line).line
        except ValueError:
            continue
        if copy != own:
            remedy = f"Make it so: ssh-keygen -y -f {shlex.quote(str(path))} > {shlex.quote(str(public))}"
            raise PrivateKeyError(f"{public} is not its public half.\n{remedy}")
        return


def _plugin_environment() -> dict[str, str]:
    """The environment that the plugin gets: see components/container.py, proxmox_provider."""
    ca_file = os.environ.get(ENVIRONMENT["caFile"])
    return {**os.environ, **({"SSL_CERT_FILE": ca_file} if ca_file else {})}
