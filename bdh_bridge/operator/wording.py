"""Codes in the words of an operator."""

from __future__ import annotations

from bdh_bridge.operator.plain import plain

#: How a path of the turn ended, in two or three words.
SHORT = {
    # read
    "context": "context given",
    "no_context": "nothing to give",
    "already_present": "given before",
    "failed": "failed",
    # write
    "queued": "queued",
    "spooled": "queued (spool)",
    "refused": "refused: full",
    "delivered": "learned",
    "retry": "waits",
    "unconfirmed": "unconfirmed",
    "in_doubt": "in doubt",
    "quarantined": "quarantined",
    "discarded": "discarded",
    # reasons
    "disabled": "bridge is off",
    "paused_all": "paused",
    "paused_session": "session paused",
    "background_review": "host review",
    "delegation_result": "delegated task",
    "process_notice": "process notice",
    "not_injectable": "not plain text",
    "empty_message": "empty message",
    "cron_not_opted_in": "cron job",
    "cron_record_unavailable": "cron unknown",
    "platform_denied": "platform denied",
    "sender_not_listed": "sender unlisted",
    "sender_unknown": "sender unknown",
    "blacklisted": "blacklisted",
    "casual": "small talk",
    "too_short": "too short",
    "no_cue": "no cue",
    "circuit_open": "circuit open",
    "no_evidence": "no evidence",
    "no_notes": "no notes",
    "low_score": "score too low",
    "weak_match": "weak match",
    "not_final": "no final answer",
    "tool_calls": "tool calls only",
    "empty_answer": "empty answer",
    "short_answer": "short answer",
    "no_user_message": "no message",
    "router_no_retrieve": "router: no",
    "router_no_store": "router: no",
    "already_written": "already written",
}

#: Why a gate said no, or what it saw when it said yes, as a clause.
CLAUSES = {
    "no_context": "none of the notes found was fit to be given",
    "already_present": "the conversation holds these notes already",
    "failed": "it failed",
    "active": "the bridge is on",
    "disabled": "the bridge is switched off (BDH_ENABLED=false)",
    "paused_all": "the operator paused the bridge",
    "paused_session": "the operator paused this session",
    "human": "a person wrote it",
    "background_review": "it is the host's own background review",
    "delegation_result": "it is the result of a delegated task, not a person's words",
    "process_notice": "it is a notice of a background process",
    "text": "it is plain text",
    "not_injectable": "the message is not plain text, so nothing can be added to it",
    "empty_message": "the message is empty",
    "not_cron": "it is no cron job",
    "cron_opt_in": "the cron job opted in",
    "cron_not_opted_in": "the cron job did not opt in",
    "cron_record_unavailable": "the cron job's record can't be read, so it counts as not opted in",
    "platform_allowed": "its platform is allowed",
    "platform_denied": "its platform is denied (BDH_DENY_PLATFORMS)",
    "no_sender_list": "no list of senders is set",
    "sender_listed": "the sender is listed",
    "local_operator": "it is the local operator",
    "sender_not_listed": "the sender is not on the list",
    "sender_unknown": "the sender is unknown, and a list of senders is set",
    "no_rules": "the blacklist is empty",
    "no_rule_matched": "no rule of the blacklist matched",
    "rule_timed_out": "a rule ran out of time and counted as no match",
    "blacklisted": "a rule of the blacklist matched",
    "casual": "it is small talk",
    "knowledge_cue": "the words ask for knowledge",
    "question": "it is a question",
    "too_short": "the message is too short to ask anything",
    "no_cue": "no word in it asks for knowledge",
    "long_enough": "it is long enough to mean something",
    "circuit_closed": "the graph is thought to be up",
    "circuit_probe": "this turn probes whether the graph is back",
    "circuit_open": "the graph failed lately and is left alone",
    "terms_matched": "enough of the query's words occur in the notes",
    "vector_matched": "a note is near enough in meaning",
    "best_note": "the best note scores well enough",
    "no_evidence": "the graph gave no evidence for its notes",
    "no_notes": "the graph found no notes",
    "low_score": "the best score is too low",
    "weak_match": "too few words match and no note is near enough in meaning",
    "final_answer": "it is a final answer of some length",
    "not_final": "it is not the model's final answer",
    "tool_calls": "the answer only calls tools",
    "empty_answer": "the answer is empty",
    "short_answer": "the answer is too short to teach anything",
    "captured": "the user's message is known",
    "no_user_message": "the user's message was not seen by this process",
    "router_retrieve": "the router wants a read",
    "router_no_retrieve": "the router sees no need to read",
    "router_store": "the router wants it stored",
    "router_no_store": "the router sees nothing worth storing",
    "already_written": "this turn was written already",
}

#: What one hop of the provider chain came to.
HOPS = {
    "ok": "answered",
    "no_credential": "no key is set",
    "circuit_open": "left alone after failures",
    "rate_limited": "rate limited",
    "timeout": "timed out",
    "network": "network failed",
    "http_error": "HTTP error",
    "too_large": "answer too large",
    "invalid_json": "answer was no JSON",
    "schema_rejected": "answer broke the schema",
    "empty": "empty answer",
    "out_of_time": "no time left for it",
    "internal_error": "internal error",
}

_UNITS = {
    "terms": "matched terms",
    "hybrid": "hybrid score",
    "vector": "vector score",
    "note_score": "note score",
}


def short(code: str) -> str:
    return SHORT.get(code) or _unknown(code)


def clause(code: str) -> str:
    return CLAUSES.get(code) or _unknown(code)


def hop(code: str) -> str:
    return HOPS.get(code) or _unknown(code)


def unit(code: str) -> str:
    return _UNITS.get(code) or _unknown(code)


def _unknown(code: str) -> str:
    """A code of another version, or of anybody: it comes from the store, so it is escaped."""
    return plain(code.replace("_", " "), 60)
