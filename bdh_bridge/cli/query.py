"""``bdh-bridge query`` and ``stats``: ask the graph by hand."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bdh_bridge.cli import CommandError, Commands, examples, settings_of
from bdh_bridge.cli.output import Progress

if TYPE_CHECKING:
    from bdh_bridge.graph.client import GraphClient, GraphError
    from bdh_bridge.graph.models import QueryResult

_SECONDS = 30.0
_COUNTS = (
    ("neurons", "notes"),
    ("active_neurons", "active"),
    ("dormant_neurons", "dormant"),
    ("synapses", "links in the notes"),
    ("hebbian_synapses", "learned links"),
    ("hebbian_strong_synapses", "strong ones"),
    ("hebbian_weak_synapses", "weak ones"),
    ("queries_processed", "queries so far"),
)


def add(commands: Commands) -> None:
    query = commands.add_parser(
        "query",
        help="ask the graph, and see the scores",
        description="Ask the graph as an automatic read would: nothing is learned from it.",
        **examples(
            ('query "how do we deploy the relay?"', "the notes, and what the relevance gate says"),
            ('query --learn "relay deployment"', "a deliberate query: the graph learns from it"),
        ),
    )
    query.add_argument("text", help="the question")
    query.add_argument("--learn", action="store_true", help="let the graph learn and respond")
    query.add_argument("--vault", metavar="ID", help="another vault than BDH_VAULT_ID")
    query.add_argument("--json", action="store_true", help="print one JSON object")
    query.set_defaults(command=_query)

    stats = commands.add_parser(
        "stats", help="the graph's own figures", **examples(("stats", ""), ("stats --json", ""))
    )
    stats.add_argument("--vault", metavar="ID", help="another vault than BDH_VAULT_ID")
    stats.add_argument("--json", action="store_true", help="print the server's own answer")
    stats.set_defaults(command=_stats)


def _client(args: argparse.Namespace) -> GraphClient:
    from bdh_bridge.graph.client import GraphClient

    settings = settings_of(args).settings
    vault = settings.vault_id if args.vault is None else args.vault
    return GraphClient(settings.api_url, settings.api_token, vault)


def _query(args: argparse.Namespace) -> int:
    from bdh_bridge.graph.client import GraphError

    if not args.text.strip():
        raise CommandError("the question is empty")
    client = _client(args)
    try:
        with Progress() as progress:
            progress("asking the graph", 1, 2)
            result = client.query(
                args.text,
                source="hermes_tool" if args.learn else "automatic_retrieval",
                learn=args.learn,
                respond=args.learn,
                timeout=_SECONDS,
            )
    except GraphError as error:
        raise _explained(client, error) from error
    finally:
        client.close()
    if args.json:
        print(json.dumps(asdict(result)))
    else:
        _print(result)
    return 0


def _print(result: QueryResult) -> None:
    from bdh_otel.escape import escape_lines, one_line

    for note in result.notes:
        print(f"{note.score:6.2f}  {one_line(note.title or note.id, 100)}")
    if not result.notes:
        print("no notes")
    routing = result.routing
    if routing is not None and result.has_evidence:
        terms = f"{routing.matched_terms} of {routing.query_terms} terms matched"
        print(f"hybrid {routing.hybrid_top:.2f}, vector {routing.vector_top:.2f}, {terms}")
    print(f"An automatic read would {_verdict(result)}.")
    if result.response:
        print(f"\n{escape_lines(result.response)}")
    for title in result.new_concepts:
        print(f"new concept: {one_line(title, 100)}")
    if result.hebbian_updates:
        print(f"{result.hebbian_updates} links strengthened")


def _verdict(result: QueryResult) -> str:
    from bdh_bridge.gates.relevance import relevance

    scores: dict[str, Any] | None = None
    if result.routing is not None:
        scores = {
            "hybrid_top_score": result.routing.hybrid_top,
            "vector_top_score": result.routing.vector_top,
            "bm25_matched_term_count": result.routing.matched_terms,
        }
    decision = relevance(scores if result.has_evidence else {}, result.notes)
    reason = decision.reason.replace("_", " ")
    return f"give these to the model ({reason})" if decision.allowed else f"give nothing ({reason})"


def _stats(args: argparse.Namespace) -> int:
    from bdh_bridge.graph.client import GraphError

    client = _client(args)
    try:
        answer: Mapping[str, Any] = client.stats(timeout=_SECONDS)
    except GraphError as error:
        raise _explained(client, error) from error
    finally:
        client.close()
    if args.json:
        print(json.dumps(dict(answer)))
        return 0
    for key, meaning in _COUNTS:
        if isinstance(answer.get(key), int):
            print(f"{meaning:<20} {answer[key]:,}")
    return 0


def _explained(client: GraphClient, error: GraphError) -> CommandError:
    from bdh_otel.escape import one_line

    problem = one_line(str(error), 200)
    return CommandError(f"{client.api_url}: {problem}; see: bdh-bridge doctor")
