"""The outputs `api` and `dashboard`: where each answers, as it is typed into a browser."""

from __future__ import annotations

from typing import Any

import pytest

from applications.hermes.application import api_in_guest, api_url, dashboard_in_guest, dashboard_url
from tests.settings import cattle

ADDRESS = "192.0.2.5"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a value
LOGIN = {"agentDashboardPassword": "long enough words"}
DOCKER = {"agentMode": "docker", "agentImage": f"example.org/hermes:v1@sha256:{'0' * 64}", **LOGIN}


LOCAL = "http://127.0.0.1:9119"
API = "http://127.0.0.1:8642/v1"
OWN_API = "http://10.0.0.7:8642/v1"


@pytest.mark.parametrize(
    ("given", "api", "dashboard", "in_guest"),
    [
        ({}, "", "", ("", LOCAL)),
        ({"agentDashboard": False}, "", "", ("", "")),
        ({"agentApi": True}, "", "", (API, LOCAL)),
        ({"agentApi": True, "agentApiHost": "::1", "agentDashboardHost": "::1"}, "", "", ("http://[::1]:8642/v1", "http://[::1]:9119")),
        ({"agentApi": True, "agentApiHost": EVERYWHERE}, "http://192.0.2.5:8642/v1", "", (API, LOCAL)),
        ({"agentApi": True, "agentApiHost": "::"}, "http://192.0.2.5:8642/v1", "", (API, LOCAL)),
        ({"agentApi": True, "agentApiHost": "10.0.0.7"}, OWN_API, "", (OWN_API, LOCAL)),
        ({"agentDashboardHost": EVERYWHERE, **LOGIN}, "", "http://192.0.2.5:9119", ("", LOCAL)),
        # The image serves the API always; which address has it, the published ports say.
        (DOCKER, "", "", (API, LOCAL)),
        (
            {**DOCKER, "agentPublishedBindIp": EVERYWHERE},
            "http://192.0.2.5:8642/v1", "http://192.0.2.5:9119", (API, LOCAL),
        ),
        ({**DOCKER, "agentPublishedBindIp": "10.0.0.7"}, OWN_API, "http://10.0.0.7:9119", (OWN_API, "http://10.0.0.7:9119")),
    ],
)  # fmt: skip
def test_the_outputs_lead_to_what_answers(
    given: dict[str, Any], api: str, dashboard: str, in_guest: tuple[str, str]
) -> None:
    """From another machine, or they are empty; and inside the cattle."""
    agent = cattle(**given).agent
    assert (api_url(agent, ADDRESS), dashboard_url(agent, ADDRESS)) == (api, dashboard)
    assert (api_in_guest(agent), dashboard_in_guest(agent)) == in_guest


def test_behind_a_proxy_the_dashboard_is_where_browsers_find_it() -> None:
    given = {"agentDashboardHost": EVERYWHERE, "agentDashboardPublicUrl": "http://hermes.example.org", **LOGIN}
    assert dashboard_url(cattle(**given).agent, ADDRESS) == "http://hermes.example.org"
    assert dashboard_in_guest(cattle(**given).agent) == LOCAL
