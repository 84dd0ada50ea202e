"""What an operator deploys: every query names what exists, every file that is mounted is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bdh_otel import attributes as attr
from bdh_otel import instruments

DEPLOY = Path(__file__).resolve().parents[2] / "otel"
DASHBOARDS = sorted((DEPLOY / "dashboards").glob("*.json"))
COLLECTOR = DEPLOY / "collector" / "config.yaml"

#: What Prometheus and the Collector add by themselves.
_SCRAPED = {"job", "instance", "le"}
#: Attributes whose values are declared elsewhere.
_FREE = {attr.GATE_NAME, attr.REWRITE_FALLBACK, attr.OUTBOX_STATE, attr.TURN_READ_OUTCOME}
_SPAN_LABELS = {"service_name", "span_name", "span_kind", "status_code", "bdh_platform"}
_PROMQL = {
    "sum", "max", "by", "rate", "increase", "topk", "histogram_quantile", "label_values",
}  # fmt: skip


def prometheus_names(instrument: instruments.Instrument) -> set[str]:
    """As OpenTelemetry's compatibility specification has it."""
    name = instrument.name.replace(".", "_")
    if instrument.unit == "s":
        name += "_seconds"
    if instrument.kind == "counter":
        name += "_total"
    if instrument.kind == "gauge" and instrument.unit == "1":
        name += "_ratio"
    if instrument.kind == "histogram":
        return {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return {name}


def series() -> dict[str, set[str]]:
    """Metric → its labels."""
    found = {
        name: {attribute.replace(".", "_") for attribute in one.attributes}
        for one in instruments.TABLE.values()
        for name in prometheus_names(one)
    }
    found["bdh_span_calls_total"] = _SPAN_LABELS
    for part in ("bucket", "sum", "count"):
        found[f"bdh_span_duration_seconds_{part}"] = _SPAN_LABELS
    return found


def targets(dashboard: Path) -> Iterator[dict[str, Any]]:
    for panel in json.loads(dashboard.read_text(encoding="utf-8"))["panels"]:
        yield from panel.get("targets", [])


def queries(kind: str) -> list[str]:
    return [one[kind] for path in DASHBOARDS for one in targets(path) if kind in one]


@pytest.mark.parametrize("query", queries("expr"))
def test_every_prometheus_query_names_what_exists(query: str) -> None:
    known = series()
    used = set(re.findall(r"\b((?:bdh|gen_ai)_[a-z0-9_]+)(?=[{\[])", query))
    assert used, query
    assert used <= set(known)
    labels = _SCRAPED.union(*(known[name] for name in used))
    matched = {
        label
        for selector in re.findall(r"\{([^}]*)\}", query)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
    }
    grouped = {
        label.strip()
        for group in re.findall(r"by \(([^)]*)\)", query)
        for label in group.split(",")
    }
    assert matched | grouped <= labels
    # Nothing else in it is a name at all.
    rest = re.sub(r'"[^"]*"|\{[^}]*\}|\$\w+|by \([^)]*\)', " ", query)
    assert set(re.findall(r"[A-Za-z_]\w+", rest)) <= used | _PROMQL


@pytest.mark.parametrize("query", queries("query"))
def test_every_trace_query_names_what_exists(query: str) -> None:
    for name in re.findall(r"\bspan\.([\w.]+)", query):
        assert attr.TABLE[name].privacy == "exportable", name
    for name in re.findall(r"\bresource\.([\w.]+)", query):
        assert name in attr.RESOURCE
    assert re.search(r"\bspan\.|\bresource\.", query)


def test_values_that_queries_ask_for_are_declared() -> None:
    """A code that a panel filters by is one of its attribute's."""
    for query in queries("expr") + queries("query"):
        for label, value in re.findall(r'\b(bdh[\w.]+?)\s*(?:=~|!~|!=|=)\s*"([^"$]+)"', query):
            (name,) = [one for one in attr.TABLE if label in (one, one.replace(".", "_"))]
            if name in _FREE:
                continue
            for code in value.split("|"):
                assert code in attr.TABLE[name].codes, (name, code)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_well_formed(path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    known = yaml.safe_load(
        (DEPLOY / "compose/grafana/provisioning/datasources/datasources.yaml").read_text()
    )
    sources = {one["uid"] for one in known["datasources"]}
    assert {one["datasource"]["uid"] for one in targets(path)} <= sources
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24


def test_every_instrument_is_on_a_dashboard() -> None:
    text = " ".join(queries("expr"))
    left_out = {"bdh.tool.calls", "bdh.syntheses"}
    for instrument in instruments.TABLE.values():
        if instrument.name not in left_out:
            assert any(name in text for name in prometheus_names(instrument)), instrument.name


def test_the_collector_samples_by_what_exists() -> None:
    config = yaml.safe_load(COLLECTOR.read_text(encoding="utf-8"))
    policies = config["processors"]["tail_sampling"]["policies"]
    for policy in policies:
        rule = policy.get("string_attribute") or policy.get("boolean_attribute")
        if rule is None:
            continue
        declared = attr.TABLE[rule["key"]]
        assert declared.privacy == "exportable"
        for value in rule.get("values", ()):
            assert value in declared.codes, (rule["key"], value)
    assert {"ERROR"} == set(policies[0]["status_code"]["status_codes"])
    for dimension in config["connectors"]["spanmetrics"]["dimensions"]:
        assert dimension["name"] in attr.CONTEXT
    # A trace is whole when it is decided about.
    from bdh_bridge.worker.trace import LATE

    wait = re.search(r":-(\d+)s\}", config["processors"]["tail_sampling"]["decision_wait"])
    assert wait is not None
    assert int(wait[1]) > LATE


def test_pipelines_are_made_of_what_is_configured() -> None:
    config = yaml.safe_load(COLLECTOR.read_text(encoding="utf-8"))
    for pipeline in config["service"]["pipelines"].values():
        assert set(pipeline["processors"]) <= set(config["processors"])
        assert set(pipeline["receivers"]) <= {*config["receivers"], *config["connectors"]}
        assert set(pipeline["exporters"]) <= {*config["exporters"], *config["connectors"]}


def test_the_compose_file_mounts_what_is_there_and_opens_nothing_to_the_network() -> None:
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    named = set(compose["volumes"])
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in named or (folder / source).exists(), volume
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port
    set_here = compose["services"]["collector"]["environment"]
    read_there = set(re.findall(r"\$\{env:(\w+)", COLLECTOR.read_text(encoding="utf-8")))
    assert set(set_here) == read_there
