"""Titles, file names and files of new notes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bdh_bridge.graph.embedded import neurogenesis, vault
from bdh_bridge.graph.embedded.neurogenesis import render, slug, title_from, write_file


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("Why two antennas?", "Why two antennas?"),
        ("  Remember this:\n  the mast is 12 m. And more. ", "Remember this: the mast is 12 m"),
        ("# Heading `code` [[link]]", "Heading code link"),
        ("\x1b[31mred\u202e", "31mred"),
        ("###", "Untitled note"),
        ("日本語の質問。次の文", "日本語の質問。次の文"),
    ],
)
def test_title_is_the_cleaned_first_sentence(query: str, title: str) -> None:
    assert title_from(query) == title


def test_a_query_of_marks_alone_takes_the_answers_title() -> None:
    assert title_from("###", "The mast is tall. It sways.") == "The mast is tall"


def test_a_long_title_is_cut_at_a_word() -> None:
    title = title_from("word " * 100)
    assert len(title) <= neurogenesis.MAX_TITLE_CHARS
    assert title.endswith("word…")


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Why two antennas?", "why-two-antennas"),
        ("../../etc/passwd", "etc-passwd"),
        ("日本語の質問", "日本語の質問"),
        ("Perché è così", "perché-è-così"),
        ("???", "note"),
        ("CON", "con-note"),
        ("🌱", "note"),
    ],
)
def test_slug_is_a_safe_file_name(title: str, expected: str) -> None:
    assert slug(title) == expected


def test_slug_is_bounded_in_bytes() -> None:
    name = slug("語" * 300)
    assert len(name.encode()) <= 120
    assert set(name) == {"語"}


@pytest.mark.parametrize(
    "title", ['Says "hi": #1 \\ back', "- dash", "---", "null", "{a: b}", "日本"]
)
def test_what_is_rendered_reads_back(title: str) -> None:
    content = render(title, "---\nThe text.\n```", [("a/b", "B [x]"), ("odd|id", "Odd")], 0.0)
    note = vault.parse(content, "stem")
    assert note.title == title
    assert note.body.startswith("---\nThe text.")


def test_sources_become_links() -> None:
    content = render("T", "Text.", [("a/b", "B [x]"), ("odd|id", "Odd"), ("c", "C")], 0.0)
    assert vault.parse(content, "stem").links == ("a/b", "c")
    assert '  - "odd|id"' in content
    assert "created: 1970-01-01T00:00:00+00:00" in content


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    assert write_file(tmp_path, "concepts/a", "mine")
    assert not write_file(tmp_path, "concepts/a", "other")
    folder = tmp_path / "concepts"
    assert (folder / "a.md").read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == ["a.md"]
    assert (folder / "a.md").stat().st_mode & 0o077 == 0


def test_files_are_written_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what exFAT answers

    monkeypatch.setattr(os, "link", refuse)
    assert write_file(tmp_path, "a", "mine")
    assert not write_file(tmp_path, "a", "other")
    assert (tmp_path / "a.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["a.md"]
