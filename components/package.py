"""The components as a package for other programs: the plugin that makes them, and answers for their resources.

One plugin serves both. A component is made as a stack of this program is: settings, checks, resources. It differs in
where the settings come from (the inputs), and in what the resources are called (components/naming.py): by the package's
name, so that the engine finds this plugin for them in a program that knows nothing of ours.

The SDK's own host of components takes its schema from type annotations, and knows neither secrets nor the settings'
rules; it shows every error with its traceback. So only what carries out a component is the SDK's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pulumi
from pulumi.provider import ConstructResult, Provider
from pulumi.provider.server import ProviderServicer
from pulumi.resource import DependencyResource
from pulumi.runtime import proto
from pulumi.runtime.proto import provider_pb2_grpc
from pulumi.runtime.stack import wait_for_rpcs

from components.attachment import Attachment, attach_spec, prove_attachable
from components.dynamic import Component, Resource
from components.naming import PACKAGE
from components.program import declare_cattle, declare_pet, survey_cattle, survey_pet, with_surroundings
from components.providers.messages import UNKNOWN, holds_secret, props_of, sealed
from components.providers.server import THREADS, UNLIMITED, Server, told
from components.state import Place, read_own_state
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.errors import Fault, Faults
from proxmox.mountpoint import owner_of
from settings.package import VOLUME, WHERE, read_attachment, schema_file
from settings.read import UnusableSettings, read_stack
from settings.stack import CattleStack, PetStack, Stack
from settings.version import version

PLACEHOLDER = "local:vm-100-disk-0"
"""Stands for a volume that is not known yet, where the other inputs are read."""
LATER = frozenset({VOLUME, "volume"})
"""The inputs that need not be known in a preview: a volume that is yet to be made."""


@dataclass(frozen=True)
class Asked:
    """A component that is asked for. `config`: its inputs and the connection; `secret`: the inputs that hold one."""

    kind: str
    name: str
    config: Mapping[str, Any]
    secret: frozenset[str]
    place: Place
    after: list[pulumi.Resource]
    opts: pulumi.ResourceOptions


def plain(value: Any) -> Any:
    """A value as YAML would have it: on the wire each number is a float."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def has_unknown(value: Any) -> bool:
    """Whether something in a value is not known yet."""
    if isinstance(value, Mapping):
        return any(map(has_unknown, value.values()))
    if isinstance(value, list):
        return any(map(has_unknown, value))
    return value is UNKNOWN


def prove_known(kind: str, name: str, config: Mapping[str, Any]) -> None:
    """Raise Faults for what is not known yet, and has to be: else a preview could check nothing."""
    rule = "must be known in a preview: what is not known can't be checked before something is changed"
    remedy = (
        "give it a value that does not come from a resource that is yet to be made; or run pulumi up for that first"
    )
    faults = [
        Fault(key, "(unknown)", rule, remedy)
        for key, value in config.items()
        if has_unknown(value) and (key not in LATER or value is not UNKNOWN)
    ]
    if faults:
        raise Faults(faults, what=f'{kind} "{name}" can\'t be previewed')


def _pet(asked: Asked) -> dict[str, Any]:
    stack = _settings(asked, "pet", owner=None, volid=None)
    if not isinstance(stack, PetStack):
        raise TypeError(asked.kind)
    state = read_own_state(stack.claim, asked.place)
    pet = declare_pet(asked.name, stack, state, among_others=True, opts=asked.opts)
    return {"urn": pet.urn, "vmid": pet.vmid, "node": pet.node, "volumes": pet.volumes}


def _cattle(asked: Asked) -> dict[str, Any]:
    volid = asked.config.get(VOLUME) or ""
    later = _unknown() if volid is UNKNOWN else None
    known = volid if volid and later is None else None
    # The settings of a stack name the volume; here it is known already, and only whether there is one matters.
    owner = None if known is None else owner_of(known)
    stack = _settings(asked, "cattle", {VOLUME: "hermes" if volid else ""}, owner=owner, volid=known)
    if not isinstance(stack, CattleStack):
        raise TypeError(asked.kind)
    if known is not None:
        owner = owner_in(known)
    cattle = declare_cattle(
        asked.name,
        stack,
        read_own_state(stack.claim, asked.place),
        owner=owner,
        volid=known,
        later=later,
        after=asked.after,
        among_others=True,
        opts=asked.opts,
    )
    return {"urn": cattle.urn, **cattle.exports}


def owner_in(volid: str) -> int:
    """The number of the guest that owns a cattle's volume. Raises Faults where its name has none."""
    owner = owner_of(volid)
    if owner is None:
        rule = "must be the volid of a volume, with its owner's number in its name"
        fault = Fault(VOLUME, volid, rule, "give it volumes.NAME.volid of a PetStorage")
        raise Faults([fault], what="The inputs of the component can't be used")
    return owner


def _attachment(asked: Asked) -> dict[str, Any]:
    connection = Connection.from_sources(os.environ, {key: asked.config.get(key) for key in ENVIRONMENT})
    config = {key: value for key, value in asked.config.items() if key not in ENVIRONMENT}
    later = _unknown() if config["volume"] is UNKNOWN else None
    found = read_attachment({**config, "volume": PLACEHOLDER} if later is not None else config)
    spec = attach_spec(found, connection.node, read_own_state(place=asked.place).volid)
    if later is None:
        prove_attachable(connection, spec)
    made = Attachment(asked.name, spec, claim=found.claim or None, later=later, after=asked.after, opts=asked.opts)
    return {"urn": made.urn, "volume": made.volume, "path": found.path}


