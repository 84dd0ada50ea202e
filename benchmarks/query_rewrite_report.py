"""Reports of the query-rewrite benchmark: their figures, the table, the plot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from machine import percentile

Report = dict[str, Any]

_FILE = Path(__file__).with_name("query_rewrite_goldenset.json")
GOLDENSET: dict[str, Any] = {
    **json.loads(_FILE.read_text(encoding="utf-8")),
    "sha256": hashlib.sha256(_FILE.read_bytes()).hexdigest(),
}
#: Most variants that a decision of schema version 2 may send.
MOST_VARIANTS = 3


class ReportError(Exception):
    """A file that can't be used, as a sentence."""


def read_report(path: Path) -> Report:
    """Raises: ReportError."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON") from error
    if not isinstance(report, dict) or report.get("benchmark") != "query_rewrite":
        raise ReportError(f"{path} is no report of this benchmark")
    return report


def summarise(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All figures. Shares are 0 to 1, None where nothing counts towards them; seconds are those
    of whole read paths (routing and retrieval), one case after the other.

    False-retrieve rate: of the cases that should not be read, those that were; false-store rate
    alike. Rewrite success: of the messages that a model was asked about, those it decided.
    """
    seconds = [case["seconds"] for case in cases]
    asked = [case["rewrite_seconds"] for case in cases if case["rewrite_seconds"] is not None]
    pairs = [(case["expected"], case["got"]) for case in cases]
    found: dict[str, Any] = {
        "cases": len(cases),
        "serial_wall_s": round(sum(seconds), 3),
        "p50_s": _rounded(percentile(seconds, 0.50)) if seconds else None,
        "p95_s": _rounded(percentile(seconds, 0.95)) if seconds else None,
        "rewrite_asked": len(asked),
        "rewrite_p50_s": _rounded(percentile(asked, 0.50)) if asked else None,
        "rewrite_p95_s": _rounded(percentile(asked, 0.95)) if asked else None,
        "rewrite_success": _share(
            case["rewrite_ok"] for case in cases if case["rewrite_ok"] is not None
        ),
        "joint_accuracy": _share(expected == got for expected, got in pairs),
        "retrieve_accuracy": _share(expected[0] == got[0] for expected, got in pairs),
        "store_accuracy": _share(expected[1] == got[1] for expected, got in pairs),
        "false_retrieve_rate": _share(got[0] for expected, got in pairs if not expected[0]),
        "false_store_rate": _share(got[1] for expected, got in pairs if not expected[1]),
        "context_hit_rate": _share(
            case["context_hit"] for case in cases if case["context_hit"] is not None
        ),
        "needless_context_rate": _share(
            case["context"] for case in cases if not case["expected"][0]
        ),
        "variants_max": max((case["variants"] for case in cases), default=0),
        "variants_over_bound": sum(case["variants"] > MOST_VARIANTS for case in cases),
    }
    for group in ("language", "kind"):
        names = sorted({case[group] for case in cases})
        found[f"joint_accuracy_by_{group}"] = {
            name: _share(case["expected"] == case["got"] for case in cases if case[group] == name)
            for name in names
        }
    return found


def merged(reports: Sequence[Report]) -> list[Report]:
    """Slices of one backend and model, made in the same way, as one report."""
    groups: dict[str, list[Report]] = {}
    for report in reports:
        same = ("goldenset", "notes_sha256", "backend", "model", "rewrite_timeout_s", "graph")
        groups.setdefault(json.dumps([report.get(key) for key in same]), []).append(report)
    whole: list[Report] = []
    for group in groups.values():
        cases = {case["id"]: case for report in group for case in report["cases"]}
        whole.append({**group[0], "cases": list(cases.values())})
        whole[-1]["summary"] = summarise(whole[-1]["cases"])
    return whole


