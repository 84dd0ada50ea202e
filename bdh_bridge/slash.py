"""``/bdh`` in any chat: how things stand, why the last turn went as it did, pause, resume.

What changes something or tells of contents is for a configured admin and the local terminal. In
a group even they are told no contents: everybody reads along.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bdh_bridge.caller import Caller, home_of, identify, session_of

if TYPE_CHECKING:
    from bdh_bridge.bridge import Bridge
    from bdh_otel.reader import StoredSpan

log = logging.getLogger(__name__)

NAME = "bdh"
HINT = "status | explain last | pause [30m] [all] | resume [all] | blacklist <text> | outbox"
REFUSED = "/bdh is for the admins whom Hermes' configuration names (allow_admin_from)."
#: Seconds for an answer; everything below has shorter bounds of its own.
SECONDS = 20.0
_GRAPH_SECONDS = 3.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_AGE = re.compile(r"(\d{1,6})([smhd])")


class SlashCommand:
    """The handler that is registered with the host."""

    def __init__(self, bridge: Callable[[Path | None], Bridge | None]) -> None:
        """``bridge`` gives the one of a home (None: of the current one), None where it has none."""
        self._find_bridge = bridge
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    async def run(self, arguments: str = "") -> str:
        """Never raises; the event loop only waits."""
        try:
            caller = identify(NAME, arguments)
            refused = _refused(caller, arguments)
            if refused is not None:
                return refused
            # The host's choice of a home is in the context, as is who asks.
            context = contextvars.copy_context()
            work = asyncio.get_running_loop().run_in_executor(
                self._pool(), context.run, self.answer, arguments, caller
            )
            return await asyncio.wait_for(work, SECONDS)
        except TimeoutError:
            return "That takes too long; try bdh-bridge on the machine itself."
        except Exception:
            log.warning("[bdh-bridge] /%s failed", NAME, exc_info=True)
            return "That went wrong; the log says how."

    def _pool(self) -> ThreadPoolExecutor:
        """Threads of its own: the host's may all be busy with turns. A fork leaves them behind."""
        pid = os.getpid()
        if self._threads is None or self._threads[0] != pid:
            self._threads = pid, ThreadPoolExecutor(2, thread_name_prefix="bdh-slash")
        return self._threads[1]

    def answer(self, arguments: str, caller: Caller) -> str:
        """What ``caller`` is told. Blocks; may raise."""
        word, _, rest = arguments.strip().partition(" ")
        action = _ACTIONS.get(word.lower() or "status")
        if action is None:
            return f"Usage: /{NAME} {HINT}"
        bridge = self._find_bridge(home_of(caller))
        if bridge is None:
            return "The bridge is not enabled here."
        return action(bridge, rest.strip(), caller)


def _status(bridge: Bridge, rest: str, caller: Caller) -> str:
    from bdh_bridge.operator.lines import overview_lines
    from bdh_bridge.operator.overview import look

    if not caller.trusted:
        settings, state = bridge.settings, bridge.state
        if not settings.enabled:
            return "The bridge is switched off."
        paused = state.paused(session_of(caller))
        return "The bridge is paused here." if paused else "The bridge is on."
    seen = look(bridge.loaded, graph_seconds=_GRAPH_SECONDS)
    lines = overview_lines(seen)
    if not caller.private:  # no addresses, paths and ids
        lines = [line for line in lines if line[0] not in ("graph", "problem", "paused")]
        lines.append(("graph", "down" if seen.graph_error else "up"))
    return "\n".join(f"{heading}: {text}" for heading, text in lines)


def _explain(bridge: Bridge, rest: str, caller: Caller) -> str:
    from bdh_otel.reader import SpanReader

    if rest not in ("", "last"):
        return f"Usage: /{NAME} explain last"
    session = session_of(caller)
    if not session and caller.role != "operator":
        return "This chat has no session yet."
    reader = SpanReader(bridge.loaded.paths.spans)
    try:
        bridge.tracer.flush(1.0)
        turns = reader.turns(1, session=session or None)
        if not turns:
            return "No turn of this session is on record yet."
        spans = reader.trace(turns[0].root.trace_id)
    except FileNotFoundError:
        return "No turn is on record yet."
    finally:
        reader.close()
    return _explained(spans if caller.private else [_without_contents(s) for s in spans])


