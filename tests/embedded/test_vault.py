"""Reading Markdown as people and Obsidian write it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bdh_bridge.graph.embedded import vault
from bdh_bridge.graph.embedded.vault import UnreadableNote, parse


def ids(root: Path) -> set[str]:
    return {file.id for file in vault.scan(root, [])}


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: Plain words\n---\nBody", "Plain words"),
        ('---\ntitle: "Quoted: with colon"\n---\nBody', "Quoted: with colon"),
        ("---\ntags: [a, b]\ntitle: 2024\n---\nBody", "2024"),
        ("---\ntitle: Yes\n---\nBody", "Yes"),
        ("---\ntitle: È così\n---\nBody", "È così"),
        ("---\ntitle: {{title}} [draft\n---\nBody", "{{title}} [draft"),
        ("---\ntitle: >-\n  folded\n  title\n---\nBody", "folded title"),
        ("---\ntitle: ''\n---\nBody", "stem"),
        ("---\ntags: x\n---\nBody", "stem"),
        ("---\ntitle: Esc \\e[31m\x1b[31m\u202egone\n---\nBody", "Esc \\e[31m [31m gone"),
        ("Body", "stem"),
    ],
)
def test_title_is_the_frontmatters_or_the_stem(text: str, title: str) -> None:
    note = parse(text, "stem")
    assert note.title == title
    assert note.body == "Body"


def test_a_title_is_always_printable_and_encodable() -> None:
    line = vault.clean_line("a\ud800\x9b\u2066\tb\n\x00c")
    assert line == "a b c"


def test_a_rule_at_the_top_is_no_frontmatter() -> None:
    assert parse("---\n\nA letter.\n", "stem").body == "---\n\nA letter."


def test_links_lose_alias_heading_and_extension() -> None:
    text = "[[A]] [[B|alias]] [[C#heading]] [[D.md]] ![[E]] | [[F\\|in a table]] | [[folder/G]]"
    assert parse(text, "x").links == ("A", "B", "C", "D", "E", "F", "folder/G")


def test_embedded_files_and_links_within_the_note_are_no_edges() -> None:
    assert parse("![[image.png]] ![[song.mp3]] [[#heading]] [[ ]] [[]] [a](b.md)", "x").links == ()
    assert parse("[[v1.2]]", "x").links == ("v1.2",)


def test_links_in_code_are_no_edges() -> None:
    text = (
        "`[[inline]]` ``[[double ` tick]]`` [[real]] ` [[unclosed]]\n"
        "```python\n[[fenced]]\n~~~\n[[still fenced]]\n```\n[[after]]\n"
        "~~~\n[[tilde]]\n~~~\n    \n[[end]]\n````\n[[never closed]]"
    )
    assert parse(text, "x").links == ("real", "unclosed", "after", "end")


@pytest.mark.parametrize(
    "text", ["`" * 500_000, "[[" * 250_000, "---\n" * 100_000, "` `` " * 100_000]
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    started = time.process_time()
    parse(text, "x")
    assert time.process_time() - started < 20  # quadratic would be minutes


def test_bom_crlf_and_broken_utf8_are_read(tmp_path: Path) -> None:
    (tmp_path / "w.md").write_bytes(b"\xef\xbb\xbf---\r\ntitle: Windows\r\n---\r\n[[A]]\r\ncaf\xe9")
    (file,) = vault.scan(tmp_path, [])
    note = vault.read(file)
    assert (note.title, note.links, note.body) == ("Windows", ("A",), "[[A]]\ncaf\ufffd")


def test_only_the_beginning_of_a_huge_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "huge.md").write_text("word " * 1_000_000)
    (file,) = vault.scan(tmp_path, [])
    assert len(vault.read(file).body) == vault.MAX_FILE_BYTES


def test_binary_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "junk.md").write_bytes(os.urandom(64) + b"\0" * 64)
    (file,) = vault.scan(tmp_path, [])
    with pytest.raises(UnreadableNote, match="binary"):
        vault.read(file)


def test_scan_finds_notes_whatever_their_names(tmp_path: Path) -> None:
    for name in ("With spaces.md", "日本語/メモ.md", "UPPER.MD", "a.b.md", "emoji 🌱.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert ids(tmp_path) == {"With spaces", "日本語/メモ", "UPPER", "a.b", "emoji 🌱"}


def test_scan_leaves_out_what_is_no_note(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("x")
    (tmp_path / "picture.png").write_bytes(b"x")
    (tmp_path / ".obsidian").mkdir()
    (tmp_path / ".obsidian" / "hidden.md").write_text("x")
    (tmp_path / ".hidden.md").write_text("x")
    (tmp_path / "folder.md").mkdir()
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling.md").symlink_to(tmp_path / "nowhere")
    (tmp_path / "self.md").symlink_to(tmp_path / "self.md")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.md")).write_text("x")
    problems: list[str] = []
    assert [file.id for file in vault.scan(tmp_path, problems)] == ["note"]
    assert len(problems) == 3  # dangling, self, bad name: said, not hidden
    assert all(problem.isprintable() for problem in problems)


def test_a_missing_vault_is_an_error_and_not_empty(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(vault.scan(tmp_path / "gone", []))


def test_edits_change_the_file_record(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("one")
    (before,) = vault.scan(tmp_path, [])
    assert list(vault.scan(tmp_path, [])) == [before]
    stamp = path.stat().st_mtime_ns
    path.write_text("two")
    os.utime(path, ns=(stamp, stamp))  # as a sync tool that keeps times
    assert list(vault.scan(tmp_path, [])) != [before]
