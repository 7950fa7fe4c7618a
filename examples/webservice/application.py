"""The web service's phases and outputs."""

from __future__ import annotations

from applications import Answer, Application, PhaseSpec
from applications.webservice.guest.serve import Page
from applications.webservice.settings import WebStack
from provisioning.baseline import Account, baseline
from provisioning.plans import PhasePlan, as_declared, guest_main, guest_package, plan_of
from settings.kinds import USERS_GROUP, USUAL_UID

GUEST = "applications.webservice.guest"
USER = "web"


def render_baseline(stack: WebStack) -> PhasePlan:
    home = stack.cattle.mount_path
    return baseline(
        Account(USER, USER, USUAL_UID, USUAL_UID, "Web service", "application"),
        stack=stack.name,
        home=home,
        home_on_root=stack.cattle.home_on_root,
        private=f"{home}/page",
        packages=("python3",),
        users_group=USERS_GROUP,
        declared={"home": home, "user": USER},
    )


def render_serve(stack: WebStack) -> PhasePlan:
    page = Page(stack.web.port, stack.web.text, USER, f"{stack.cattle.mount_path}/page")
    main, more = guest_main(f"{GUEST}.serve"), guest_package(GUEST)
    return plan_of("serve", main, {}, declared=as_declared(page), given=page, more=more)


APPLICATION = Application(
    component="WebService",
    resource="web",
    phases=lambda stack: (
        PhaseSpec("baseline", lambda _: render_baseline(stack)),
        PhaseSpec("serve", lambda _: render_serve(stack)),
    ),
    asks=lambda _stack: "systemctl is-active web.service",
    outputs=lambda stack: {
        "url": Answer("address", lambda host: f"http://{host}:{stack.web.port}/"),
        "webState": Answer("state"),
    },
)