def _pause(bridge: Bridge, rest: str, caller: Caller) -> str:
    words = rest.lower().split()
    scope = _scope(words, caller)
    ages = [word for word in words if word != "all"]
    match = _AGE.fullmatch(ages[0]) if len(ages) == 1 else None
    if ages and match is None:
        return f"Usage: /{NAME} pause [30m] [all]"
    if not scope:
        return f"This chat has no session yet; /{NAME} pause all pauses everything."
    seconds = float(match[1]) * _UNITS[match[2]] if match else None
    if seconds is not None and seconds <= 0:
        return f"Usage: /{NAME} pause [30m] [all]"
    bridge.state.pause(scope, seconds)
    where = "everywhere" if scope == "all" else "in this session"
    until = f"for {match[0]}" if match else f"until /{NAME} resume{_all(scope)}"
    return f"Paused {where} {until}: nothing is read from the graph, nothing is learned."


def _resume(bridge: Bridge, rest: str, caller: Caller) -> str:
    words = rest.lower().split()
    if set(words) - {"all"}:
        return f"Usage: /{NAME} resume [all]"
    scope = _scope(words, caller)
    state = bridge.state
    ended = bool(scope) and state.resume(scope)
    if scope != "all" and any(pause.scope == "all" for pause in state.pauses()):
        return f"Everything is paused; to end that: /{NAME} resume all"
    if ended:
        return "The bridge is on again " + ("everywhere." if scope == "all" else "here.")
    return "It was not paused."


def _blacklist(bridge: Bridge, rest: str, caller: Caller) -> str:
    from bdh_bridge.gates.blacklist import resolve_blacklist
    from bdh_bridge.gates.blacklist_file import edit
    from bdh_bridge.gates.blacklist_rules import literal_line, parse
    from bdh_bridge.operator.blacklist import with_rule

    if not rest:
        return f"Usage: /{NAME} blacklist <text>"
    line = literal_line(rest)
    loaded = bridge.loaded

    def change(text: str) -> str:
        known = any(rule.source == line and rule.enabled for rule in parse(text))
        return text if known else with_rule(text, line)

    edit(resolve_blacklist(loaded.settings, loaded.paths), change)
    return "Prompts that hold this text are kept out of the graph from the next message on."


def _outbox(bridge: Bridge, rest: str, caller: Caller) -> str:
    from bdh_bridge.operator.lines import outbox_line
    from bdh_bridge.operator.overview import look

    seen = look(bridge.loaded, graph_seconds=0)
    text = f"outbox: {outbox_line(seen)}\nworker: {seen.worker}"
    undecided = seen.outbox.get("quarantined", 0)
    if undecided:
        text += f"\n{undecided} need a decision: bdh-bridge outbox list --state quarantined"
    problems = seen.problems if caller.private else []
    return "\n".join([text, *(f"problem: {problem}" for problem in problems)])


def _scope(words: list[str], caller: Caller) -> str:
    return "all" if "all" in words else session_of(caller)


_ACTIONS: dict[str, Callable[[Bridge, str, Caller], str]] = {
    "status": _status,
    "explain": _explain,
    "pause": _pause,
    "resume": _resume,
    "blacklist": _blacklist,
    "outbox": _outbox,
}


def _refused(caller: Caller, arguments: str) -> str | None:
    """Why nothing is done; None if ``caller`` may. Costs nothing: anybody can ask it."""
    if caller.trusted:
        return None
    # Whom the agent talks with in private may know whether it listens for the graph.
    words = arguments.lower().split()
    if caller.role == "user" and caller.private and words in ([], ["status"]):
        return None
    return REFUSED


def _all(scope: str) -> str:
    return " all" if scope == "all" else ""


def _explained(spans: list[StoredSpan]) -> str:
    from bdh_bridge.operator.explain import explain

    return "\n".join(f"{one.mark} {one.subject}: {one.text}" for one in explain(spans))


def _without_contents(span: StoredSpan) -> StoredSpan:
    from bdh_otel.attributes import TABLE

    kept = {
        name: value
        for name, value in span.attributes.items()
        if name in TABLE and TABLE[name].privacy == "exportable"
    }
    return replace(span, attributes=kept, status_message=None)
