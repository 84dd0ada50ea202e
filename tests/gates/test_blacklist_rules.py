"""The blacklist's language, its bounds, and changes to its text."""

from __future__ import annotations

import pytest

from bdh_bridge.gates.blacklist import RuleSet
from bdh_bridge.gates.blacklist_edit import append_rule, remove_rule, replace_rule, set_enabled
from bdh_bridge.gates.blacklist_rules import (
    MAX_RULES,
    Rule,
    compile_pattern,
    is_slow,
    literal_line,
    parse,
)
from bdh_bridge.gates.pattern_bounds import MAX_CHARACTERS, check_pattern


def matched(text: str, message: str) -> int | None:
    """The line that blocks ``message``."""
    match = RuleSet(tuple(parse(text))).check(message).match
    return match.line if match else None


def test_lines_comments_and_places() -> None:
    text = (
        "\ufeff# Noise\r\n# of the host\r\nnightly backup\r\n\r\nre:^status\r\n#off: digest\r\n#x"
    )
    first, second, third = parse(text)
    assert first == Rule(
        3, "nightly backup", "literal", "nightly backup", True, "Noise\nof the host"
    )
    assert (second.line, second.kind, second.pattern, second.comment) == (5, "regex", "^status", "")
    assert (third.line, third.pattern, third.enabled, third.usable) == (6, "digest", False, False)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end(end: str) -> None:
    assert [rule.line for rule in parse(end.join(["one", "", "two", ""]))] == [1, 3]


def test_a_form_feed_or_a_line_separator_ends_no_line() -> None:
    assert [rule.source for rule in parse("one\x0ctwo\u2028three\n")] == ["one\x0ctwo\u2028three"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("nightly BACKUP", "the Nightly backup ran"),
        ("straße", "HAUPTSTRASSE 1"),
        ("perché", "PERCHE\u0301 no"),
        ("İstanbul", "i̇stanbul"),
        ("a.c", "xa.cx"),
        ("\\#tag", "see #tag"),
        ("\\re: meeting", "RE: MEETING tomorrow"),
        ("\\\\server", "on \\server"),
        ("\\d", "a \\D b"),
        ("re:^nightly", "Nightly job"),
        ("re:begin.*end", "begin\n\nEND"),
        ("re:[0-9]{4}-[0-9]{2}", "on 2026-01"),
        ("re:caf\u00e9", "CAF\u00c9"),
    ],
)
def test_what_a_rule_matches(rule: str, message: str) -> None:
    assert matched(rule, message) == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("a.c", "abc"),
        ("# comment", "# comment"),
        ("#off: digest", "digest"),
        ("re:^nightly", "the nightly job"),
        ("\\re:x", "rex"),
        ("nightly backup", "nightly  backup"),
    ],
)
def test_what_a_rule_does_not_match(rule: str, message: str) -> None:
    assert matched(rule, message) is None


def test_a_rule_of_many_that_begin_alike() -> None:
    text = "\n".join(f"blocked phrase {number:03}" for number in range(200))
    assert matched(text, "a Blocked Phrase 117 here") == 118
    assert matched(text, "a blocked phrase 200 here") is None
    assert matched("ab\nabc\na", "abc") == 1


@pytest.mark.parametrize(
    "expression",
    ["", ".*", "a*", "x?", "^", "$", ".", r"\w+", r"\S", ".{5,}", "[^x]", "(a|)", r"\b", "(?=.)"],
)
def test_an_expression_that_matches_everything_is_refused(expression: str) -> None:
    (rule,) = parse(f"re:{expression}")
    assert "everything" in rule.error
    assert matched(f"re:{expression}\nlater", "some later text") == 2


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "[a",
        "a{2}{3}",
        "(?P<1>a)",
        "\\",
        "*a",
        "(a{1000}){1000}",
        "((a{100}){100}){100}",
        "(?:a{1000}b{1000}){21}",
        "(?x)(a{1000}) {1000}",
        "(?ix)a",
        "(a{1000})(?#c){1000}",
        "(a{,1000}){1,1000}",
        "(?:[]a]{1000}){1000}",
        "(" * 200 + "a" + ")" * 200,
        "a{99999999999999999999}",
        "a" * (MAX_CHARACTERS + 1),
        "(" * 900,
        "[" * 900,
        "\0a",
        "\ufffda",
    ],
)
def test_an_invalid_or_oversized_expression_is_refused_by_name(expression: str) -> None:
    first, second = parse(f"re:{expression}\nstill here")
    assert first.error
    assert not first.usable
    assert second.usable


