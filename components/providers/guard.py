"""Why ``pulumi destroy`` of the pet is refused before it changes anything.

The engine deletes what depends on a protected resource first and fails only when it comes
to the resource itself (pulumi#6191). This one depends on all others and is protected: it
is the first to be deleted, so the refusal comes before any call.
"""

from __future__ import annotations

from components.providers.base import CreateResult, DiffResult, Props, Provider, diff_of


class GuardProvider(Provider):
    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=props["reason"], outs={"reason": props["reason"]})

    def diff(self, _id: str, _olds: Props, _news: Props) -> DiffResult:
        return diff_of([])
