"""The methods of the API, one module per branch of the tree; importing them fills the router."""

from __future__ import annotations

from pvelab.api import access, cluster, guests, nodes, pools, storage, users
from pvelab.release import DEFAULT, RELEASES, Release
from pvelab.routing import Router


def build_router(release: Release = RELEASES[DEFAULT]) -> Router:
    """A router with every modelled method of a release. What is not in it answers 501."""
    router = Router(release.unknown)
    for module in (access, cluster, guests, nodes, pools, storage, users):
        module.register(router)
    return router
