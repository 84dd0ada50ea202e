"""What OTLP exporters, Jaeger and Tempo say, in the shapes that they say it in."""

from __future__ import annotations

import json
import time
from typing import Any


def _span(span_id: str) -> dict[str, Any]:
    start = time.time_ns() - 10**9
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": span_id,
        "name": "bdh.turn",
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 12_000_000),
        "attributes": [
            {"key": "bdh.platform", "value": {"stringValue": "telegram"}},
            {"key": "bdh.turn.first", "value": {"boolValue": True}},
            {"key": "bdh.turn.answer_characters", "value": {"intValue": "412"}},
        ],
        "status": {},
    }


def _document(span: dict[str, Any]) -> dict[str, Any]:
    resource = {
        "attributes": [{"key": "service.name", "value": {"stringValue": "hermes-bdh-bridge"}}]
    }
    scope = {"scope": {"name": "bdh_bridge"}, "spans": [span]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def line(ending: str) -> bytes:
    return json.dumps(_document(_span(f"eee19b7ec3c1{ending:0>4}"))).encode() + b"\n"


OTLP_JSON = _document(_span("eee19b7ec3c1b174"))
#: Tempo's `/api/traces/{id}` as protojson: `batches`, and ids in base64.
TEMPO_TRACE = {
    "batches": [
        {
            "resource": {},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            **_span("eee19b7ec3c1b174"),
                            "traceId": "W47/95gDgQPSabYzgT/GDA==",
                            "spanId": "7uGbfsPBsXQ=",
                            "kind": "SPAN_KIND_INTERNAL",
                            "status": {"code": "STATUS_CODE_OK"},
                        }
                    ]
                }
            ],
        }
    ]
}


def _tag(key: str, kind: str, value: Any) -> dict[str, Any]:
    return {"key": key, "type": kind, "value": value}


def jaeger(number: int, at: float) -> dict[str, Any]:
    trace_id = f"{number + 1:032x}"
    return {
        "traceID": trace_id,
        "spans": [
            {
                "traceID": trace_id,
                "spanID": f"{number + 1:016x}",
                "operationName": "bdh.turn",
                "references": [],
                "startTime": int(at * 1e6),
                "duration": 1_000,
                "tags": [],
                "logs": [],
                "processID": "p1",
            }
        ],
        "processes": {"p1": {"serviceName": "hermes-bdh-bridge", "tags": []}},
    }


_NOW_US = time.time_ns() // 1_000
#: One element of `data` of Jaeger's `/api/traces`.
JAEGER_TRACE = {
    "traceID": "5b8efff798038103d269b633813fc60c",
    "spans": [
        {
            "traceID": "5b8efff798038103d269b633813fc60c",
            "spanID": "eee19b7ec3c1b174",
            "operationName": "bdh.turn",
            "references": [],
            "startTime": _NOW_US - 50_000,
            "duration": 40_000,
            "tags": [
                _tag("bdh.platform", "string", "cli"),
                _tag("span.kind", "string", "internal"),
                _tag("otel.scope.name", "string", "bdh_bridge"),
            ],
            "logs": [],
            "processID": "p1",
        },
        {
            "traceID": "5b8efff798038103d269b633813fc60c",
            "spanID": "eee19b7ec3c1b175",
            "operationName": "bdh.gate eligibility",
            "references": [
                {
                    "refType": "CHILD_OF",
                    "traceID": "5b8efff798038103d269b633813fc60c",
                    "spanID": "eee19b7ec3c1b174",
                }
            ],
            "startTime": _NOW_US - 49_000,
            "duration": 20,
            "tags": [
                _tag("bdh.gate.name", "string", "eligibility"),
                _tag("bdh.gate.decision", "string", "skip"),
                _tag("bdh.gate.reason", "string", "casual"),
                _tag("bdh.gate.value", "int64", 3),
                _tag("bdh.context.titles", "string", '["one","two"]'),
                _tag("otel.status_code", "string", "ERROR"),
                _tag("error", "bool", True),
            ],
            "logs": [
                {
                    "timestamp": _NOW_US,
                    "fields": [
                        _tag("event", "string", "exception"),
                        _tag("exception.type", "string", "OSError"),
                    ],
                }
            ],
            "processID": "p1",
        },
    ],
    "processes": {"p1": {"serviceName": "hermes-bdh-bridge", "tags": []}},
}
