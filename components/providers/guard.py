"""Why ``pulumi destroy`` of the pet is refused before it changes anything.

The engine deletes what depends on a protected resource first and fails only when it comes
to the resource itself (pulumi#6191). The guard depends on all others and is protected: it
is the first to be deleted, so the refusal comes before any call.

The engine's own refusal tells how to take the protection away. So ours comes before it: each destroy refreshes first
(Pulumi.yaml, ``refresh``), and then the guard refuses to be read. Without a refresh the guard's name says why.
"""

from __future__ import annotations

from components.providers.base import CreateResult, DiffResult, Props, Provider, ReadResult, diff_of
from components.providers.verb import DESTROY, SPARING, engine_words, verb_in
from proxmox.errors import Refusal


def refuse_destroy() -> None:
    """Raise Refusal where this run is a destroy that would come to the guard."""
    words = engine_words()
    if verb_in(words) in DESTROY and SPARING not in words:
        raise Refusal(
            "The pet is not destroyed; nothing was changed",
            "its volumes hold what the agents remember, and Proxmox would free them with it",
            "the cattle alone: pulumi destroy --stack cattle, or, in a program of your own, docs/package.md; all of "
            "it, with all data: "
            'docs/operations.md, "Remove everything for good"',
        )


class GuardProvider(Provider):
    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=props["reason"], outs={"reason": props["reason"]})

    def read(self, id_: str, props: Props) -> ReadResult:
        refuse_destroy()
        return super().read(id_, props)

    def diff(self, _id: str, _olds: Props, _news: Props) -> DiffResult:
        return diff_of([])
