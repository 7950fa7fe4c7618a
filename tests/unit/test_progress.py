"""What a provider says of its work: to the engine, to be forgotten; to standard error where there is no engine."""

from __future__ import annotations

import sys
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from components.providers.base import progress, warn

PLACE = "127.0.0.1"


class Engine(engine_pb2_grpc.EngineServicer):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def Log(self, request: Any, _context: Any) -> Empty:  # noqa: N802 - the interface's name
        self.heard.append(request)
        return Empty()


def test_progress_is_forgotten_and_a_warning_is_repeated_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    port = server.add_insecure_port(f"{PLACE}:0")
    server.start()
    try:
        monkeypatch.setattr(sys, "argv", ["provider", f"{PLACE}:{port}"])
        progress("still running, 4 s")
        warn("compare it on the node")
    finally:
        server.stop(None).wait()
    assert [(told.message, told.severity, told.ephemeral) for told in engine.heard] == [
        ("still running, 4 s", engine_pb2.INFO, True),
        ("compare it on the node", engine_pb2.WARNING, False),
    ]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [[], [f"{PLACE}:1"], ["-x"]])
def test_without_an_engine_it_is_still_said(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["provider", *arguments])
    progress("still running, 4 s")
    assert capsys.readouterr().err == "still running, 4 s\n"