def _unknown() -> pulumi.Output[str]:
    found: pulumi.Output[Any] = pulumi.Output.from_input(pulumi.UNKNOWN)
    return found


def _settings(
    asked: Asked, role: str, instead: Mapping[str, str] | None = None, *, owner: int | None, volid: str | None
) -> PetStack | CattleStack:
    """The settings of a component. `owner`, `volid`: of a cattle's volume; None: there is none, or it is not known."""
    config = {key: value for key, value in asked.config.items() if value is not None}
    given = {**config, **(instead or {}), "role": role}

    def survey(stack: Stack) -> None:
        state = read_own_state(stack.claim, asked.place)
        if isinstance(stack, PetStack):
            survey_pet(stack, state)
        elif isinstance(stack, CattleStack):
            survey_cattle(stack, state, owner=owner, volid=volid)

    try:
        return read_stack(pulumi.get_stack(), given, os.environ, with_secrets=asked.secret, remedy=WHERE)
    except UnusableSettings as wrong:
        raise with_surroundings(wrong, survey) from None


COMPONENTS: Mapping[str, Callable[[Asked], dict[str, Any]]] = {
    "PetStorage": _pet,
    "Cattle": _cattle,
    "Attachment": _attachment,
}
"""By kind: what makes it, and answers its outputs."""


class Package(ProviderServicer):
    """What the engine calls. The SDK carries out a component; our own server answers for its resources."""

    def __init__(self, engine_address: str) -> None:
        super().__init__(Provider(version(), schema_file()), [], engine_address)
        self._resources = Server("")
        self._config: dict[str, Any] = {}
        # Not on the loop: a phase takes minutes, and each hook of the engine's comes in there.
        self._threads = ThreadPoolExecutor(THREADS)

    async def Construct(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Make a component; an error for people is shown by its text alone."""
        try:
            return await self._construct(request, context)
        except Exception as error:
            await context.abort(grpc.StatusCode.UNKNOWN, told(error))

    async def _construct(self, request: Any, context: Any) -> Any:
        del context
        pulumi.runtime.settings.reset_options(
            organization=request.organization or "organization",
            project=request.project or None,
            stack=request.stack or None,
            parallel=request.parallel or None,
            engine_address=self.engine_address,
            monitor_address=request.monitorEndpoint or None,
            preview=request.dryRun,
        )
        await pulumi.runtime.settings._load_monitor_feature_support()  # type: ignore[no-untyped-call]
        asked = asked_by(request, self._config, self._construct_options(request))
        made = COMPONENTS[asked.kind](asked)
        response = await self._construct_response(ConstructResult(made["urn"], made))
        await wait_for_rpcs(await_all_outstanding_tasks=False)
        return response

    async def _answer(self, ask: Callable[[Any], Any], request: Any, context: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask, request)
        except Exception as error:
            await context.abort(grpc.StatusCode.UNKNOWN, told(error))

    # --- what the engine asks about resources, by the names of its interface ---

    async def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._config = {key: value for key, value in props_of(request.args).items() if key in ENVIRONMENT}
        await self._answer(self._resources.configure, request, context)
        return proto.ConfigureResponse(acceptSecrets=True, acceptResources=True, acceptOutputs=True)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = await self._answer(self._resources.check, request, context)
        sealed(answer.inputs, [request.news])
        return answer

    async def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(self._resources.diff, request, context)

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = await self._answer(self._resources.create, request, context)
        sealed(answer.properties, [request.properties])
        return answer

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = await self._answer(self._resources.update, request, context)
        sealed(answer.properties, [request.news])
        return answer

    async def Read(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = await self._answer(self._resources.read, request, context)
        for found in (answer.properties, answer.inputs):
            sealed(found, [request.properties, request.inputs])
        return answer

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(self._resources.delete, request, context)


def asked_by(request: Any, connection: Mapping[str, Any], opts: pulumi.ResourceOptions) -> Asked:
    """What the engine asks for. Raises Faults for what has to be known and is not."""
    kind = request.type.rpartition(":")[2]
    config = {key: plain(value) for key, value in props_of(request.inputs, unknowns=True).items()}
    prove_known(kind, request.name, config)
    urns = sorted({urn for found in request.inputDependencies.values() for urn in found.urns})
    return Asked(
        kind=kind,
        name=request.name,
        config={**connection, **config},
        secret=frozenset(key for key, value in request.inputs.fields.items() if holds_secret(value)),
        place=Place.of(request.parent, request.type, request.name),
        after=[DependencyResource(urn) for urn in urns],
        opts=opts,
    )


def main(engine_address: str) -> None:
    """Serve the engine at that address until it is done with us."""
    Component.prefix, Resource.prefix = PACKAGE.component, PACKAGE.resource
    # Where a provider finds the engine: it tells there what goes on (components/providers/base.py).
    sys.argv = [sys.argv[0], engine_address]

    async def serve() -> None:
        server = grpc.aio.server(options=UNLIMITED)
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(Package(engine_address), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await server.wait_for_termination()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1])
