"""The recorded model as a server: what it answered to the golden set, over the chain's own wire.

    python benchmarks/routing/replay.py --backend cascade --output benchmarks/results/FILE.json

Runs ``run_query_rewrite_benchmark.py`` with the chain's local endpoint set to a server on
loopback that answers each case as ``recorded/goldenset.jsonl`` holds it. The answers were given by
a large language model to the built-in prompt, case by case, without sight of the labels.
"""
# ruff: noqa: E402 (the project is put on the path first)

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.model_server import Handler, ModelServer

GOLDENSET = ROOT / "benchmarks" / "query_rewrite_goldenset.json"
RECORDED = Path(__file__).resolve().parent / "recorded" / "goldenset.jsonl"


def main() -> int:
    cases = json.loads(GOLDENSET.read_text("utf-8"))["cases"]
    recorded = map(json.loads, RECORDED.read_text("utf-8").splitlines())
    answers = {row["id"]: json.dumps(row["answer"], ensure_ascii=False) for row in recorded}
    known = {(case["message"], len(case["history"])): answers[case["id"]] for case in cases}

    def reply(handler: Handler) -> None:
        asked = json.loads(handler.asked.body["messages"][-1]["content"])
        found = known.get((asked["message"], len(asked["context"])))
        if found is None:
            handler.send(404, b'{"error": {"message": "not recorded"}}')
            return
        message = {"role": "assistant", "content": found}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        whole = {"id": "recorded", "object": "chat.completion", "choices": [choice]}
        handler.send(200, json.dumps(whole).encode())

    with ModelServer(reply) as server:
        runner = ROOT / "benchmarks" / "run_query_rewrite_benchmark.py"
        environ = {
            **os.environ,
            "BDH_REWRITE_CHAIN": "local",
            "BDH_REWRITE_LOCAL_URL": server.url,
            "BDH_REWRITE_LOCAL_MODEL": "recorded-model",
        }
        done = subprocess.run([sys.executable, str(runner), *sys.argv[1:]], env=environ)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