_ROWS = (
    ("cases", "cases", "{:d}"),
    ("joint accuracy", "joint_accuracy", "{:.0%}"),
    ("retrieve accuracy", "retrieve_accuracy", "{:.0%}"),
    ("store accuracy", "store_accuracy", "{:.0%}"),
    ("false-retrieve rate", "false_retrieve_rate", "{:.1%}"),
    ("false-store rate", "false_store_rate", "{:.1%}"),
    ("context hits", "context_hit_rate", "{:.0%}"),
    ("needless context", "needless_context_rate", "{:.1%}"),
    ("rewrite success", "rewrite_success", "{:.0%}"),
    ("rewrite p50", "rewrite_p50_s", "{:.2f} s"),
    ("rewrite p95", "rewrite_p95_s", "{:.2f} s"),
    ("read path p50", "p50_s", "{:.3f} s"),
    ("read path p95", "p95_s", "{:.3f} s"),
    ("serial wall time", "serial_wall_s", "{:.1f} s"),
    ("most variants", "variants_max", "{:d}"),
)


def table(reports: Sequence[Report]) -> str:
    """One column a report, in Markdown, aligned for the terminal as well."""
    rows = [["", *(label(report) for report in reports)]]
    for title, key, form in _ROWS:
        values = (report["summary"].get(key) for report in reports)
        rows.append([title, *("–" if value is None else form.format(value) for value in values)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    golden = sorted(
        {
            f"golden set version {report['goldenset']['version']}, "
            f"sha256 {report['goldenset']['sha256'][:12]}"
            for report in reports
        }
    )
    notes = [f"({line})" for line in golden]
    if len(golden) > 1:
        notes.append("Different golden sets: the figures can't be compared.")
    return "\n".join([*lines, "", *notes])


def label(report: Report) -> str:
    return str(report["backend"]) + (f" ({report['model']})" if report.get("model") else "")


# The plot

_PANELS = (
    (
        "Higher is better",
        (
            ("joint", "joint_accuracy"),
            ("retrieve", "retrieve_accuracy"),
            ("store", "store_accuracy"),
            ("context hits", "context_hit_rate"),
        ),
    ),
    (
        "Lower is better",
        (
            ("false retrieve", "false_retrieve_rate"),
            ("false store", "false_store_rate"),
            ("needless context", "needless_context_rate"),
        ),
    ),
    ("Read path, seconds", (("p50", "p50_s"), ("p95", "p95_s"))),
)
#: Tell apart in greyscale and with any colour vision (Okabe and Ito).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_LEFT, _WIDTH, _BAR, _GAP = 150, 460, 16, 14


def plot(reports: Sequence[Report]) -> str:
    """An SVG image: horizontal bars, one group a figure, one colour a report."""
    parts: list[str] = []
    y = 34
    for number, report in enumerate(reports):
        parts.append(_rect(20, y - 11, 12, 12, number))
        parts.append(_words(38, y, f"{label(report)}, {report['summary']['cases']} cases"))
        y += 20
    for title, rows in _PANELS:
        seconds = title.endswith("seconds")
        values = [report["summary"].get(key) or 0.0 for report in reports for _, key in rows]
        most = (max(values, default=0.0) or 1.0) if seconds else 1.0
        y += 18
        parts.append(_words(20, y, title, "font-weight='bold'"))
        y += 12
        for name, key in rows:
            middle = y + len(reports) * _BAR / 2 + 4
            parts.append(_words(_LEFT - 8, middle, name, "text-anchor='end'"))
            for number, report in enumerate(reports):
                value = report["summary"].get(key)
                width = 0 if value is None else max(1.0, _WIDTH * value / most)
                parts.append(_rect(_LEFT, y, width, _BAR - 3, number))
                shown = "–" if value is None else f"{value:.3g} s" if seconds else f"{value:.0%}"
                parts.append(_words(_LEFT + width + 6, y + 11, shown))
                y += _BAR
            y += _GAP
    width, height = _LEFT + _WIDTH + 90, y + 10
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' font-family='sans-serif' font-size='12' role='img' "
        f"aria-label='Query routing by backend'>\n"
        f"<rect width='100%' height='100%' fill='#ffffff'/>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _rect(x: float, y: float, width: float, height: float, number: int) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    return f"<rect x='{x:g}' y='{y:g}' width='{width:.1f}' height='{height}' fill='{colour}'/>"


def _words(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:g}' fill='#222222' {more}>{escape(text)}</text>"


def _share(flags: Any) -> float | None:
    values = [bool(flag) for flag in flags]
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: float) -> float:
    return round(value, 4)
