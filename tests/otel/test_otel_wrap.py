"""Lines that end where the terminal does."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from bdh_otel.reader import SpanReader
from bdh_otel.tracer import LocalSpan
from bdh_otel.tree import render
from bdh_otel.wrap import columns, width_of, wrapped

RED, RESET = "\x1b[31m", "\x1b[0m"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("width", [50, 80])
def test_a_tree_keeps_its_words_and_its_rails(
    reader: SpanReader, conversation: Callable[..., LocalSpan], width: int, fold: bool
) -> None:
    conversation()
    whole = render(reader.after(0), fold=fold)
    narrow = render(reader.after(0), fold=fold, width=width, colour=True)
    lines = [plain(line) for line in narrow.splitlines()]
    assert len(lines) > len(whole.splitlines())
    assert max(map(len, lines[1:])) <= width  # the first holds ids, and is no part of the tree
    assert all(line.startswith(("• ", "│", "├─", "└─", "   ")) for line in lines[1:])

    def words(text: str) -> list[str]:
        return [word for word in text.split() if word != "│"]

    assert words(plain(narrow)) == words(whole)


def test_a_colour_goes_on_but_spares_the_rail() -> None:
    lines = list(wrapped("├─ ", "│  ", f"{RED}one two{RESET} three", 8))
    assert lines == [f"├─ {RED}one{RESET}", f"│  {RED}two{RESET}", "│  three"]


def test_a_duration_stays_with_its_unit() -> None:
    assert list(wrapped("", "", "open 1.0 s", 8)) == ["open", "1.0 s"]


def test_what_has_no_blank_or_no_room_is_left_whole() -> None:
    assert list(wrapped("", "", "unbreakable", 5)) == ["unbreakable"]
    assert list(wrapped("", " " * 30, "one two three four", 10)) == ["one two three four"]
    assert list(wrapped("", "", "one two three", 0)) == ["one two three"]


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert [columns(text) for text in ("ab", "日本", "e\u0301", f"{RED}x{RESET}")] == [2, 4, 1, 1]


def test_only_a_terminal_has_a_width() -> None:
    assert width_of(io.StringIO()) == 0
