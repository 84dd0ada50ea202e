"""The query-rewrite benchmark: its runs can be stopped, sliced, compared and drawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.routing.conftest import MakeServer
from tests.support import model_server as ms

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import query_rewrite_report as report

BENCHMARKS = Path(report.__file__).parent


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BDH_")}
    return subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "run_query_rewrite_benchmark.py"),
            *("--home", str(home)),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
    )


def measured(home: Path, name: str, *arguments: str) -> dict[str, Any]:
    done = run(home, "--output", str(home / name), "--graph", "none", *arguments)
    assert done.returncode == 0, done.stderr
    assert "joint accuracy" in done.stdout
    found: dict[str, Any] = json.loads((home / name).read_text(encoding="utf-8"))
    return found


def test_slices_go_on_are_put_together_and_drawn(home: Path, server: MakeServer) -> None:
    served = server(ms.answer(ms.ANSWER))
    (home / ".env").write_text(
        f"BDH_REWRITE_LOCAL_URL={served.url}\nBDH_READ_SENDERS=nobody\nBDH_REWRITE_TIMEOUT=9\n"
    )
    first = measured(home, "a.json", "--backend", "omlx", "--count", "3", "--rewrite-timeout", "5")
    assert [case["id"] for case in first["cases"]] == ["en-01", "en-02", "en-03"]
    assert first["rewrite_timeout_s"] == 5
    assert first["summary"]["rewrite_success"] == 1
    assert first["summary"]["variants_max"] == 1
    assert first["goldenset"] == {
        "version": report.GOLDENSET["version"], "sha256": report.GOLDENSET["sha256"]
    }  # fmt: skip
    asked = len(served.requests)
    again = measured(home, "a.json", "--backend", "omlx", "--count", "5", "--rewrite-timeout", "5")
    assert again["cases"][:3] == first["cases"], "what is done is not done again"
    assert len(again["cases"]) == 5
    assert len(served.requests) == asked + 2
    slice_arguments = ("--backend", "omlx", "--start", "5", "--count", "2")
    measured(home, "b.json", *slice_arguments, "--rewrite-timeout", "5")
    measured(home, "c.json", "--backend", "baseline", "--count", "7")
    files = [str(home / name) for name in ("a.json", "b.json", "c.json")]
    done = run(home, "--compare", *files, "--plot", str(home / "plot.svg"))
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0]
    assert "omlx (qwen" in header
    assert "baseline" in header
    cases = [cell.strip() for cell in done.stdout.splitlines()[2].split("|")]
    assert cases[1:4] == ["cases", "7", "7"]
    drawn = ElementTree.fromstring((home / "plot.svg").read_text(encoding="utf-8"))
    text = "".join(drawn.itertext())
    assert "baseline, 7 cases" in text
    assert "false store" in text


def test_a_report_made_otherwise_is_not_gone_on_with(home: Path) -> None:
    output = ("--output", str(home / "a.json"), "--graph", "none", "--count", "1")
    assert run(home, "--backend", "baseline", *output).returncode == 0
    before = (home / "a.json").read_bytes()
    done = run(home, "--backend", "cloud", *output)
    assert done.returncode == 2
    assert "another backend" in done.stderr
    assert (home / "a.json").read_bytes() == before
    done = run(home, "--compare", str(home / "none.json"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def case(expected: list[bool], got: list[bool], **more: Any) -> dict[str, Any]:
    return {
        "id": "x", "language": "en", "kind": "k", "expected": expected, "got": got,
        "seconds": 1.0, "rewrite_seconds": None, "rewrite_ok": None, "variants": 0,
        "context": False, "context_hit": None, **more,
    }  # fmt: skip


def test_the_figures_are_what_they_say() -> None:
    cases = [
        case([True, False], [True, False], context=True, context_hit=True, variants=2),
        case([True, True], [False, True], context_hit=False, seconds=3.0),
        case([False, False], [True, True], context=True, variants=4),
        case([False, False], [False, False], rewrite_seconds=0.5, rewrite_ok=True),
        case([False, True], [False, False], rewrite_seconds=1.5, rewrite_ok=False),
    ]
    found = report.summarise(cases)
    assert found["joint_accuracy"] == 0.4
    assert found["retrieve_accuracy"] == 0.6
    assert found["store_accuracy"] == 0.6
    assert found["false_retrieve_rate"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["false_store_rate"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["context_hit_rate"] == 0.5
    assert found["needless_context_rate"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["rewrite_success"] == 0.5
    assert (found["serial_wall_s"], found["p95_s"]) == (7.0, 3.0)
    assert (found["variants_max"], found["variants_over_bound"]) == (4, 1)
    assert report.summarise([])["joint_accuracy"] is None


def test_every_case_that_is_to_be_read_has_its_note() -> None:
    notes = json.loads((BENCHMARKS / "query_rewrite_notes.json").read_text("utf-8"))["notes"]
    wanted = {c["id"] for c in report.GOLDENSET["cases"] if c["expect"]["should_retrieve"]}
    assert {identifier for identifier in notes if not identifier.startswith("x-")} == wanted
    assert len({note["title"] for note in notes.values()}) == len(notes)


def test_the_committed_results_are_of_the_golden_set_of_today() -> None:
    files = sorted((BENCHMARKS / "results").glob("query_rewrite_*.json"))
    assert files
    for file in files:
        found = report.read_report(file)
        assert found["goldenset"]["sha256"] == report.GOLDENSET["sha256"], file.name
        assert found["summary"] == report.summarise(found["cases"]), file.name
        assert len(found["cases"]) == len(report.GOLDENSET["cases"])
