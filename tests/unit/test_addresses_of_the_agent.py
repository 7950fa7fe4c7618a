"""The outputs `api` and `dashboard`: where each answers, as it is typed into a browser."""

from __future__ import annotations

from typing import Any

import pytest

from components.cattle import api_url, dashboard_url
from tests.settings import cattle

ADDRESS = "192.0.2.5"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - a value
LOGIN = {"agentDashboardPassword": "long enough words"}
DOCKER = {"agentMode": "docker", "agentImage": f"example.org/hermes:v1@sha256:{'0' * 64}", **LOGIN}


@pytest.mark.parametrize(
    ("given", "api", "dashboard"),
    [
        ({}, "", "http://127.0.0.1:9119"),
        ({"agentDashboard": False}, "", ""),
        ({"agentApi": True}, "http://127.0.0.1:8642/v1", "http://127.0.0.1:9119"),
        ({"agentApi": True, "agentApiHost": "::1", "agentDashboardHost": "::1"}, "http://[::1]:8642/v1", "http://[::1]:9119"),
        ({"agentApi": True, "agentApiHost": EVERYWHERE}, "http://192.0.2.5:8642/v1", "http://127.0.0.1:9119"),
        ({"agentApi": True, "agentApiHost": "::"}, "http://192.0.2.5:8642/v1", "http://127.0.0.1:9119"),
        ({"agentApi": True, "agentApiHost": "10.0.0.7"}, "http://10.0.0.7:8642/v1", "http://127.0.0.1:9119"),
        ({"agentDashboardHost": EVERYWHERE, **LOGIN}, "", "http://192.0.2.5:9119"),
        # The image serves the API always; which address has it, the published ports say.
        (DOCKER, "http://127.0.0.1:8642/v1", "http://127.0.0.1:9119"),
        ({**DOCKER, "agentPublishedBindIp": EVERYWHERE}, "http://192.0.2.5:8642/v1", "http://192.0.2.5:9119"),
        ({**DOCKER, "agentPublishedBindIp": "10.0.0.7"}, "http://10.0.0.7:8642/v1", "http://10.0.0.7:9119"),
    ],
)  # fmt: skip
def test_the_outputs_lead_to_what_answers(given: dict[str, Any], api: str, dashboard: str) -> None:
    agent = cattle(**given).agent
    assert (api_url(agent, ADDRESS), dashboard_url(agent, ADDRESS)) == (api, dashboard)


def test_behind_a_proxy_the_dashboard_is_where_browsers_find_it() -> None:
    given = {"agentDashboardHost": EVERYWHERE, "agentDashboardPublicUrl": "http://hermes.example.org", **LOGIN}
    assert dashboard_url(cattle(**given).agent, ADDRESS) == "http://hermes.example.org"
