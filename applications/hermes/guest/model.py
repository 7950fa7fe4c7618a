"""Ask the model endpoint before anything is changed: one short prompt, which proves its address, the key and the name.

The endpoint's own list of models proves none of the three: it may be open to everybody, leave out aliases, or not be
there at all. The agent takes it for a hint as well (0.20.3, hermes_cli/models.py, validate_requested_model). So the
list is read only where the prompt was refused, to say why.

Refused is what the agent could not work with: no connection, a key or a name that is not taken, another protocol. What
may pass by itself (a rate limit, a server's fault, a model that is still being loaded) is a warning: verify asks again
through the agent. As a program (HP_JOB has model.json) it ends with 75 where the guest can't ask yet.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from applications.hermes.guest.inputs import Question
from provisioning.guest.common import NO_JSON, Refusal
from provisioning.guest.trust import STORE
from provisioning.guest.typed import read
from provisioning.guest.words import command, said

CONNECT_S = 10.0
"""So long a connection is tried again: a name server or a model's machine may just be starting."""
ANSWER_S = 60.0
"""For the answer to the prompt: a local model may have to be loaded first."""
LIST_S = 10.0
POLL_S = 0.5
ANSWER_LIMIT = 4 << 20
LISTED = 20
SHORTEST_HIDDEN = 6
"""Characters: a secret that is a word of any sentence can't be found in one."""
AFTER = "after"
"""An argument: the baseline has run."""
NOT_YET = 75
"""EX_TEMPFAIL of sysexits.h: there are no certificates in the guest yet."""
ENVIRONMENT = Path("/etc/environment")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
"""In the order in which the agent reads them (0.20.3, agent/process_bootstrap.py). The first one is for all."""
_UNKNOWN_MODEL = re.compile(
    r"not found|not exist|no such|unknown model|invalid model|not a valid model|not available|not allowed|no access"
    r"|not have access|can.t access|no endpoints found",
    re.IGNORECASE,
)
_REFUSALS = frozenset({400, 401, 403, 404, 405, 422})

NOTHING_DONE = "nothing was changed"
PACKAGES_DONE = "the packages and the account are there, nothing else was changed"
NO_SETTINGS_DONE = "no setting of the agent was changed"
"""What is true of the guest when the question is asked: before baseline, after it, and at the start of configure."""

Verdict = Literal["works", "address", "key", "name", "way", "unsure"]
"""`way`: somebody refused, and it is not known whether that was the endpoint."""


@dataclass(frozen=True)
class Answer:
    """What came back: a status, the body, and the JSON in it, None where there is none."""

    status: int
    text: str
    data: Any


class NoConnection(Exception):  # noqa: N818 - read by people
    """Nobody answers there, or not as who was asked for."""


