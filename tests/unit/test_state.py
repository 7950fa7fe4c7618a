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


def test_where_the_home_is_is_known() -> None:
    attached = {
        "type": "pulumi-python:dynamic/proxmox:VolumeAttachment",
        "outputs": {"volid": "local-lvm:vm-999-disk-1"},
    }
    powered = {"type": "pulumi-python:dynamic/proxmox:Power", "outputs": {"running": True}}
    found = own_state_of({"urn:1": attached})
    assert (found.home, found.volid) == ("volume", "local-lvm:vm-999-disk-1")
    assert own_state_of({"urn:1": powered}).home == "root"


def test_an_imported_container_is_known_by_its_id() -> None:
    # `pulumi import` leaves vmId null in the plugin's outputs.
    assert own_state_of({"urn:1": {"type": CONTAINER, "outputs": {"id": "999", "vmId": None}}}).vmid == 999
