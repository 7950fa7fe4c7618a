"""The first phase of any application: packages, the account that it runs as, its home and folders there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioning.plans import PhasePlan, plan_of, scripts, text_of


@dataclass(frozen=True)
class Account:
    """Who an application runs as. `title`: what it is called for people. `setting`: the key that says its uid."""

    user: str
    group: str
    uid: int
    gid: int
    title: str
    setting: str


def baseline(
    account: Account,
    *,
    stack: str,
    usage: str = "",
    home: str,
    home_on_root: bool,
    private: str,
    folders: Sequence[str] = (),
    packages: Sequence[str] = (),
    users_group: str,
    declared: Mapping[str, Any],
) -> PhasePlan:
    """Packages in one apt transaction, account, home and its folders, and what is read at a login.

    `stack`: whose container it is. `usage`: how the application is used there, a sentence for people. `home_on_root`:
    the home needs no volume. `private`: a folder in the home that nobody else may enter, whatever its mode was.
    `folders`: others there. `users_group`: who may act as the account. No path has a blank.
    """
    variables = {
        "HOME_DIR": home,
        "HOME_ON_ROOT": "1" if home_on_root else "",
        "PRIVATE_DIR": private,
        "FOLDERS": " ".join(folders),
        "AGENT_USER": account.user,
        "AGENT_GROUP": account.group,
        "AGENT_UID": str(account.uid),
        "AGENT_GID": str(account.gid),
        "AGENT_TITLE": account.title,
        "UID_SETTING": account.setting,
        "USERS_GROUP": users_group,
        "PACKAGES": " ".join(sorted(set(packages))),
        "MOTD": motd(stack, account, home, usage),
    }
    script = text_of("provisioning/scripts/baseline.sh")
    return plan_of("baseline", script, variables, declared=declared, more=scripts("run.sh"))


def motd(stack: str, account: Account, home: str, usage: str) -> str:
    """What root reads at a login in the container."""
    lines = [
        f"This container is made by hermes-homelab, stack {stack}.",
        f"It runs {account.title} as user {account.user}. {usage}",
        f"What is changed here outside of {home} is lost when the container is made again.",
        f"To change it, change the stack's settings on the workstation, then: pulumi up --stack {stack}",
    ]
    return "\n".join(line.strip() for line in lines)
