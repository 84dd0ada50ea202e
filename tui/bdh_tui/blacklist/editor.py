"""One rule, with a verdict and a preview while it is typed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from bdh_bridge.gates.blacklist_rules import OFF, parse_rule
from bdh_tui.blacklist.preview import Message, Preview, preview, problem
from bdh_tui.fields import Field
from bdh_tui.lines import LineList
from bdh_tui.text import BAD, GOOD, MUTED, SKIP, Line, clock, plain


@dataclass(frozen=True, slots=True)
class Edited:
    source: str
    comment: str = ""


class RuleEditor(ModalScreen[Edited | None]):
    """``kept`` reads the messages to try the rule on; it is called in a thread."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave"),
        Binding("ctrl+s", "accept", "Save"),
    ]

    def __init__(
        self,
        title: str,
        kept: Callable[[], Sequence[Message]],
        source: str = "",
        *,
        with_comment: bool = True,
    ) -> None:
        super().__init__()
        self._title, self._kept, self._source = title, kept, source
        self._with_comment = with_comment
        self._messages: Sequence[Message] | None = None
        self._preview: Preview | None = None
        # Kept here: a preview may be done when the dialog is being closed.
        self._verdict_line = Static(id="verdict")
        self._summary = Static(id="preview-summary")
        self._matches = LineList(self._draw)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog dialog-large"):
            yield Static(Content.styled(self._title, "bold"))
            yield Static(
                Content.styled(
                    "A piece of text, or re: and a regular expression. Case is ignored. "
                    "A prompt that holds it neither reads nor writes.",
                    MUTED,
                )
            )
            yield Field(self._source, placeholder="the rule", compact=True, id="rule")
            yield self._verdict_line
            if self._with_comment:
                yield Field(placeholder="why (optional comment)", compact=True, id="comment")
            yield self._summary
            yield self._matches
            yield Static(Content.styled("Enter or Ctrl+S: save   Escape: leave it", MUTED))

    def on_mount(self) -> None:
        self.query_one("#rule", Input).focus()
        self._try(self._source)

    @on(Input.Changed, "#rule")
    def _typed(self, event: Input.Changed) -> None:
        self._try(event.value)

    def _try(self, source: str) -> None:
        self._verdict(source.strip(), None)
        self.run_worker(self._run_preview(source.strip()), group="preview", exclusive=True)

    async def _run_preview(self, source: str) -> None:
        await asyncio.sleep(0.15)  # somebody is typing
        rule = parse_rule(source) if source else None
        if rule is None or rule.error:
            self._show(source, None)
            return
        if self._messages is None:
            self._messages = await asyncio.to_thread(self._kept)
        body = source.removeprefix(OFF).strip()
        self._show(source, await asyncio.to_thread(preview, body, self._messages))

    def _show(self, source: str, found: Preview | None) -> None:
        self._preview = found
        self._verdict(source, found)
        self._summary.update(Content.styled(found.summary if found else "", MUTED))
        self._matches.show(len(found.matches) if found else 0, cursor=0)

    def _verdict(self, source: str, found: Preview | None) -> None:
        line = Line()
        rule = parse_rule(source) if source else None
        if rule is None or (source.startswith("#") and not source.startswith(OFF)):
            line.add("Type a rule." if rule is None else "That is a comment, not a rule.", MUTED)
        elif rule.error:
            line.add(f"✗ {plain(problem(rule), 200)}", BAD)
        elif found and found.slow:
            line.add("! Dangerously slow: it runs out of time and then counts as no match", SKIP)
        else:
            line.add(
                f"✓ usable as a {'regular expression' if rule.kind == 'regex' else 'text'}", GOOD
            )
            if not rule.enabled:
                line.add(", switched off", MUTED)
        self._verdict_line.update(line.content())

    def _draw(self, index: int, width: int) -> Content:
        assert self._preview is not None
        message = self._preview.matches[index]
        line = Line().add(f" {clock(message.start_ns)}  ", MUTED)
        return line.add(plain(message.text, width)).content()

    @on(Input.Submitted)
    def action_accept(self) -> None:
        source = self.query_one("#rule", Input).value.strip()
        rule = parse_rule(source) if source else None
        if rule is None or (source.startswith("#") and not source.startswith(OFF)) or rule.error:
            self.app.bell()
            return
        comment = self.query_one("#comment", Input).value if self._with_comment else ""
        self.dismiss(Edited(source, comment.strip()))

    def action_leave(self) -> None:
        self.dismiss(None)
