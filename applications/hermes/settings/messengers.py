"""Messengers by which people talk to the agent.

The forms: hermes_cli/web_server.py of 0.19.0 and 0.20.3. The variables: gateway/config.py and gateway/authz_mixin.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr

from applications.hermes.settings.passed_on import Variable
from proxmox.errors import Fault
from settings.kinds import for_env, matches, matching, secret
from settings.section import Section, rule, setting


def _token(pattern: str, rule: str, remedy: str) -> AfterValidator:
    check = matching(pattern, rule, remedy)
    return secret(lambda value: for_env(check(value)))


def _texts(value: object) -> object:
    """Numbers are meant as texts: YAML made them of `- 1234`."""
    return [str(item) if isinstance(item, int) else item for item in value] if isinstance(value, list) else value


_SHOWN_THERE = "the messenger shows it in a user's profile"
NumericUsers = Annotated[
    list[Annotated[str, matches(r"\d+", "must be the numeric ids of users", _SHOWN_THERE)]], BeforeValidator(_texts)
]
SlackUsers = list[Annotated[str, matches(r"[UW][A-Z0-9]{2,}", "must be the member ids of users, U...", _SHOWN_THERE)]]


class MessengerSettings(Section):
    """Tokens, and who may talk to the agent. All of them ask for messages: no port is opened."""

    telegram_token: Annotated[
        SecretStr,
        _token(
            r"\d+:[A-Za-z0-9_-]{30,}",
            "must be a whole token of a Telegram bot",
            "BotFather prints it: 123456789:ABC...",
        ),
        Variable("TELEGRAM_BOT_TOKEN"),
    ] = setting(
        "agentTelegramToken",
        "",
        "The token of a Telegram bot. The agent polls Telegram, so no port is open.",
    )
    telegram_allowed_users: Annotated[NumericUsers, Variable("TELEGRAM_ALLOWED_USERS")] = setting(
        "agentTelegramAllowedUsers",
        [],
        "Who may talk to the agent by Telegram: numeric user ids. Empty: nobody.",
    )
    discord_token: Annotated[
        SecretStr,
        _token(
            r"[A-Za-z0-9_.-]{50,}",
            "must be a whole token of a Discord bot",
            "the Developer Portal shows it once: Bot, Reset Token",
        ),
        Variable("DISCORD_BOT_TOKEN"),
    ] = setting("agentDiscordToken", "", "The token of a Discord bot.")
    discord_allowed_users: Annotated[NumericUsers, Variable("DISCORD_ALLOWED_USERS")] = setting(
        "agentDiscordAllowedUsers", [], "Who may talk to the agent by Discord: numeric user ids. Empty: nobody."
    )
    slack_bot_token: Annotated[
        SecretStr,
        _token(r"xoxb-\S+", "must be a bot token of Slack, xoxb-...", "OAuth & Permissions of the app shows it"),
        Variable("SLACK_BOT_TOKEN"),
    ] = setting("agentSlackBotToken", "", "The bot token of a Slack app, xoxb-..., with agentSlackAppToken.")
    slack_app_token: Annotated[
        SecretStr,
        _token(r"xapp-\S+", "must be an app-level token of Slack, xapp-...", "Basic Information of the app makes one"),
        Variable("SLACK_APP_TOKEN"),
    ] = setting(
        "agentSlackAppToken",
        "",
        "The app-level token of the same Slack app, xapp-..., for its socket mode: no port is open.",
    )
    slack_allowed_users: Annotated[SlackUsers, Variable("SLACK_ALLOWED_USERS")] = setting(
        "agentSlackAllowedUsers", [], "Who may talk to the agent by Slack: member ids, U.... Empty: nobody."
    )

    @rule
    def _slack_needs_both(self) -> Iterator[Fault]:
        # Socket mode, which needs no open port, takes both (plugins/platforms/slack).
        if bool(self.slack_bot_token) != bool(self.slack_app_token):
            text = "Slack needs agentSlackBotToken and agentSlackAppToken"
            yield self.fault("slack_app_token", text, "set both, or none")
