"""Golden templates: made in a container of their own, sealed, and turned into a template; older ones are destroyed.

All of it is one resource, for its result is one thing that is there as a whole or is made again from nothing. A changed
digest is an update: the new template is there before an older one goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from components.providers.access import AccessProvider, card_of
from components.providers.base import (
    GONE,
    CreateResult,
    DiffResult,
    Props,
    Provider,
    ReadResult,
    UpdateResult,
    changed,
    diff_of,
    known,
    progress,
    say,
)
from components.providers.phase import PHASE_SECONDS
from components.timing import stopwatch
from proxmox.client import Proxmox
from proxmox.facts import read_cluster
from proxmox.golden import Golden, ImageSpec, ensure_image, goldens, plan_image, remove_images
from proxmox.network import card_of as card_in

_KEPT = ("claim", "node", "digest", "first", "kept", "storage", "keys", "declared")
"""The inputs that are outputs, too."""


class ImageProvider(Provider):
    def check(self, olds: Props, news: Props) -> Props:
        """In preview the plan is told; without a claim yet there is nothing of this stack's."""
        if known(news, "claim", "digest") and (not olds or changed(olds, news, *ImageSpec.names())):
            spec = ImageSpec.from_props(news)
            with self.proxmox() as client:
                for line in plan_image(read_cluster(client), spec, news["claim"]).describe(spec):
                    say(line)
        return news

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, *ImageSpec.names()), changed(olds, news, "claim", "node"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=props["claim"], outs=self._ensure(props, {}))

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._ensure(news, olds))

    def _ensure(self, props: Props, olds: Props) -> Props:
        spec = ImageSpec.from_props(props)
        with stopwatch() as elapsed, self.proxmox() as client:

            def bake(vmid: int, notes: Callable[[str], str]) -> dict[str, Any]:
                return self._bake(client, props, vmid, notes)

            found, results = ensure_image(client, spec, props["claim"], bake, say)
            if results is None:
                # Of one that was there: as its own run has told, where that was written down.
                results = olds.get("results") if olds.get("vmid") == found.vmid else {}
        return {**self._kept(props), **_told(found), "results": results or {}, "seconds": elapsed()}

    def _bake(self, client: Proxmox, props: Props, vmid: int, notes: Callable[[str], str]) -> dict[str, Any]:
        """A container of that number with the phases behind it, sealed and stopped. The phases' results."""
        from provisioning.plans import PhasePlan, run_phase  # noqa: PLC0415 - as in phase.py
        from provisioning.ssh import HostKey, SshTarget  # noqa: PLC0415

        node = props["node"]
        client.create(node, vmid, {**props["options"], "description": notes(props["purpose"])})
        client.start(node, vmid)
        hardware_address = card_in(client.guest_config(node, vmid)).get("hwaddr", "")
        reached = AccessProvider(self._config).reach(
            {
                "guest": str(vmid),
                "vmid": vmid,
                "node": node,
                "static_address": props.get("static_address"),
                "private_key_file": props["private_key_file"],
                "incarnation": hardware_address,
            },
            pinned=None,
        )
        target = SshTarget(
            reached["address"],
            HostKey.parse(reached["host_key"]),
            private_key_file=props["private_key_file"],
            card=card_of(vmid, hardware_address),
        )
        results: dict[str, Any] = {}
        for text in json.loads(props["plans"]):
            plan = PhasePlan.from_json(text)
            progress(f"golden template: {plan.name}")
            done = run_phase(target, plan, on_line=progress, timeout_s=PHASE_SECONDS)
            say(f"golden template: {plan.name} took {done.seconds:.1f} s")
            results[plan.name] = done.outputs
        # Killed: what the seal has taken out, a shutdown would write again.
        client.stop(node, vmid)
        return results

    @staticmethod
    def _kept(props: Props) -> Props:
        return {key: props[key] for key in _KEPT if key in props}

    def read(self, id_: str, props: Props) -> ReadResult:
        """One that was destroyed by hand is gone, and made again."""
        with self.proxmox() as client:
            ours = goldens(read_cluster(client), props["claim"])
        found = next((one for one in ours if one.finished and one.digest == props["digest"]), None)
        return GONE if found is None else ReadResult(id_, {**props, **_told(found)})

    def delete(self, _id: str, props: Props) -> None:
        with self.proxmox() as client:
            remove_images(client, props["claim"], say)


def _told(found: Golden) -> Props:
    return {"vmid": found.vmid, "number": found.number}