class NoAnswer(Exception):  # noqa: N818 - read by people
    """Somebody is there, and did not answer in time."""


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Each answer is one, whatever its status; so a redirection is followed by nobody, and takes no key elsewhere."""

    def http_response(self, _request: Any, response: Any) -> Any:
        return response

    def https_response(self, _request: Any, response: Any) -> Any:
        return response


def judged(answer: Answer, name: str, *, by_proxy: bool = False) -> Verdict:
    """What the answer to the prompt says of the settings. `by_proxy`: a proxy may have given it in its own name."""
    if 200 <= answer.status < 300:
        if isinstance(answer.data, dict) and "choices" in answer.data:
            return "works"
        # A page for people answers anything; an error in JSON may be the provider's behind this one.
        return "unsure" if isinstance(answer.data, dict) else "address"
    if answer.status not in _REFUSALS:
        return "unsure"
    if _names_the_model(answer, name):
        return "name"
    if answer.status in (401, 403):
        unknown = answer.status == 403 and (by_proxy or not isinstance(answer.data, dict))
        return "way" if unknown else "key"
    return "address" if answer.status in (404, 405) else "unsure"


def _names_the_model(answer: Answer, name: str) -> bool:
    error = answer.data.get("error") if isinstance(answer.data, dict) else None
    if isinstance(error, dict) and error.get("code") in ("model_not_found", "invalid_model", "model_not_available"):
        return True
    return name in answer.text and bool(_UNKNOWN_MODEL.search(answer.text))


class Endpoint:
    """An endpoint, asked as the agent asks it: with its proxy, its key and its headers."""

    def __init__(self, question: Question, secrets: dict[str, str]) -> None:
        self.question = question
        known = {**question.environment, **secrets}
        key = known.get(question.key_variable, "") if question.key_variable else ""
        # The agent's own word where there is no key (facts hermes 1).
        self._headers = {"Authorization": f"Bearer {key or 'no-key-required'}", "User-Agent": "OpenAI/Python"}
        self._headers |= {
            name: re.sub(r"\$\{(\w+)\}", lambda found: known.get(found[1], found[0]), value)
            for name, value in question.headers.items()
        }
        self._hidden = [value for value in secrets.values() if len(value) >= SHORTEST_HIDDEN]
        settings = {**_settings_of_the_machine(), **question.environment}
        self.proxy = next((settings[each] for each in PROXIES if settings.get(each)), "")
        host = urllib.parse.urlsplit(question.url).netloc
        no_proxy = {"no": settings.get("NO_PROXY") or settings.get("no_proxy") or ""}
        if self.proxy and urllib.request.proxy_bypass_environment(host, no_proxy):  # type: ignore[attr-defined]
            self.proxy = ""
        handlers: list[Any] = [_AsItIs, urllib.request.ProxyHandler(self._proxies())]
        if question.url.startswith("https:"):
            context = ssl.create_default_context()
            if question.ca_certificates:
                context.load_verify_locations(cadata=question.ca_certificates)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def _proxies(self) -> dict[str, str]:
        return {"http": self.proxy, "https": self.proxy} if self.proxy else {}

    def shown(self, text: str) -> str:
        """The endpoint's words, without a secret that it repeats."""
        for secret in self._hidden:
            text = text.replace(secret, "********")
        return said(" ".join(text.split()))

    def prompt(self) -> Answer:
        """The least that an endpoint can be asked to do. NoConnection, NoAnswer."""
        messages = [{"role": "user", "content": "Reply with the word OK."}]
        body = {"model": self.question.model, "messages": messages, "max_tokens": 16}
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                return self._ask("/chat/completions", body, ANSWER_S)
            except NoConnection:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_S)

    def names(self, base: str = "") -> list[str] | int:
        """The names in the list of models; its status where there is no list. 0: no answer."""
        try:
            answer = self._ask("/models", None, LIST_S, base)
        except (NoConnection, NoAnswer):
            return 0
        found = answer.data.get("data") if isinstance(answer.data, dict) else None
        if answer.status != 200 or not isinstance(found, list):
            return answer.status if answer.status != 200 else 0
        return [str(each.get("id")) for each in found if isinstance(each, dict)]

    def _ask(self, path: str, body: Any, timeout_s: float, base: str = "") -> Answer:
        headers = {**self._headers, "Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        url = f"{base or self.question.url}{path}"
        try:
            request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - the settings take no other
            with self._opener.open(request, timeout=timeout_s) as answer:
                status, raw = answer.status, answer.read(ANSWER_LIMIT)
        except urllib.error.URLError as error:
            raise NoConnection(str(error.reason)) from None
        except TimeoutError:
            raise NoAnswer(f"no answer within {timeout_s:g} s") from None
        except (http.client.HTTPException, OSError) as error:
            raise NoConnection(f"no HTTP: {error!r}") from None
        text = raw.decode("utf-8", "replace")
        found: Any = None
        with contextlib.suppress(*NO_JSON):
            found = json.loads(text)
        return Answer(status, text, found)


def _settings_of_the_machine() -> dict[str, str]:
    """/etc/environment, which the services read, too."""
    try:
        lines = ENVIRONMENT.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {name: value.strip("\"'") for name, _, value in pairs}


def ask_model(question: Question, secrets: dict[str, str], done: str) -> None:
    """Refusal where the agent could not work with this endpoint; in words on the standard output how it stands else.

    `secrets`: by the names of variables. `done`: what was changed in the guest before, one of *_DONE. With other models
    to fall back on, all that is wrong is a warning.
    """
    if question.skipped:
        print(f"model: not asked before the agent is there: {question.skipped}")
        return
    began = time.monotonic()
    endpoint = Endpoint(question, secrets)
    if endpoint.proxy and not endpoint.proxy.startswith(("http://", "https://")):
        print("model: not asked before the agent is there: the proxy speaks another protocol than HTTP")
        return
    try:
        verdict, words = _verdict(endpoint)
    except NoAnswer as error:
        verdict, words = "unsure", f"it takes connections, and gave {error}"
    if verdict == "works":
        print(f"model: {said(question.model)} answers after {time.monotonic() - began:.1f} s")
    elif verdict == "unsure":
        print(f"warning: the model endpoint {question.url} was asked and can't be judged: {words}")
    elif question.falls_back:
        print(f"warning: only the fallback models can work: {question.url}: {words}")
    else:
        raise Refusal(_fault(question, verdict, words, done))


def _verdict(endpoint: Endpoint) -> tuple[Verdict, str]:
    """What is wrong, and the endpoint's words about it."""
    question = endpoint.question
    try:
        answer = endpoint.prompt()
    except NoConnection as error:
        through = f" through the proxy {urllib.parse.urlsplit(endpoint.proxy).hostname}" if endpoint.proxy else ""
        return "address", f"no connection from the cattle{through} within {CONNECT_S:g} s: {said(str(error))}"
    # Of https a proxy passes on bytes that it can't read; its own refusal is no answer then, but no connection.
    proxy = urllib.parse.urlsplit(endpoint.proxy).hostname if question.url.startswith("http:") else None
    verdict = judged(answer, question.model, by_proxy=proxy is not None)
    words = f"it answered {answer.status}: {endpoint.shown(answer.text)}"
    if verdict == "name":
        listed = endpoint.names()
        return verdict, f"{words}{_listed(listed)}"
    if verdict == "way":
        who = f"the proxy {proxy}, or the endpoint" if proxy else "the endpoint, or a proxy or a firewall before it"
        return verdict, f"{words}; that may be of {who}"
    if verdict == "address":
        return _of_address(endpoint, answer, words)
    return verdict, words


def _listed(names: list[str] | int) -> str:
    """The endpoint's models in words; nothing where it has no list."""
    if isinstance(names, int) or not names:
        return ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"; it lists: {', '.join(said(name, 60) for name in sorted(names)[:LISTED])}{more}"


def _of_address(endpoint: Endpoint, answer: Answer, words: str) -> tuple[Verdict, str]:
    """Nothing is served at that path: the name may be wrong in other words, or the address."""
    url, model = endpoint.question.url, endpoint.question.model
    names = endpoint.names()
    if isinstance(names, list) and answer.status in (404, 405):
        if model in names:
            # It is the right place, and serves another protocol for this model, perhaps.
            return "unsure", f"{words}; it lists the model"
        return "name", f"{words}{_listed(names)}"
    other = url.removesuffix("/v1") if url.endswith("/v1") else f"{url}/v1"
    found = endpoint.names(other)
    if isinstance(found, list) or found in (401, 403):
        return "address", f"{words}; there are models at {other}"
    return "address", f"{words}, which no endpoint of OpenAI's protocol does"


def _fault(question: Question, verdict: Verdict, words: str, done: str) -> str:
    """Key, value, rule and remedy, as every fault of a setting."""
    key, value, rule = {
        "address": (question.url_setting, question.url, "must be a model endpoint that the cattle reaches"),
        "key": (
            question.key_setting,
            "(hidden)" if question.key_variable else "(empty)",
            "must be a key that the endpoint takes",
        ),
        "name": (question.name_setting, question.model, "must be a model of the endpoint"),
        "way": (question.url_setting, question.url, "must be a model endpoint that lets the cattle in"),
    }[verdict]
    remedy = f"correct {key} in Pulumi.{question.stack}.yaml"
    if verdict == "key" and not question.key_setting.startswith("agentProviders"):
        path = ("--path",) if "." in key else ()
        remedy = command("pulumi", "config", "set", "--stack", question.stack, "--secret", *path, key)
    if verdict == "way":
        remedy = f"look whether the way is open from the cattle; if it is, correct {question.key_setting}"
    return (
        f"{key} = {value}\n  rule: {rule} ({question.url}): {words}\n"
        f"  do:   {remedy}, then pulumi up again; {done}, and what ran still runs"
    )


def can_ask(question: Question) -> bool:
    """Whether the guest has what it takes; authorities of the settings' own do without Debian's."""
    return bool(question.skipped) or question.url.startswith("http:") or STORE.exists()


def main() -> int:
    question = read(Question, Path(os.environ["HP_JOB"], "model.json").read_text(), "model.json")
    secrets: dict[str, str] = json.loads(Path(os.environ["HP_SECRETS"]).read_text())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if not can_ask(question):
        return NOT_YET
    try:
        ask_model(question, secrets, PACKAGES_DONE if AFTER in sys.argv[1:] else NOTHING_DONE)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
