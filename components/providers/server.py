"""The server that the engine starts for this project's dynamic resources: ``python -m components.providers.server``.

It takes the place of the SDK's own (``pulumi.dynamic``), which imports the whole SDK and unpickles a provider from the
state for each resource. This one finds the provider by the resource's type, in the code on disk. Pulumi.yaml names it
as the plugin ``pulumi-python``, by which the resources of stacks from before are known.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, cast

import grpc

from components.naming import PROGRAM, kind_of
from components.providers.base import Provider
from components.providers.messages import props_of, provider_messages, struct_of
from proxmox.errors import ProxmoxError
from proxmox.probe import prove

PROVIDERS = {
    "proxmox:Claim": "claim:ClaimProvider",
    "proxmox:Guard": "guard:GuardProvider",
    "proxmox:HostMounts": "host_mounts:HostMountsProvider",
    "proxmox:HostMountsProof": "host_mounts:ProofProvider",
    "proxmox:Power": "power:PowerProvider",
    "proxmox:Volume": "volume:VolumeProvider",
    "proxmox:VolumeAttachment": "attachment:AttachmentProvider",
    "proxmox:VolumeRemoval": "removal:RemovalProvider",
    "guest:Access": "access:AccessProvider",
    "guest:Image": "image:ImageProvider",
    "guest:Phase": "phase:PhaseProvider",
}
"""By a resource's kind: the module in this folder, and the class. A module is imported when it is first needed."""

TYPE = PROGRAM.resource
VERSION = "0.1.0"
"""The SDK's server calls itself so, and a stack's state has it."""
THREADS = 4
UNLIMITED = (("grpc.max_receive_message_length", 400 << 20),)
"""As the engine's: a message may hold a whole program for the guest."""
_SDKS_OWN = "__provider"
"""What the SDK's resources keep of a provider, in the state of a stack from before."""


def kind_in(urn: str) -> str:
    """A resource's kind, from its URN: urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME."""
    return kind_of(urn.split("::")[2].rpartition("$")[2])


class Server:
    """What the engine calls. ``ours``: what our settings begin with; the engine tells those of the plugins, too."""

    def __init__(self, ours: str) -> None:
        self._messages = provider_messages()
        self._ours = ours
        self._config: dict[str, Any] = {}
        self._providers: dict[str, Provider] = {}
        self._lock = threading.Lock()

    def provider(self, urn: str) -> Provider:
        kind = kind_in(urn)
        with self._lock:
            if kind not in self._providers:
                if kind not in PROVIDERS:
                    raise LookupError(f"this program has no resource of the type {TYPE}{kind}")
                module, name = PROVIDERS[kind].split(":")
                made = cast(type[Provider], getattr(importlib.import_module(f"components.providers.{module}"), name))
                self._providers[kind] = made(self._config)
            return self._providers[kind]

    # --- what the engine asks, by the names of its interface ---

    def configure(self, request: Any) -> Any:
        """The settings, and whether they lead to Proxmox.

        Each run refreshes first, and the engine readies the providers in the order of the state: this one comes before
        the plugin of the container, so that what is wrong with the way is told in words of ours, and soon.
        """
        told = props_of(request.args).items()
        self._config = {key.removeprefix(self._ours): value for key, value in told if key.startswith(self._ours)}
        try:
            prove(Provider(self._config).connection())
        except ProxmoxError as error:
            # The engine puts a line of its own before it.
            error.what = f"\n{error.what}"
            raise
        return self._messages.ConfigureResponse(acceptSecrets=False)

    def get_plugin_info(self, _request: Any) -> Any:
        return importlib.import_module(self._messages.__package__ + ".plugin_pb2").PluginInfo(version=VERSION)

    def cancel(self, _request: Any) -> Any:
        return _nothing()

    def check(self, request: Any) -> Any:
        olds, news = _props(request.olds, unknowns=True), _props(request.news, unknowns=True)
        return self._messages.CheckResponse(inputs=struct_of(self.provider(request.urn).check(olds, news)))

    def diff(self, request: Any) -> Any:
        olds, news = _props(request.olds, unknowns=True), _props(request.news, unknowns=True)
        found = self.provider(request.urn).diff(request.id, olds, news)
        answer = self._messages.DiffResponse
        # Replacements always delete first: what these resources make exists once (pulumi-kubernetes#4522).
        return answer(
            changes=answer.DIFF_SOME if found.changes else answer.DIFF_NONE,
            replaces=found.replaces,
            deleteBeforeReplace=True,
        )

    def create(self, request: Any) -> Any:
        made = self.provider(request.urn).create(_props(request.properties))
        return self._messages.CreateResponse(id=made.id_, properties=struct_of(made.outs))

    def update(self, request: Any) -> Any:
        made = self.provider(request.urn).update(request.id, _props(request.olds), _props(request.news))
        return self._messages.UpdateResponse(properties=struct_of(made.outs))

    def read(self, request: Any) -> Any:
        found = self.provider(request.urn).read(request.id, _props(request.properties))
        inputs = found.inputs
        if inputs and (declared := _props(request.inputs)):
            # What an operation adds is no input: each refresh would show it as a difference.
            inputs = {key: inputs.get(key, value) for key, value in declared.items()}
        told = None if inputs is None else struct_of(inputs)
        return self._messages.ReadResponse(id=found.id_, properties=struct_of(found.outs), inputs=told)

    def delete(self, request: Any) -> Any:
        self.provider(request.urn).delete(request.id, _props(request.properties))
        return _nothing()

    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """What is not here, the engine is told, there is not: it does without."""
        messages = self._messages
        from google.protobuf.empty_pb2 import Empty  # noqa: PLC0415 - the messages have imported it

        wanted: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
            "Configure": (self.configure, messages.ConfigureRequest),
            "GetPluginInfo": (self.get_plugin_info, Empty),
            "Cancel": (self.cancel, Empty),
            "Check": (self.check, messages.CheckRequest),
            "Diff": (self.diff, messages.DiffRequest),
            "Create": (self.create, messages.CreateRequest),
            "Update": (self.update, messages.UpdateRequest),
            "Read": (self.read, messages.ReadRequest),
            "Delete": (self.delete, messages.DeleteRequest),
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(ask),
                request_deserializer=kind.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (ask, kind) in wanted.items()
        }


def _props(struct: Any, *, unknowns: bool = False) -> dict[str, Any]:
    return {key: value for key, value in props_of(struct, unknowns=unknowns).items() if key != _SDKS_OWN}


def _nothing() -> Any:
    from google.protobuf.empty_pb2 import Empty  # noqa: PLC0415

    return Empty()


def _answering(ask: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return ask(request)
        except Exception as error:
            context.abort(grpc.StatusCode.UNKNOWN, told(error))

    return answer


def told(error: Exception) -> str:
    """An error as the engine shows it: its text alone where it is written for people, with its traceback where not."""
    from components.errors import PERSONAL_ERRORS  # noqa: PLC0415 - where nothing fails, nobody needs them
    from provisioning.terminal import visible  # noqa: PLC0415
    from settings.subjects import explained  # noqa: PLC0415

    if isinstance(error, PERSONAL_ERRORS):
        return visible(explained(error))
    return "".join(traceback.format_exception(error))


def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=THREADS), options=UNLIMITED)
    handler = grpc.method_handlers_generic_handler(
        "pulumirpc.ResourceProvider", Server(f"{os.environ.get('PULUMI_PROJECT', '')}:").methods()
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    # The engine reads the port from the first line, and ends this process when it is done.
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    try:
        server.wait_for_termination()
    except KeyboardInterrupt:
        server.stop(0)


if __name__ == "__main__":
    main()
