"""What is said in the demo of the Borgee platform: people's messages and the scripted answers.

Answers have several lines, since the model server streams line by line.
"""

from __future__ import annotations

from dataclasses import dataclass

from bdh_bridge.demo.model_server import ScriptedAnswer

GUILD = "guild-marea"


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody writes to the agent, and where."""

    text: str
    author: str
    channel: str
    private: bool = False


DIRECT = Message(
    "Why did we choose SQLite instead of PostgreSQL on the gateway?", "Ada", "dm-ada", private=True
)
DIRECT_NOTE = "SQLite on the gateway instead of PostgreSQL"
CHANNEL = Message("Perché abbiamo abbandonato la rete mobile per le boe?", "Bruno", "buoys")
CHANNEL_NOTE = "Addio alla rete mobile per le boe"
DECISION = Message(
    "We decided today that the spare siren is stored in the rowing club's boathouse, and why.",
    "Ada",
    "decisions",
)
INTERRUPTED = Message("Send the report of the night to the harbour office.", "Ada", "reports")
BEHIND = Message("And tell them that buoy 11 had its usual gaps.", "Ada", "reports")
ELSEWHERE = Message("How did we configure the radio channels of the gateway?", "Bruno", "buoys")

ANSWERS = (
    ScriptedAnswer(
        DIRECT.text,
        "Because of four things:\n"
        "- one writer is enough for twelve buoys,\n"
        "- the file survives pulling the plug, which was tried two hundred times,\n"
        "- there is no server to start, upgrade or secure on a roof in winter,\n"
        "- and nine days of readings are only 40 MB.",
    ),
    ScriptedAnswer(
        CHANNEL.text,
        "Per tre motivi:\n"
        "- durante l'acqua alta la cella del paese era satura,\n"
        "- il modem scaricava la batteria in nove giorni senza sole,\n"
        "- dodici schede SIM costavano più di un concentratore nuovo ogni anno.",
    ),
    ScriptedAnswer(
        DECISION.text,
        "Noted as a decision: the spare siren of Marea is stored in the boathouse of the rowing "
        "club, on the shelf by the east door.\n"
        "Reasons: the boathouse stands on the highest ground by the harbour, so it can still be "
        "reached in a flood; somebody with a key lives next door.\n"
        "The harbour office's own shed was under water twice.",
    ),
    ScriptedAnswer(
        INTERRUPTED.text,
        "The report is with the harbour office:\n"
        "no alert level was reached, and all twelve buoys reported.",
    ),
    ScriptedAnswer(BEHIND.text, "They know about buoy 11 now."),
    ScriptedAnswer(
        ELSEWHERE.text,
        "868.1, 868.3 and 868.5 MHz at spreading factor 9;\ntwelve buoys use 0.6 % of the airtime.",
    ),
)


def answer_to(message: Message) -> str:
    return next(answer.text for answer in ANSWERS if answer.when == message.text)
