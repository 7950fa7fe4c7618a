"""The ground that this project's dynamic providers stand on.

What the engine stores of such a provider is the name of its class, not its code
(facts pulumi, "Dynamic resources"), as long as the class lives in an importable
module and its instance holds nothing: so ``destroy`` always runs the code on disk.
A provider of something on a guest is a kind of :class:`proxmox.spec.Spec` and the
operations on it (:class:`SpecProvider`). No output holds a secret.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import grpc
import pulumi
from pulumi.dynamic import (
    CheckResult,
    ConfigureRequest,
    CreateResult,
    DiffResult,
    ReadResult,
    Resource,
    ResourceProvider,
    UpdateResult,
)
from pulumi.output import Unknown
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from components.errors import PERSONAL_ERRORS
from components.timing import stopwatch
from provisioning.terminal import visible
from proxmox.client import Proxmox
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.spec import Spec
from proxmox.vmid import prove_still_ours
from settings.subjects import explained

Props = dict[str, Any]
LOG_SECONDS = 5.0
S = TypeVar("S", bound=Spec)


def _speak_plainly() -> None:
    """Make the SDK's server report our errors by their text alone.

    ``pulumi.dynamic`` answers every exception with ``traceback.format_exc()``: some
    thirty lines around the one that a person needs. Errors that are written for
    people are let through as they are; anything else keeps its traceback.
    """
    original = traceback.format_exc
    if getattr(original, "plain", False):
        return

    def format_exc(limit: int | None = None, chain: bool = True) -> str:
        error = sys.exc_info()[1]
        if isinstance(error, PERSONAL_ERRORS):
            return visible(explained(error))
        return original(limit, chain)

    format_exc.plain = True  # type: ignore[attr-defined]
    traceback.format_exc = format_exc


class Provider(ResourceProvider):
    """Base of the providers: knows the stack's configuration, and how to reach Proxmox when asked.

    The configuration that the engine hands over is the current one on ``up`` and that
    of the last ``up`` on ``destroy`` and ``refresh``; the environment comes first.
    """

    _config: dict[str, str]

    def configure(self, req: ConfigureRequest) -> None:
        _speak_plainly()
        self._config = {key: value for key in ENVIRONMENT if (value := req.config.get(key)) is not None}

    def connection(self) -> Connection:
        """The connection to use now; Faults when it can't be used."""
        return Connection.from_sources(os.environ, self._config)

    @contextmanager
    def proxmox(self) -> Iterator[Proxmox]:
        with Proxmox(self.connection()) as client:
            yield client

    def __getstate__(self) -> dict[str, object]:
        # Nothing of an instance may reach the state: byte-equal at every run (pulumi#5621).
        return {}


def say(line: str) -> None:
    """One line of progress, shown beside the resource that is being worked on."""
    sys.stderr.write(f"{visible(line)}\n")
    sys.stderr.flush()


def progress(line: str) -> None:
    """One line of what goes on now: shown as it comes, and left out of what the engine repeats in the end.

    The engine takes lines to be forgotten over its own interface only; its address is the process's one argument. What
    can't be told so, as in a test, goes where everything else goes.
    """
    _tell_engine(engine_pb2.INFO, line, passing=True)


def _tell_engine(severity: engine_pb2.LogSeverity.ValueType, line: str, *, passing: bool) -> None:
    try:
        with grpc.insecure_channel(sys.argv[1]) as channel:
            request = engine_pb2.LogRequest(severity=severity, message=visible(line), ephemeral=passing)
            engine_pb2_grpc.EngineStub(channel).Log(request, timeout=LOG_SECONDS)
    except (IndexError, grpc.RpcError):
        say(line)


def warn(line: str) -> None:
    """A warning that stays: shown with what the engine repeats in the end."""
    _tell_engine(engine_pb2.WARNING, line, passing=False)


def known(props: Mapping[str, Any], *keys: str) -> bool:
    """Whether all of these inputs have values yet; in preview some may not (pulumi#6310)."""
    return not any(isinstance(props.get(key), Unknown) for key in keys)


def changed(olds: Mapping[str, Any], news: Mapping[str, Any], *keys: str) -> list[str]:
    """The keys whose values differ. A value that is not known yet counts as changed: it may be."""
    return [key for key in keys if isinstance(news.get(key), Unknown) or olds.get(key) != news.get(key)]


def unrecorded(olds: Mapping[str, Any], news: Mapping[str, Any], *keys: str) -> list[str]:
    """The keys that a state of an earlier version does not hold yet: an update writes them down, and does nothing."""
    return [key for key in keys if olds.get(key) is None and news.get(key) is not None]


def diff_of(updates: list[str], replaces: list[str] | None = None) -> DiffResult:
    """Replacements always delete first: what these resources make exists once (pulumi-kubernetes#4522)."""
    replaces = replaces or []
    return DiffResult(changes=bool(updates or replaces), replaces=replaces, delete_before_replace=True)


GONE = ReadResult(id_="", outs={}, inputs={})
"""What ``read`` answers when the thing does not exist any more."""


