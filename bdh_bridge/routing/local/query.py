"""What to ask the graph without a model: the message, and what it leaves unsaid.

"And for staging?" means nothing to an index. What it goes on about stands in the user's messages
before it, so they are put in front.
"""

from __future__ import annotations

from bdh_bridge.gates import eligibility
from bdh_bridge.routing.local import cues
from bdh_bridge.routing.local.conversation import Conversation
from bdh_bridge.routing.local.shape import shown
from bdh_bridge.routing.text import clean, clip

#: A message of more (in letters of an alphabet) says what it is about.
ELLIPTIC, REFERRING = 32.0, 90.0
#: What is taken along: enough to name a topic, little enough not to drown the message.
TOPIC_MESSAGES, TOPIC_WEIGHT = 3, 40.0
QUERY_CHARS = 600


def is_follow_up(given: Conversation) -> bool:
    """Does the message need what was said before it to be understood?"""
    if not given.last("user"):
        return False
    seen = shown(given.message)
    weight = eligibility.weigh(seen)
    if weight < ELLIPTIC:
        return True
    return weight < REFERRING and cues.opens_with("continues", seen)


def queries(given: Conversation) -> list[str]:
    """For a follow-up its topic with the message, then the message alone, in case that the topic
    has changed. Empty for every other message: it is its own query."""
    own = clip(clean(given.message), QUERY_CHARS)
    if not own or not is_follow_up(given):
        return []
    return [clip(f"{_topic(given)} {own}", QUERY_CHARS), own]


def _topic(given: Conversation) -> str:
    """The last user messages, back to one that says enough."""
    taken: list[str] = []
    for skip in range(TOPIC_MESSAGES):
        text = given.last("user", skip)
        if not text:
            break
        taken.insert(0, text)
        if eligibility.weigh(eligibility.normalise(text)) >= TOPIC_WEIGHT:
            break
    return " ".join(taken)
