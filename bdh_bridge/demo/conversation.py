"""What is said in the demo: the user's messages and the scripted answers to them.

An answer under 200 characters isn't worth writing to the graph. The long ones are those of the
new decision, which is written, and of turns that must not write although they could.
"""

from __future__ import annotations

from bdh_bridge.demo.model_server import ScriptedAnswer

SMALL_TALK = "Ciao, grazie mille!"
QUESTION = "Why did we choose SQLite instead of PostgreSQL on the gateway?"
QUESTION_NOTE = "SQLite on the gateway instead of PostgreSQL"
ITALIAN_QUESTION = "Perché abbiamo abbandonato la rete mobile per le boe?"
ITALIAN_NOTE = "Addio alla rete mobile per le boe"
TOOL_REQUEST = "Look it up in the graph please: what happened when the clock of the gateway jumped?"
TOOL_QUERY = "clock drifted, NTP came back and readings were rejected as out of order"
TOOL_NOTE = "The night the clock drifted"
NEW_DECISION = (
    "We decided today that the spare siren is stored in the rowing club's boathouse, and why."
)
RECALL = "Where did we decide that the spare siren is stored?"
#: Words of the new decision that no other note holds.
RECALLED_WORDS = ("spare siren", "boathouse")
BLACKLISTED = "What did we decide about the salaries of the harbour office?"
BLACKLIST_RULE = "salaries"
CRON_PROMPT = "Report what we decided about the forecast model and the alert levels."
WITHOUT_GRAPH = "How did we configure the radio channels of the gateway?"

BLACKLIST = f"""\
# Prompts that neither read from the graph nor teach it. One rule a line.
{BLACKLIST_RULE}
re:\\bmedical (record|history)\\b
"""

ANSWERS = (
    ScriptedAnswer(SMALL_TALK, "Con piacere!"),
    ScriptedAnswer(
        QUESTION,
        "One writer is enough for twelve buoys, the file survives pulling the plug, and there "
        "is no server to keep up on a roof in winter.",
    ),
    ScriptedAnswer(
        ITALIAN_QUESTION,
        "Perché durante l'acqua alta la cella era satura, e il modem scaricava la batteria.",
    ),
    ScriptedAnswer(
        TOOL_REQUEST,
        "The gateway's clock ran 11 minutes ahead; when NTP corrected it, an hour of readings "
        "was rejected as out of order.",
        tool="bdh_query",
        arguments=f'{{"query": "{TOOL_QUERY}"}}',
    ),
    ScriptedAnswer(
        NEW_DECISION,
        "Noted as a decision. The spare siren of Marea is stored in the boathouse of the rowing "
        "club, on the shelf by the east door. Reasons: the boathouse stands on the highest "
        "ground by the harbour, so it can still be reached in a flood; somebody with a key lives "
        "next door; and the harbour office's own shed was under water twice. The siren is tried "
        "there once a quarter, together with the one on the bell tower.",
    ),
    ScriptedAnswer(RECALL, "In the rowing club's boathouse, on the shelf by the east door."),
    ScriptedAnswer(
        BLACKLISTED,
        "That is between the harbour office and its people, so I would rather not go into it here. "
        "If you keep a record of such decisions, the treasurer's binder is the right place for it; "
        "this conversation, and whatever is learned from it, is not. Ask me about the project.",
    ),
    ScriptedAnswer(
        CRON_PROMPT,
        "Report of the night. The forecast model ran every ten minutes and no run was skipped; its "
        "mean error was 2.9 cm. No alert level was reached: the highest water stood at 71 cm, at "
        "04:20 UTC. All twelve buoys reported, buoy 11 with its usual gaps. Nothing needs doing.",
    ),
    ScriptedAnswer(
        WITHOUT_GRAPH, "I can't see the notes just now; the settings file of the gateway says it."
    ),
)
