"""How a request or a task fails, in Proxmox's words."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """A refused request: HTTP ``status``, ``message`` (its first line is the reason phrase) and parameter errors.

    Inside a worker the same error ends the task, with :meth:`exit_text` as exit status.
    """

    def __init__(self, status: int, message: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = dict(errors) if errors else None

    @property
    def reason(self) -> str:
        return self.message.split("\n", 1)[0]

    def exit_text(self) -> str:
        """As PVE::Exception prints itself: what is no plain die has its status in front."""
        text = self.message if self.status == 500 else f"{self.status} {self.message}"
        if not self.errors:
            return text
        return text + "\n" + "".join(f"{key}: {text}\n" for key, text in sorted(self.errors.items()))


def die(message: str) -> ApiError:
    """A plain failure: 500 with the text as reason phrase (facts proxmox 0)."""
    return ApiError(500, message)


def denied(what: str | None = None) -> ApiError:
    """A permission failure: 403 (facts proxmox 0)."""
    return ApiError(403, f"Permission check failed ({what})" if what else "Permission check failed")


def bad_params(errors: Mapping[str, str]) -> ApiError:
    """A parameter failure: 400 with one entry per parameter (facts proxmox 0)."""
    return ApiError(400, "Parameter verification failed.", errors)


def bad_param(name: str, text: str) -> ApiError:
    return bad_params({name: text})


class TaskAbortedError(Exception):
    """The task was stopped from outside; its exit text is fixed (facts proxmox 13)."""

    def __init__(self) -> None:
        super().__init__("received interrupt")
