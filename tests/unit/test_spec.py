"""A spec as a resource keeps it: names, values, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from components.providers.volume import VolumeProvider
from proxmox.spec import Spec
from settings.pet import VolumeSettings


@dataclass(frozen=True)
class Shelf(Spec):
    """One field of each kind."""

    RECORDED_AS: ClassVar = ("ref", "earlier")

    vmid: int
    size_gb: Annotated[float, Field(alias="size")]
    seen: Annotated[str, Field(exclude=True)] = "a fact"
    recorded: str | None = None


def test_a_spec_is_kept_by_its_aliases_and_comes_back() -> None:
    assert Shelf.names() == ("vmid", "size")
    shelf = Shelf.from_props({"vmid": 999.0, "size": 2, "other": "left out", "recorded": "x"})
    assert shelf == Shelf(vmid=999, size_gb=2.0, recorded="x")
    assert shelf.to_props() == {"vmid": 999, "size": 2.0, "recorded": "x"}
    assert Shelf.recorded_in({"earlier": "old"}) == "old"
    assert Shelf.recorded_in({"ref": "new", "earlier": "old"}) == "new"


def test_whatever_is_declared_of_a_volume_is_an_update_when_it_changes() -> None:
    """An option that was forgotten here would be declared and never done."""
    assert set(VolumeSettings.model_fields) | {"vmid"} == set(VolumeProvider.updates)
