"""Gate ``answer``: only a substantial final answer is worth learning from."""

from __future__ import annotations

from typing import Any

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.view import AnswerView
from bdh_otel import attributes as attr

NAME = "answer"
MINIMUM_CHARACTERS = 200


def answer(view: AnswerView) -> Decision:
    if view.tool_calls:
        return skip(NAME, GatePath.WRITE, Reason.TOOL_CALLS)
    if view.finish_reason != "stop":
        return skip(NAME, GatePath.WRITE, Reason.NOT_FINAL)
    length = len(view.content.strip())
    if not length:
        return skip(NAME, GatePath.WRITE, Reason.EMPTY_ANSWER)
    measured: dict[str, Any] = {
        attr.GATE_VALUE: float(length),
        attr.GATE_THRESHOLD: float(MINIMUM_CHARACTERS),
        attr.GATE_UNIT: "characters",
    }
    if length < MINIMUM_CHARACTERS:
        return skip(NAME, GatePath.WRITE, Reason.SHORT_ANSWER, **measured)
    return allow(NAME, GatePath.WRITE, Reason.FINAL_ANSWER, **measured)
