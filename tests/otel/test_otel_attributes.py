"""The attribute table and what of a value is kept."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from enum import StrEnum
from pathlib import Path

import opentelemetry.semconv._incubating.attributes as incubating
import opentelemetry.semconv.attributes as stable
import pytest
from opentelemetry.semconv.schemas import Schemas

from bdh_otel import attributes as attr
from bdh_otel import docs, names
from bdh_otel.lane import origins
from bdh_otel.otlp import Encoder
from bdh_otel.reader import SpanReader
from bdh_otel.rules import AttributeMisuse, Content, Rules
from bdh_otel.tracer import Tracer

ROOT = Path(__file__).resolve().parents[2]


def _conventional_names() -> set[str]:
    found: set[str] = set()
    for package in (stable, incubating):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            loaded = importlib.import_module(module.name)
            found |= {value for value in vars(loaded).values() if isinstance(value, str)}
    return found


def test_names_are_the_conventions_or_our_own() -> None:
    conventional = _conventional_names()
    own = {name for name in [*attr.TABLE, *attr.RESOURCE] if not name.startswith("bdh.")}
    assert own - conventional == set()


def test_no_name_is_another_ones_namespace() -> None:
    names = set(attr.TABLE)
    assert {one for one in names for other in names if other.startswith(f"{one}.")} == set()


def test_schema_url_is_a_published_one() -> None:
    assert attr.SCHEMA_URL in {schema.value for schema in Schemas}


def test_a_name_can_be_declared_once_only() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        attr._declare(attr.GATE_NAME, "string", "again")


def test_text_of_people_is_never_exportable() -> None:
    for name in (
        attr.TURN_MESSAGE,
        attr.TURN_ANSWER,
        attr.CONTEXT_TITLES,
        attr.RETRIEVAL_QUERY,
        attr.RETRIEVAL_MATCHED_TERMS,
        attr.REWRITE_QUERIES,
        attr.WRITE_QUERY,
        attr.TOOL_ARGUMENTS,
        attr.TOOL_RESULT,
    ):
        assert attr.TABLE[name].privacy == "content", name
    for name in (attr.GATE_RULE, attr.SENDER, attr.URL, attr.EXCEPTION_MESSAGE, attr.HOP_ERROR):
        assert attr.TABLE[name].privacy == "local", name


def test_documentation_is_up_to_date() -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    assert docs.updated(text) == text, "run: python -m bdh_otel.docs docs/telemetry.md"


def test_documentation_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        docs.updated("# Telemetry\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (attr.GATE_VALUE, 1e308),
        (attr.GATE_VALUE, -1.7976931348623157e308),
        (attr.GATE_VALUE, 5e-324),
        (attr.GATE_VALUE, 1 << 80),
        (attr.GATE_RULE_LINE, (1 << 63) - 1),
        (attr.GATE_RULE_LINE, -(1 << 63)),
    ],
)
def test_numbers_are_kept_over_the_whole_range_of_their_type(
    name: str, value: float, tracer: Tracer, reader: SpanReader
) -> None:
    """From the span through the store to what a backend is sent."""
    span = tracer.start_span(names.TURN, attributes={name: value})
    span.end()
    assert tracer.flush(10)
    (stored,) = reader.trace(f"{span.trace_id:032x}")
    assert stored.attributes[name] == value
    origin = reader.ask(lambda connection: origins(connection, [stored]))
    request = Encoder().request([stored], origin)
    (sent,) = request.resource_spans[0].scope_spans[0].spans
    (found,) = [one.value for one in sent.attributes if one.key == name]
    assert (found.double_value or found.int_value) == value


class Colour(StrEnum):
    RED = "red"


def test_values_of_the_declared_type_pass() -> None:
    kept = Rules("preview", strict=True).checked(
        {
            attr.GATE_NAME: Colour.RED,
            attr.GATE_VALUE: 3,
            attr.GATE_RULE_LINE: 4.0,
            attr.TURN_FIRST: True,
            attr.REWRITE_KNOWLEDGE_TYPES: {"b", "a"},
            attr.GATE_REASON: None,
        }
    )
    assert kept == {
        attr.GATE_NAME: "red",
        attr.GATE_VALUE: 3.0,
        attr.GATE_RULE_LINE: 4,
        attr.TURN_FIRST: True,
        attr.REWRITE_KNOWLEDGE_TYPES: ("a", "b"),
    }
    assert type(kept[attr.GATE_NAME]) is str
    assert type(kept[attr.GATE_VALUE]) is float
    assert type(kept[attr.GATE_RULE_LINE]) is int


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bdh.gate.unheard_of", "x"),
        (attr.GATE_NAME, 1),
        (attr.GATE_NAME, ["x"]),
        (attr.GATE_RULE_LINE, "12"),
        (attr.GATE_RULE_LINE, True),
        (attr.GATE_RULE_LINE, 1.5),
        (attr.GATE_RULE_LINE, 1 << 63),
        (attr.GATE_VALUE, float("nan")),
        (attr.GATE_VALUE, float("inf")),
        (attr.GATE_VALUE, float("-inf")),
        (attr.GATE_VALUE, 10**400),
        (attr.GATE_RULE_LINE, 1e308),
        (attr.GATE_VALUE, True),
        (attr.TURN_FIRST, 1),
        (attr.CONTEXT_TITLES, "one title"),
    ],
)
def test_misuse_raises_in_tests_and_is_dropped_with_one_warning_in_production(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AttributeMisuse):
        Rules("preview", strict=True).checked({name: value})
    rules = Rules("preview", strict=False)
    with caplog.at_level(logging.WARNING):
        assert rules.checked({name: value}) == {}
        assert rules.checked({name: value}) == {}
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("[bdh-bridge] ")


def test_a_code_that_is_not_declared_raises_in_tests_and_is_kept_in_production() -> None:
    """What a newer part of the bridge says is worth more than a gap."""
    with pytest.raises(AttributeMisuse, match="no code"):
        Rules("preview", strict=True).checked({attr.HOP_OUTCOME: "tired"})
    assert Rules("preview", strict=True).checked({attr.HOP_OUTCOME: "ok"})
    kept = Rules("preview", strict=False).checked({attr.HOP_OUTCOME: "tired"})
    assert kept == {attr.HOP_OUTCOME: "tired"}


@pytest.mark.parametrize(
    ("content", "message", "query"),
    [("off", None, None), ("preview", 4_000, 200), ("full", 65_536, 65_536)],
)
def test_how_much_content_is_kept(content: Content, message: int | None, query: int | None) -> None:
    kept = Rules(content, strict=True).checked(
        {
            attr.TURN_MESSAGE: "m" * 100_000,
            attr.RETRIEVAL_QUERY: "q" * 100_000,
            attr.CONTEXT_TITLES: ["t" * 100_000],
            attr.GATE_RULE: "r" * 100_000,
        }
    )
    lengths = {name: len(value) for name, value in kept.items() if isinstance(value, str)}
    assert lengths.get(attr.TURN_MESSAGE) == message
    assert lengths.get(attr.RETRIEVAL_QUERY) == query
    assert lengths[attr.GATE_RULE] == attr.MAX_CHARACTERS
    titles = kept.get(attr.CONTEXT_TITLES)
    assert (titles is None) if query is None else (len(titles[0]) == query)  # type: ignore[index]


def test_half_surrogates_become_storable() -> None:
    kept = Rules("full", strict=True).checked(
        {attr.TURN_MESSAGE: "è \ud83d x", attr.CONTEXT_TITLES: ["\udc00"]}
    )
    assert kept == {attr.TURN_MESSAGE: "è ? x", attr.CONTEXT_TITLES: ("?",)}


def test_lists_are_bounded() -> None:
    kept = Rules("full", strict=True).checked({attr.CONTEXT_TITLES: [str(i) for i in range(999)]})
    assert len(kept[attr.CONTEXT_TITLES]) == attr.MAX_ITEMS  # type: ignore[arg-type]
