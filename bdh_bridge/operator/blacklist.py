"""A rule that is added to the blacklist stands apart from the headings that others wrote."""

from __future__ import annotations

from bdh_bridge.gates.blacklist_edit import append_rule


def with_rule(text: str, source: str, comment: str = "") -> str:
    """``text`` with a rule at its end, after a blank line where it would else read as if it
    belonged to the comments above. Raises: ValueError for a rule that holds a line break."""
    last = text.splitlines()
    block = last[max((n for n, line in enumerate(last, 1) if not line.strip()), default=0) :]
    if block and (comment.strip() or any(line.lstrip().startswith("#") for line in block)):
        text = append_rule(text, "")
    return append_rule(text, source, comment)
