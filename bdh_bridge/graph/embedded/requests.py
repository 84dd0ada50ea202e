"""What a query request may say: checked once, so that nothing behind can fail on it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

#: The id of the one vault that a server has.
VAULT_ID = "default"


class BadRequest(Exception):
    """The request can't be served; ``body`` is the JSON answer."""

    def __init__(self, error: str, status: int = 400, **more: Any) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, **more}


@dataclass(frozen=True, slots=True)
class QueryRequest:
    query: str
    user_prompt: str
    source: str
    learn: bool
    respond: bool
    digest: bytes
    """SHA-256 of the request as sent: what an idempotency key is bound to."""

    @classmethod
    def of(cls, body: dict[str, Any]) -> QueryRequest:
        """Check a request's body. Raises: BadRequest."""
        query = _text(body, "query")
        if not query.strip():
            raise BadRequest('Missing "query" field')
        check_vault(body.get("vault_id"))
        return cls(
            query,
            _text(body, "user_prompt"),
            _text(body, "source"),
            # Only JSON false switches off, as on the graph harness: 0 and "false" learn.
            body.get("learn") is not False,
            body.get("respond") is not False,
            hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest(),
        )


def parse_object(raw: bytes) -> dict[str, Any]:
    """A request body as a JSON object. Raises: BadRequest."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:  # ValueError: broken UTF-8 and huge numbers too
        raise BadRequest("Invalid JSON body") from error
    if not isinstance(body, dict):
        raise BadRequest("Invalid JSON body", detail="The body must be a JSON object")
    return body


def check_vault(vault_id: object) -> None:
    """None and "" mean the default vault. Raises: BadRequest."""
    if vault_id is None or vault_id in ("", VAULT_ID):
        return
    if not isinstance(vault_id, str):
        raise BadRequest('Field "vault_id" must be a string')
    shown = vault_id[:128].encode(errors="replace").decode()
    raise BadRequest(f"Unknown vault '{shown}'", available_vaults=[VAULT_ID])


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise BadRequest(f'Field "{name}" must be a string, not {kind}')
    # JSON can spell half a surrogate pair, which neither SQLite nor a file can hold.
    return value.encode(errors="replace").decode()
