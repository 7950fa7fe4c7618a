"""What a stack reads of its own state."""

from __future__ import annotations

from components.state import OwnState, own_state_of

CONTAINER = "proxmoxve:index/containerLegacy:ContainerLegacy"
CLAIM = "pulumi-python:dynamic/proxmox:Claim"


def test_a_state_without_resources_says_nothing() -> None:
    assert own_state_of({}) == OwnState(None, None)


def test_claim_and_container_are_found() -> None:
    state = {
        "urn:1": {"type": CLAIM, "outputs": {"claim": "0bda0ba4-a0b5-43bb-ab06-c9ff3fa64aa5"}},
        "urn:2": {"type": CONTAINER, "outputs": {"id": "105", "vmId": 105.0}},
    }
    told = {"id": "105", "vmId": 105.0}
    assert own_state_of(state) == OwnState("0bda0ba4-a0b5-43bb-ab06-c9ff3fa64aa5", 105, container=told)


def test_an_imported_container_is_known_by_its_id() -> None:
    # `pulumi import` leaves vmId null in the plugin's outputs.
    assert own_state_of({"urn:1": {"type": CONTAINER, "outputs": {"id": "999", "vmId": None}}}).vmid == 999
