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
    home: str,
    home_on_root: bool,
    private: str,
    folders: Sequence[str] = (),
    packages: Sequence[str] = (),
    users_group: str,
    declared: Mapping[str, Any],
) -> PhasePlan:
    """Packages in one apt transaction, account, home and its folders.

    `home_on_root`: the home needs no volume. `private`: a folder in the home that nobody else may enter, whatever its
    mode was. `folders`: others there. `users_group`: who may act as the account. No path has a blank.
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
    }
    script = text_of("provisioning/scripts/baseline.sh")
    return plan_of("baseline", script, variables, declared=declared, more=scripts("run.sh"))
