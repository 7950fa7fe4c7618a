"""What is behind this project's dynamic resources: what they do when the engine asks.

Nothing here imports the Pulumi SDK, whose import costs more than all that a provider does in a run without changes:
the engine starts it twice in each (components/providers/server.py). A provider holds nothing, and nothing of it is in
the state: ``destroy`` runs the code on disk. A provider of something on a guest is a kind of
:class:`proxmox.spec.Spec` and the operations on it (:class:`SpecProvider`). No output holds a secret.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import grpc

from components.providers.messages import UNKNOWN, engine_messages
from components.timing import stopwatch
from provisioning.terminal import visible
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.spec import Spec

if TYPE_CHECKING:
    from proxmox.client import Proxmox

Props = dict[str, Any]
LOG_SECONDS = 5.0
S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class CreateResult:
    """The new resource's id, and its outputs."""

    id_: str
    outs: Props


@dataclass(frozen=True)
class UpdateResult:
    """The outputs from now on."""

    outs: Props


@dataclass(frozen=True)
class DiffResult:
    """Whether anything is to be done, and the properties that only another resource can change."""

    changes: bool
    replaces: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ReadResult:
    """What there is now; an empty id: nothing. ``inputs`` None: what is declared stays as the state has it."""

    id_: str
    outs: Props
    inputs: Props | None = None


class Provider:
    """Base of the providers: knows the stack's configuration, and how to reach Proxmox when asked.

    ``config``: the settings of the connection, by key. What the engine hands over is the current configuration on
    ``up``, and that of the last ``up`` on ``destroy`` and ``refresh``; the environment comes first.
    """

    def __init__(self, config: Mapping[str, str] | None = None) -> None:
        self._config = {key: value for key in ENVIRONMENT if (value := (config or {}).get(key)) is not None}

    def connection(self) -> Connection:
        """The connection to use now; Faults when it can't be used."""
        return Connection.from_sources(os.environ, self._config)

    @contextmanager
    def proxmox(self) -> Iterator[Proxmox]:
        from proxmox.client import Proxmox  # noqa: PLC0415 - 0.2 s that a look at the inputs alone does without

        with Proxmox(self.connection()) as client:
            yield client

    def check(self, olds: Props, news: Props) -> Props:
        """The inputs to go on with. What can't or shall not be done is refused here, in preview too."""
        del olds
        return news

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        raise NotImplementedError

    def create(self, props: Props) -> CreateResult:
        raise NotImplementedError

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        raise NotImplementedError

    def read(self, id_: str, props: Props) -> ReadResult:
        """Nothing of it can be seen: it is as the state has it."""
        return ReadResult(id_, props)

    def delete(self, _id: str, props: Props) -> None:
        """Nothing is to be done, unless a provider says otherwise."""


def say(line: str) -> None:
    """One line of progress, shown beside the resource that is being worked on."""
    sys.stderr.write(f"{visible(line)}\n")
    sys.stderr.flush()


def progress(line: str) -> None:
    """One line of what goes on now: shown as it comes, and left out of what the engine repeats in the end.

    The engine takes lines to be forgotten over its own interface only; its address is the process's one argument. What
    can't be told so, as in a test, goes where everything else goes.
    """
    _tell_engine("INFO", line, passing=True)


def _tell_engine(severity: str, line: str, *, passing: bool) -> None:
    engine = engine_messages()
    try:
        with grpc.insecure_channel(sys.argv[1]) as channel:
            request = engine.LogRequest(severity=severity, message=visible(line), ephemeral=passing)
            log = channel.unary_unary(
                "/pulumirpc.Engine/Log",
                request_serializer=engine.LogRequest.SerializeToString,
                response_deserializer=bytes,
            )
            log(request, timeout=LOG_SECONDS)
    except (IndexError, grpc.RpcError):
        say(line)


def warn(line: str) -> None:
    """A warning that stays: shown with what the engine repeats in the end."""
    _tell_engine("WARNING", line, passing=False)


def known(props: Mapping[str, Any], *keys: str) -> bool:
    """Whether all of these inputs have values yet; in preview some may not (pulumi#6310)."""
    return not any(props.get(key) is UNKNOWN for key in keys)


def changed(olds: Mapping[str, Any], news: Mapping[str, Any], *keys: str) -> list[str]:
    """The keys whose values differ. A value that is not known yet counts as changed: it may be."""
    return [key for key in keys if news.get(key) is UNKNOWN or olds.get(key) != news.get(key)]


def unrecorded(olds: Mapping[str, Any], news: Mapping[str, Any], *keys: str) -> list[str]:
    """The keys that a state of an earlier version does not hold yet: an update writes them down, and does nothing."""
    return [key for key in keys if olds.get(key) is None and news.get(key) is not None]


def diff_of(updates: list[str], replaces: list[str] | None = None) -> DiffResult:
    """Replacements always delete first: what these resources make exists once (pulumi-kubernetes#4522)."""
    replaces = replaces or []
    return DiffResult(bool(updates or replaces), replaces)


GONE = ReadResult("", {}, {})
"""What ``read`` answers when the thing does not exist any more."""


_PROOF = ("claim", "node")
"""By what a guest is known. A state of before they were kept gets them by an update that does nothing else."""


class SpecProvider(Provider, Generic[S]):
    """Something on a guest of this stack's: a spec, what there is of it, and the operations that bring it about.

    That the guest is ours, and on its node, is proved before each of them. `id_format`: the resource's id, from fields
    and outputs. `updates`, `replaces`: the properties that, changed, mean an update, or another resource.
    `previews_creation`: whether there is a plan for what is not there yet.
    """

    kind: type[S]
    id_format: ClassVar[str]
    updates: ClassVar[tuple[str, ...]] = ()
    replaces: ClassVar[tuple[str, ...]] = ("vmid", "guest")
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

    def check(self, olds: Props, news: Props) -> Props:
        """The plan is made in preview: so what can't or shall not be done is refused there.

        Of what is new on a guest that is yet to be made nothing can be known.
        """
        keys = (*self.updates, *self.replaces)
        if (olds or self.previews_creation) and known(news, *keys, "guest") and changed(olds, news, *keys):
            with self.proxmox() as client:
                for line in self.plan(client, self.spec(news, news.get("recorded") if olds else None)):
                    say(line)
        return news

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
            from proxmox.vmid import prove_still_ours  # noqa: PLC0415 - as the client

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
    return {key: value for key, value in props.items() if key != "recorded"}
