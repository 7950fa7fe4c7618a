"""What can be declared about the web service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from applications import Declared, Group
from settings.section import Output, Section, setting
from settings.stack import ApplicationStack, CattleStack


class WebSettings(Section):
    """The page, and where it is."""

    port: Annotated[int, Field(ge=1024, le=65535)] = setting("webPort", 8080, "The port of the web service.")
    text: str = setting("webText", "It works.", "What the page says.")


class WebStack(ApplicationStack):
    """A cattle with the web service."""

    web: WebSettings
    runs: ClassVar[str] = "a web service"


def model_of(_config: Mapping[str, Any]) -> tuple[type[CattleStack], Mapping[str, type[Section]]]:
    return WebStack, {}


DECLARED = Declared(
    groups=(Group("The web service", (WebSettings,)),),
    model=model_of,
    outputs={
        "url": Output("string", "Where the page is."),
        "webState": Output("string", "What the last `up` found: `active`.", stable=False),
    },
)