@dataclass(frozen=True)
class Owned:
    """The guest that a resource is about: its id in the graph, this stack's mark on it, and its node."""

    guest: pulumi.Input[str]
    claim: pulumi.Input[str]
    node: str


_PROOF = ("claim", "node")
"""By what a guest is known. A state of before they were kept gets them by an update that does nothing else."""


class SpecProvider(Provider, Generic[S]):
    """Something on a guest of this stack's: a spec, what there is of it, and the operations that bring it about.

    That the guest is ours, and on its node, is proved before each of them. `id_format`: the resource's id, from fields
    and outputs. `updates`, `replaces`: the properties that, changed, mean an update, or another resource. `fixed`: what
    can be read and has one right value, so that a refresh finds another one. `previews_creation`: whether there is a
    plan for what is not there yet.
    """

    kind: type[S]
    id_format: ClassVar[str]
    updates: ClassVar[tuple[str, ...]] = ()
    replaces: ClassVar[tuple[str, ...]] = ("vmid", "guest")
    fixed: ClassVar[Props] = {}
    previews_creation: ClassVar[bool] = False

    def plan(self, client: Proxmox, spec: S) -> Iterable[str]:
        """What `ensure` would do, a line each. Reads only; refuses as `ensure` does."""
        del client, spec
        return ()

    def ensure(self, client: Proxmox, spec: S) -> Props:
        """Bring it about. The outputs: what is declared as it was found afterwards, and what came of it."""
        raise NotImplementedError

    def spec(self, props: Mapping[str, Any], recorded: Any = None) -> S:
        """The spec that properties hold, with what an earlier run has recorded."""
        return self.kind.from_props({**props, "recorded": recorded})

    def check(self, olds: Props, news: Props) -> CheckResult:
        """The plan is made in preview: so what can't or shall not be done is refused there.

        Of what is new on a guest that is yet to be made nothing can be known.
        """
        keys = (*self.updates, *self.replaces)
        if (olds or self.previews_creation) and known(news, *keys, "guest") and changed(olds, news, *keys):
            with self.proxmox() as client:
                for line in self.plan(client, self.spec(news, news.get("recorded") if olds else None)):
                    say(line)
        return CheckResult(news, [])

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, *self.updates), changed(olds, news, *self.replaces))

    def create(self, props: Props) -> CreateResult:
        outputs = self._ensure(props, None)
        return CreateResult(id_=self.id_format.format_map({**outputs, **self.spec(props).to_props()}), outs=outputs)

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._ensure(news, self.kind.recorded_in(olds)))

    def _ensure(self, props: Props, recorded: Any) -> Props:
        with stopwatch() as elapsed, self.guest(props) as client:
            found = self.ensure(client, self.spec(props, recorded))
        return {**_kept(props), **found, "seconds": elapsed()}

    @contextmanager
    def guest(self, props: Props) -> Iterator[Proxmox]:
        """A client, once the guest is proved to be ours. An input that is None is not there at all."""
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props.get("node"))
            yield client


class PartProvider(SpecProvider[S]):
    """Something that can be seen on the guest, and goes with the resource."""

    def find(self, client: Proxmox, props: Props) -> Props | None:
        """The outputs as they are now; None when it is gone, and nothing of it is left to be guarded."""
        raise NotImplementedError

    def remove(self, client: Proxmox, props: Props) -> None:
        """Take it away. What is gone already is no error."""
        raise NotImplementedError

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        updates = [*changed(olds, news, *self.updates), *unrecorded(olds, news, *_PROOF)]
        return diff_of(updates, changed(olds, news, *self.replaces))

    def read(self, id_: str, props: Props) -> ReadResult:
        """A guest that is not ours, or was moved, is an error: forgotten, its part would no longer guard it."""
        with self.guest(props) as client:
            found = self.find(client, props)
        if found is None:
            return GONE
        outs = {**_kept(props), **found}
        return ReadResult(id_=id_, outs=outs, inputs=outs)

    def delete(self, _id: str, props: Props) -> None:
        """Comes before the container's own deletion: what is refused here saves the guest from that, too."""
        with self.guest(props) as client:
            self.remove(client, props)


def _kept(props: Props) -> Props:
    """The outputs that are inputs. What an earlier run has recorded is told by outputs of its own."""
    return {key: value for key, value in props.items() if key not in ("recorded", "__provider")}


class SpecResource(Resource):
    """A resource whose inputs are a spec and the guest that it is about. ``outputs``: the names of what comes of it."""

    seconds: pulumi.Output[float]

    def __init__(
        self,
        resource_name: str,
        provider: SpecProvider[S],
        spec: S,
        owned: Owned,
        *,
        outputs: Iterable[str] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        whose = {"guest": owned.guest, "claim": owned.claim, "node": owned.node}
        made = dict.fromkeys((*outputs, "seconds"))
        super().__init__(provider, resource_name, {**spec.to_props(), **provider.fixed, **whose, **made}, opts)
