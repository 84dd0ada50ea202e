"""The blacklist as a table and as text; every change is saved at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static, TextArea

from bdh_bridge.gates.blacklist import resolve_blacklist
from bdh_bridge.gates.blacklist_edit import remove_rule, replace_rule, set_enabled
from bdh_bridge.gates.blacklist_file import ChangedOnDisk, NotEditable
from bdh_bridge.gates.blacklist_rules import Rule, literal_line, parse
from bdh_bridge.operator.blacklist import with_rule
from bdh_tui.blacklist.document import Document, line_of
from bdh_tui.blacklist.editor import Edited, RuleEditor
from bdh_tui.blacklist.preview import Message, hits, messages, problem
from bdh_tui.blacklist.text import Editor
from bdh_tui.dialogs import Choose, Confirm
from bdh_tui.lines import LineList
from bdh_tui.pane import Pane
from bdh_tui.text import BAD, GOOD, MUTED, SKIP, Line, age, lines, number, plain, tail
from bdh_tui.text import count as counted

#: Days over which hits are counted.
DAYS = 7


class BlacklistPane(Pane):
    title: ClassVar[str] = "Blacklist"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "add", "Add"),
        Binding("e,enter", "edit", "Edit"),
        Binding("space", "switch", "On/off"),
        Binding("d,delete", "delete", "Delete"),
        Binding("v", "view", "Text/table"),
        Binding("ctrl+s", "save_text", "Save text"),
        Binding("escape", "leave_text", "Back to table", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="blacklist")
        self._hits: dict[str, tuple[int, int]] = {}
        self._document: Document | None = None
        self._unreadable = ""
        self._at: Rule | None = None
        """The rule under the cursor, which it stays on when others put lines above it."""

    @property
    def document(self) -> Document:
        if self._document is None:
            loaded = self.bridge.loaded
            self._document = Document(resolve_blacklist(loaded.settings, loaded.paths))
        return self._document

    def compose(self) -> ComposeResult:
        yield Static(id="blacklist-head")
        with ContentSwitcher(initial="rules"):
            yield LineList(self._draw, id="rules", empty="No rules. Press a to add one.")
            yield Editor(id="rules-text", show_line_numbers=True, soft_wrap=True)
        yield Static(id="blacklist-detail")

    @property
    def lines(self) -> LineList:
        return self.query_one("#rules", LineList)

    @property
    def area(self) -> TextArea:
        return self.query_one(TextArea)

    @property
    def as_text(self) -> bool:
        return self.query_one(ContentSwitcher).current == "rules-text"

    @property
    def unsaved(self) -> bool:
        return self.as_text and self.area.text != _area_text(self.document.text)

    def first_focus(self) -> Widget:
        return self.area if self.as_text else self.lines

    def on_mount(self) -> None:
        self.load()
        self.set_interval(1.0, self._look_at_disk)
        self.set_interval(10.0, self._count_hits)

    def entered(self) -> None:
        super().entered()
        self._count_hits()

    # Reading

    def load(self) -> None:
        def work() -> str:
            try:
                self.document.load()
            except (OSError, NotEditable) as error:
                return str(error)
            return ""

        def then(trouble: str) -> None:
            self._unreadable = trouble
            self.show_document()

        self.in_thread(work, then, "document")

    def show_document(self) -> None:
        rules, at = self.document.rules, self._at
        same = [n for n, rule in enumerate(rules) if at is not None and rule.source == at.source]
        line = at.line if at else 0
        place = min(same, key=lambda n: abs(rules[n].line - line)) if same else None
        self.lines.show(len(rules), cursor=place)
        self._at = rules[self.lines.cursor] if rules else None
        if self.area.text != _area_text(self.document.text):
            self.area.text = _area_text(self.document.text)
        self._head()
        self._detail()

    def _look_at_disk(self) -> None:
        """Take in what other programs save, unless that would cost what was typed here."""
        if not self.display:
            return

        def work() -> bool:
            try:
                return self.document.changed_on_disk()
            except OSError:
                return True

        def then(changed: bool) -> None:
            if changed and not self.unsaved:
                self.load()
            self._head(changed and self.unsaved)

        self.in_thread(work, then, "disk")

    def _count_hits(self) -> None:
        if not self.display:
            return
        reader = self.bridge.history.reader
        since = time.time_ns() - DAYS * 86_400 * 1_000_000_000

        def then(found: dict[str, tuple[int, int]]) -> None:
            self._hits = found
            self.lines.refresh()
            self._detail()

        self.in_thread(lambda: hits(reader, since), then, "hits")

    # Drawing

    def _head(self, changed: bool = False) -> None:
        rules = self.document.rules
        line = Line().add(f" {tail(plain(str(self.document.path), 500), 70)}", MUTED)
        if self._unreadable:
            line.add(f"\n ! {plain(self._unreadable, 200)}", BAD)
        else:
            on = sum(rule.usable for rule in rules)
            broken = sum(rule.enabled and bool(rule.error) for rule in rules)
            line.add(f"\n {number(on)} in use", GOOD if on else MUTED)
            line.add(f" · {sum(not rule.enabled for rule in rules)} off", MUTED)
            if broken:
                line.add(f" · {broken} can't be used", BAD)
            line.add(f" · hits of the last {DAYS} days", MUTED)
            if changed:
                line.add("   ! changed on disk by another program; saving will ask", SKIP)
            elif self.unsaved:
                line.add("   not saved: Ctrl+S", SKIP)
        self.query_one("#blacklist-head", Static).update(line.content())

    def _draw(self, index: int, width: int) -> Content:
        rule = self.document.rules[index]
        mark, style = _mark(rule)
        hit = self._hits.get(rule.source, (0, 0))[0]
        line = Line().add(f" {mark} ", style).cell(str(rule.line), 5, MUTED, "right").add("  ")
        line.cell("regex" if rule.kind == "regex" else "text", 6, MUTED)
        line.cell(number(hit) if hit else "·", 6, "" if hit else MUTED, "right").add("  ")
        pattern = width - line.width - (30 if width >= 100 else 0)
        line.cell(plain(rule.pattern, 200), pattern, "" if rule.usable else MUTED)
        if width >= 100:
            told = problem(rule) if rule.error else rule.comment
            line.cell(plain(told, 60), 30, BAD if rule.error else MUTED)
        return line.content()

    @on(LineList.Highlighted)
    def _detail(self) -> None:
        line = Line()
        if self.as_text:
            broken = [rule for rule in parse(self.area.text) if rule.enabled and rule.error]
            if broken:
                first = broken[0]
                line.add(f" ✗ line {first.line}: {plain(problem(first), 150)}", BAD)
                line.add(f" (and {len(broken) - 1} more)" if len(broken) > 1 else "", MUTED)
            else:
                line.add(" ✓ every rule can be used", GOOD)
        elif self.document.rules:
            rule = self._at = self.document.rules[self.lines.cursor]
            line.add(f" line {rule.line}: ", MUTED).add(lines(rule.source, 300))
            if rule.error:
                line.add(f"\n ✗ {plain(problem(rule), 150)}", BAD)
            if rule.comment:
                line.add(f"\n # {plain(rule.comment, 200)}", MUTED)
            count, last = self._hits.get(rule.source, (0, 0))
            if count:
                ago = age(time.time() - last / 1e9)
                line.add(f"\n stopped {counted(count, 'turn')}, last {ago} ago", MUTED)
        self.query_one("#blacklist-detail", Static).update(line.content())

    # Changing

    def action_add(self) -> None:
        self.add("")

    def add(self, source: str, title: str = "Add a rule") -> None:
        """Ask for a rule, beginning with ``source``, and add it."""

        def done(edited: Edited | None) -> None:
            if edited is not None:
                self._change(
                    lambda text: with_rule(text, edited.source, edited.comment),
                    "Added.",
                    added=edited.source,
                )

        self.app.push_screen(RuleEditor(title, self._kept, source), done)

    def add_message(self, message: str) -> None:
        """Offer the rule that blocks prompts like ``message``."""
        try:
            source = literal_line(message)
        except ValueError:
            self.notify("The store keeps no text of this message.", severity="warning")
            return
        self.add(source, "Blacklist prompts like this one")

    def action_edit(self) -> None:
        rule = self._current()
        if rule is None:
            return

        def done(edited: Edited | None) -> None:
            if edited is not None and edited.source != rule.source:
                self._change(
                    lambda text: replace_rule(text, line_of(rule, text), edited.source), "Changed."
                )

        editor = RuleEditor(f"Edit line {rule.line}", self._kept, rule.source, with_comment=False)
        self.app.push_screen(editor, done)

    def action_switch(self) -> None:
        rule = self._current()
        if rule is not None:
            word = "off" if rule.enabled else "on"
            self._change(
                lambda text: set_enabled(text, line_of(rule, text), not rule.enabled),
                f"Switched {word}.",
            )

    def action_delete(self) -> None:
        rule = self._current()
        if rule is None:
            return

        def done(yes: bool | None) -> None:
            if yes:
                self._change(lambda text: remove_rule(text, line_of(rule, text)), "Deleted.")

        self.app.push_screen(Confirm("Delete this rule?", plain(rule.source, 300)), done)

    def _current(self) -> Rule | None:
        if self.as_text or not self.document.rules:
            return None
        return self.document.rules[self.lines.cursor]

    def _change(self, change: Callable[[str], str], said: str, *, added: str = "") -> None:
        """Change one rule; whatever else stands in the file by now stays as it is."""
        try:
            self.document.edit(change)
        except (OSError, NotEditable, ChangedOnDisk, IndexError, ValueError) as error:
            self.notify(f"Not saved: {error}", severity="error", markup=False)
            return
        self.show_document()
        unused = self._select_added(added) if added else ""
        if unused:
            self.notify(f"{said} It is not used: {unused}", severity="warning", markup=False)
        else:
            self.notify(f"{said} It holds from the next message on.")

    def _select_added(self, source: str) -> str:
        """Put the cursor on the last rule that reads so. Returns why it is not used."""
        rules = self.document.rules
        place = next((n for n in reversed(range(len(rules))) if rules[n].source == source), None)
        if place is None:
            self.lines.select(len(rules) - 1)
            return "the file holds more rules than are looked at"
        self.lines.select(place)
        return rules[place].error

    def _save(self, text: str, said: str) -> None:
        try:
            self.document.save(text)
        except ChangedOnDisk:
            self._ask_about_conflict(text, said)
            return
        except (OSError, UnicodeEncodeError) as error:
            self.notify(f"Not saved: {error}", severity="error", markup=False)
            return
        self.notify(f"{said} It holds from the next message on.")
        self.show_document()

    def _ask_about_conflict(self, text: str, said: str) -> None:
        """Another program saved the file meanwhile: show what differs, lose nothing."""
        try:
            difference = self.document.difference(text)
        except (OSError, NotEditable) as error:
            self.notify(f"Not saved: {error}", severity="error", markup=False)
            return
        question = "The file was changed by another program. What differs (- on disk, + yours):"
        choices: list[str | Content] = [
            "Leave it for now: nothing is saved",
            "Take the file's: what was changed here is dropped",
            "Save mine: the file's text is kept as .bak",
        ]

        def done(choice: int | None) -> None:
            if choice == 1:
                self.load()
            elif choice == 2:
                try:
                    self.document.overwrite(text)
                except (OSError, NotEditable, UnicodeEncodeError) as error:
                    self.notify(f"Not saved: {error}", severity="error", markup=False)
                    return
                self.notify(said)
                self.show_document()

        detail = lines(difference, 4_000) or "(nothing but line ends)"
        self.app.push_screen(Choose(f"{question}\n\n{detail}", choices), done)

    def _kept(self) -> list[Message]:
        return messages(self.bridge.history.reader)

    # Text

    def action_view(self) -> None:
        switcher = self.query_one(ContentSwitcher)
        switcher.current = "rules" if self.as_text else "rules-text"
        self.take_focus(self.first_focus())
        self._head()
        self._detail()

    def action_leave_text(self) -> None:
        if not self.as_text:
            return
        if not self.unsaved:
            self.action_view()
            return

        def done(yes: bool | None) -> None:
            if yes:
                self.area.text = _area_text(self.document.text)
                self.action_view()

        self.app.push_screen(Confirm("Drop what was typed?"), done)

    def action_save_text(self) -> None:
        if self.as_text:
            self._save(_with_ends(self.area.text, self.document.text), "Saved.")

    @on(TextArea.Changed)
    def _text_changed(self) -> None:
        self._head()
        self._detail()

    @on(LineList.Activated)
    def _edit_activated(self) -> None:
        self.action_edit()


def _mark(rule: Rule) -> tuple[str, str]:
    if not rule.enabled:
        return "○", MUTED
    return ("✗", BAD) if rule.error else ("●", GOOD)


def _area_text(text: str) -> str:
    """As the text area holds it: one kind of line end."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _with_ends(text: str, like: str) -> str:
    """The line ends that the file had."""
    return text.replace("\n", "\r\n") if "\r\n" in like else text
