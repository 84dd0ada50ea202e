"""Every reason code of a decision: few, stable, and safe to export.

Operators filter by these, so a code is never renamed or given a second meaning.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    # bridge
    ACTIVE = "active"
    DISABLED = "disabled"
    PAUSED_ALL = "paused_all"
    PAUSED_SESSION = "paused_session"
    # origin
    HUMAN = "human"
    BACKGROUND_REVIEW = "background_review"
    DELEGATION_RESULT = "delegation_result"
    PROCESS_NOTICE = "process_notice"
    # injectable
    TEXT = "text"
    NOT_INJECTABLE = "not_injectable"
    EMPTY_MESSAGE = "empty_message"
    # cron
    NOT_CRON = "not_cron"
    CRON_OPT_IN = "cron_opt_in"
    CRON_NOT_OPTED_IN = "cron_not_opted_in"
    CRON_RECORD_UNAVAILABLE = "cron_record_unavailable"
    # platform
    PLATFORM_ALLOWED = "platform_allowed"
    PLATFORM_DENIED = "platform_denied"
    # sender
    NO_SENDER_LIST = "no_sender_list"
    SENDER_LISTED = "sender_listed"
    LOCAL_OPERATOR = "local_operator"
    SENDER_NOT_LISTED = "sender_not_listed"
    SENDER_UNKNOWN = "sender_unknown"
    # blacklist
    NO_RULES = "no_rules"
    NO_RULE_MATCHED = "no_rule_matched"
    RULE_TIMED_OUT = "rule_timed_out"
    BLACKLISTED = "blacklisted"
    # eligibility
    CASUAL = "casual"
    KNOWLEDGE_CUE = "knowledge_cue"
    QUESTION = "question"
    TOO_SHORT = "too_short"
    NO_CUE = "no_cue"
    LONG_ENOUGH = "long_enough"
    # circuit
    CIRCUIT_CLOSED = "circuit_closed"
    CIRCUIT_PROBE = "circuit_probe"
    CIRCUIT_OPEN = "circuit_open"
    # relevance
    TERMS_MATCHED = "terms_matched"
    VECTOR_MATCHED = "vector_matched"
    BEST_NOTE = "best_note"
    NO_EVIDENCE = "no_evidence"
    NO_NOTES = "no_notes"
    LOW_SCORE = "low_score"
    WEAK_MATCH = "weak_match"
    # answer
    FINAL_ANSWER = "final_answer"
    NOT_FINAL = "not_final"
    TOOL_CALLS = "tool_calls"
    EMPTY_ANSWER = "empty_answer"
    SHORT_ANSWER = "short_answer"
    # captured
    CAPTURED = "captured"
    NO_USER_MESSAGE = "no_user_message"
    # route
    ROUTER_RETRIEVE = "router_retrieve"
    ROUTER_NO_RETRIEVE = "router_no_retrieve"
    ROUTER_STORE = "router_store"
    ROUTER_NO_STORE = "router_no_store"
    # once
    ALREADY_WRITTEN = "already_written"
