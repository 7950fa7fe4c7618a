"""Starts every service of a lab, in its daemon's process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from lab.image import AGENT_REPOSITORY, BASE_REPOSITORY, BASE_TAG, ImageRecipe, again, cached_images
from lab.instance import IMAGE_CACHE, Lab
from lab.ports import MODEL_PORT, REGISTRY_PORT
from lab.services.model import MODEL, ModelEndpoint
from lab.services.registry import Registry
from lab.services.source import SOURCE_CACHE, GitDaemon, Source, ensure_source
from pvelab.certificates import ensure_certificates
from pvelab.extension import Say


def start(lab: Lab, address: str | None, stack: contextlib.ExitStack, say: Say) -> Mapping[str, Any]:
    """The model endpoint, and on the bridge's address the git repository and the images; fields of Ready."""
    host, port = (address, MODEL_PORT) if address else ("127.0.0.1", 0)
    model = ModelEndpoint(host, port, lab.model_key_file.read_text().strip(), lab.model_log)
    model.start()
    stack.callback(model.stop)
    say(f"the model answers at {model.base_url}")
    facts: dict[str, Any] = {"model_url": model.base_url, "model": MODEL}
    if address is None:
        return facts
    source = ensure_source(SOURCE_CACHE, say)
    previous = source.previous
    git = GitDaemon(lab.place, address, source.repository.parent)
    git.start()
    return {
        **facts,
        "source_kind": source.kind,
        "source_url": git.url(source),
        "source_version": source.newest.version,
        "source_tag": source.newest.tag,
        "source_commit": source.newest.commit,
        "source_previous_version": previous.version if previous else None,
        "source_previous_tag": previous.tag if previous else None,
        "source_previous_commit": previous.commit if previous else None,
        **_serve_images(lab, source, address, stack, say),
    }


def _serve_images(
    lab: Lab, source: Source, address: str, stack: contextlib.ExitStack, say: Say
) -> Mapping[str, str | None]:
    """Start the registry and tell of it; nothing where `lab up --images` never built anything to serve."""
    recipe = ImageRecipe.of(source)
    images = cached_images(IMAGE_CACHE, recipe)
    if images is None:
        return {}
    # A CA of its own: the API's is made again whenever the API's names change.
    trust = ensure_certificates(lab.state_dir / "registry" / "ca", [address])
    registry = Registry(address, REGISTRY_PORT, images, trust.server_file)
    registry.start()
    stack.callback(registry.stop)
    say(f"the registry answers at {registry.address}")
    return {
        "registry": registry.address,
        "registry_ca_file": str(trust.ca_file),
        "image": registry.reference(AGENT_REPOSITORY, recipe.newest),
        "image_next": registry.reference(AGENT_REPOSITORY, again(recipe.newest)),
        "image_previous": registry.reference(AGENT_REPOSITORY, source.previous.tag) if source.previous else None,
        "image_base": registry.reference(BASE_REPOSITORY, BASE_TAG),
    }
