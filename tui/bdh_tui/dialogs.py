"""Small questions on top of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from bdh_tui.fields import Field


class Confirm(ModalScreen[bool]):
    """A yes or no. With ``phrase``, that word has to be typed for a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "No"),
        Binding("y", "yes", "Yes"),
    ]

    def __init__(self, question: str, detail: str = "", *, phrase: str = "") -> None:
        super().__init__()
        self._question, self._detail, self._phrase = question, detail, phrase

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._question, "bold"))
            if self._detail:
                yield Static(Content(self._detail), classes="dialog-detail")
            if self._phrase:
                yield Static(Content(f"Type {self._phrase} and press Enter. Escape: leave it."))
                yield Field(compact=True)
            else:
                yield Static(Content.assemble(("y", "$accent bold"), " yes   ",
                                              ("n", "$accent bold"), " no"))  # fmt: skip

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    def action_yes(self) -> None:
        if not self._phrase:
            self.dismiss(True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() == self._phrase:
            self.dismiss(True)
        else:
            event.input.value = ""


class Ask(ModalScreen[str | None]):
    """One line of text; None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, question: str, value: str = "", detail: str = "") -> None:
        super().__init__()
        self._question, self._value, self._detail = question, value, detail

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._question, "bold"))
            yield Field(self._value, compact=True, select_on_focus=False)
            if self._detail:
                yield Static(Content(self._detail), classes="dialog-detail")

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Choose(ModalScreen[int | None]):
    """One of several; None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, question: str, options: Sequence[str | Content]) -> None:
        super().__init__()
        self._question, self._options = question, options

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._question, "bold"))
            yield OptionList(
                *(
                    Option(Content(option) if isinstance(option, str) else option)
                    for option in self._options
                ),
                compact=True,
            )

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class Show(ModalScreen[None]):
    """Text to read, as long as it may be."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "leave", "Close")]

    def __init__(self, title: str, text: str | Content) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        from textual.containers import VerticalScroll

        with Vertical(classes="dialog dialog-large"):
            yield Static(Content.styled(self._title, "bold"))
            with VerticalScroll():
                text = self._text
                yield Static(Content(text) if isinstance(text, str) else text)

    def action_leave(self) -> None:
        self.dismiss(None)