@pytest.mark.parametrize(
    "expression",
    [
        r"^\[IMPORTANT: .{0,200}\]$",
        r"(?:mon|tues|wednes)day report",
        r"[[:alpha:]]{3}-\d{4}",
        r"\{1000\}{3}",
        r"[({]{2}x",
        r"\p{Lu}{3}\s+digest",
        r"(?<=daily )news{1,3}",
        "漢字{2}",
    ],
)
def test_useful_expressions_are_accepted(expression: str) -> None:
    assert check_pattern(expression) == ""
    assert compile_pattern(expression)[1] == ""


def test_an_editor_can_ask_whether_an_expression_is_slow() -> None:
    assert is_slow(compile_pattern(r"^(?:(?:a|aa|a.)+)+\d$")[0])
    assert not is_slow(compile_pattern(r"nightly (?:job|task) \d+")[0])


def test_rules_over_the_bound_are_not_used_and_the_first_of_them_is_named() -> None:
    bound = MAX_RULES["regex"]
    rules = parse("\n".join(f"re:number {number} only" for number in range(bound + 50)))
    assert len(rules) == bound + 1
    assert rules[-1].error
    assert rules[-1].line == bound + 1
    assert all(rule.usable for rule in rules[:-1])


def test_a_senseless_number_of_lines_is_cut_short() -> None:
    assert len(parse("#off: x\n" * 200_000)) < 10_000
    assert parse("\n" * 500_000) == []


@pytest.mark.parametrize(
    "prompt", ["plain words", "# heading", "re: your mail", "\\#x", "#off: no", "\n\n  two\nlines"]
)
def test_blacklisting_a_prompt_blocks_that_prompt(prompt: str) -> None:
    assert matched(literal_line(prompt), prompt) == 1


def test_a_blank_prompt_can_not_be_blacklisted() -> None:
    with pytest.raises(ValueError):
        literal_line(" \n\0\n")


TEXT = "\ufeff# first\r\none\r\n\r\n# second\r\ntwo\r\nthree"


def test_edits_touch_their_line_alone() -> None:
    assert append_rule(TEXT, "four", "why\nso") == f"{TEXT}\r\n# why\r\n# so\r\nfour\r\n"
    assert append_rule("", "one") == "one\n"
    assert append_rule("one\n", "two") == "one\ntwo\n"
    assert replace_rule(TEXT, 5, "re:x") == TEXT.replace("two", "re:x")
    assert remove_rule(TEXT, 2) == TEXT.replace("one\r\n", "")
    assert remove_rule(TEXT, 6) == TEXT.removesuffix("three")
    assert replace_rule(TEXT, 1, "x") == TEXT.replace("# first", "x")


def test_switching_off_and_on_gives_the_same_text() -> None:
    off = set_enabled(TEXT, 5, False)
    assert [rule.enabled for rule in parse(off)] == [True, False, True]
    assert set_enabled(off, 5, False) == off
    assert set_enabled(off, 5, True) == TEXT
    assert set_enabled("\\#tag\n", 1, False) == "#off: \\#tag\n"


@pytest.mark.parametrize("line", [0, -1, 7, 100])
def test_a_line_that_is_not_there(line: int) -> None:
    with pytest.raises(IndexError):
        remove_rule(TEXT, line)


def test_a_rule_with_a_line_break_would_be_two() -> None:
    with pytest.raises(ValueError):
        append_rule(TEXT, "one\rtwo")
