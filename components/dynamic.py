"""The ground that this project's dynamic providers stand on.

What the engine stores of such a provider is the name of its class, not its code
(facts pulumi, "Dynamic resources"), as long as the class lives in an importable
module and its instance holds nothing: so ``destroy`` always runs the code on disk.
Each provider is thin: it turns inputs into a wish, calls :mod:`proxmox` or
:mod:`provisioning`, and turns what came of it into outputs. No output holds a secret.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from pulumi.dynamic import ConfigureRequest, DiffResult, ReadResult, ResourceProvider
from pulumi.output import Unknown
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from components.errors import PERSONAL_ERRORS
from provisioning.terminal import visible
from proxmox.client import Proxmox
from proxmox.connection import ENVIRONMENT, Connection

Props = dict[str, Any]
LOG_SECONDS = 5.0


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
            return visible(str(error))
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
