"""What an image stack declares: one template, and nothing that belongs to one cattle alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pulumi
import pytest

from components.image import GoldenTemplate
from tests.graph.test_graph import CANARY, SECRET_SIGNATURE, environment
from tests.settings import cattle as of_cattle

if TYPE_CHECKING:
    from tests.graph.conftest import Declare, Graph, Registered

KEYS = ["ssh-ed25519 AAAA"]
TEMPLATE = "image-template"
SECRETS: dict[str, Any] = {
    "agentModelKey": CANARY,
    "agentApi": True,
    "agentApiKey": f"{CANARY}-of-the-api-{'k' * 32}",
    "agentSecretEnvironment": {"TELEGRAM_BOT_TOKEN": CANARY},
}


def image(declare: Declare, seen: dict[str, Any] | None = None, /, **given: object) -> Graph:
    """`seen`: gets the outputs."""

    def program() -> None:
        stack = of_cattle("image", environment=environment(), **{"agentDashboard": False, **given})
        made = GoldenTemplate("image", stack, KEYS)
        if seen is not None:
            pulumi.Output.all(**made.exports).apply(seen.update)

    return declare(program)


def template(graph: Graph) -> Registered:
    return graph.resources[TEMPLATE]


def test_it_is_a_claim_and_one_resource(declare: Declare) -> None:
    """The template is there as a whole or made again, so no part of it is a resource that could be left alone."""
    graph = image(declare)
    kinds = {resource.type.rsplit(":", 1)[1]: name for name, resource in graph.resources.items()}
    assert kinds == {"GoldenTemplate": "image", "Claim": "image-claim", "Image": TEMPLATE}
    depends = graph.options(TEMPLATE).propertyDependencies["claim"].urns
    assert [urn.rsplit("::", 1)[1] for urn in depends] == ["image-claim"]


def test_the_container_is_a_small_unprivileged_one_without_mounts(declare: Declare) -> None:
    """Also where the stack's cattle has a volume, folders of the node and keyctl."""
    mounts = [{"source": "/tank/media", "path": "/media", "owner": 10000}]
    options = template(image(declare, cattleHostMounts=mounts, cattleKeyctl=True)).inputs["options"]
    assert options["unprivileged"] == "1"
    assert options["features"] == "nesting=1"
    assert options["ssh-public-keys"] == KEYS[0]
    assert not [name for name in options if name.startswith(("mp", "dev", "lxc", "password", "start", "onboot"))]


def test_what_is_baked_is_sealed_last_and_has_no_configuration(declare: Declare) -> None:
    inputs = template(image(declare)).inputs
    assert inputs["declared"].keys() == {"baseline", "agent", "seal"}
    assert [json.loads(plan)["name"] for plan in json.loads(inputs["plans"]["value"])] == ["baseline", "agent", "seal"]


def test_no_secret_of_the_stack_gets_in(declare: Declare) -> None:
    """Not even where only the engine would see it: each clone's root reads the template's blocks."""
    seen: dict[str, Any] = {}
    graph = image(declare, seen, **SECRETS)
    assert CANARY not in json.dumps([resource.inputs for resource in graph.resources.values()], default=str)
    assert CANARY not in json.dumps(seen, default=str)
    assert SECRET_SIGNATURE in graph.options(TEMPLATE).object["plans"]
    assert seen.keys() == {"vmid", "node", "storage", "digest", "keys"}


CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({"agentExtraPackages": ["ffmpeg"]}, True),
    ({"agentExtraPythonPackages": ["httpx==0.28.1"]}, True),
    ({"agentUid": 12000}, True),
    ({"cattleDisk": 30}, True),
    ({"cattleStorage": "tank"}, True),
    ({"template": "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"}, True),
    ({"agentModel": "other"}, False),
    ({"agentSettings": {"timezone": "UTC"}}, False),
    ({"cattleMemory": 8192}, False),
    ({"imageKept": 3}, False),
    (SECRETS, False),
]


@pytest.mark.parametrize(("change", "another"), CHANGES, ids=[next(iter(change)) for change, _ in CHANGES])
def test_what_goes_in_makes_another_template_and_nothing_else_does(
    declare: Declare, change: dict[str, Any], another: bool
) -> None:
    before, after = (template(image(declare, **given)).inputs["digest"] for given in ({}, change))
    assert (before != after) is another
