"""Gate ``cron``: scheduled jobs have no traffic unless the job's own prompt asks for it.

The assembled message of a cron turn also carries script output, other jobs' text and skill
text, none of which may opt in. So the marker is looked for in the job's record alone, and a
record that can't be had means no.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "cron"
MARKER = "[BDH:ALLOW-CRON]"

#: Gives the prompt of a job by its id, or None when there is no such record.
JobPrompt = Callable[[str], str | None]

_SESSION = re.compile(r"cron_(.+)_\d{8}_\d{6}", re.ASCII)


def is_cron(platform: str, session_id: str) -> bool:
    """Either sign is enough: a tool call, for one, is told no platform."""
    return platform.strip().lower() == "cron" or session_id.startswith("cron_")


def job_id_of(session_id: str) -> str | None:
    """The job's id in ``cron_<job>_<date>_<time>``, or None."""
    matched = _SESSION.fullmatch(session_id)
    return matched[1] if matched else None


def own_prompt(text: str, session_id: str, job_prompt: JobPrompt) -> str:
    """The job's prompt without the marker, if ``text`` is the message that was made of it."""
    job_id = job_id_of(session_id)
    try:
        prompt = job_prompt(job_id) if job_id else None
    except Exception:  # the message as it came has to do
        prompt = None
    if not isinstance(prompt, str) or prompt not in text:
        return ""
    return prompt.replace(MARKER, "").strip()


def cron(path: GatePath, platform: str, session_id: str, job_prompt: JobPrompt) -> Decision:
    if not is_cron(platform, session_id):
        return allow(NAME, path, Reason.NOT_CRON)
    job_id = job_id_of(session_id)
    try:
        prompt = job_prompt(job_id) if job_id else None
    except Exception:  # the host's storage may fail in any way; none of them is a yes
        prompt = None
    if not isinstance(prompt, str):
        return skip(NAME, path, Reason.CRON_RECORD_UNAVAILABLE)
    if MARKER in prompt:
        return allow(NAME, path, Reason.CRON_OPT_IN, MARKER)
    return skip(NAME, path, Reason.CRON_NOT_OPTED_IN)
