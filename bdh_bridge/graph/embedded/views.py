"""The graph as the other routes show it: statistics, synapses, nodes and edges, vaults."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bdh_bridge.graph.embedded import consolidation, hebbian
from bdh_bridge.graph.embedded.excerpts import beginning
from bdh_bridge.graph.embedded.requests import VAULT_ID
from bdh_bridge.graph.embedded.service import GraphService, update_of
from bdh_bridge.graph.embedded.vault import clean_line

GRAPH_TEXT_CHARS = 200


def stats(service: GraphService) -> dict[str, Any]:
    now = service.clock()
    known = hebbian.synapses(service.state)
    weak = [s for s in known if s.weight < consolidation.WEAK_WEIGHT]
    neurons = len(service.index)
    dormant = len(service.state.dormant() & service.index.notes.keys())
    return {
        "neurons": neurons,
        "synapses": service.index.edge_count,
        "avg_degree": round(service.index.edge_count / neurons, 2) if neurons else 0.0,
        "hebbian_synapses": len(known),
        "queries_processed": service.state.queries,
        "dormant_neurons": dormant,
        "active_neurons": neurons - dormant,
        "top_hebbian": [update_of(s) for s in known[:10]],
        "hebbian_strong_synapses": len(known) - len(weak),
        "hebbian_weak_synapses": len(weak),
        "hebbian_stale_weak_synapses": sum(consolidation.is_stale(s, now) for s in weak),
    }


def synapses(service: GraphService) -> dict[str, Any]:
    known = hebbian.synapses(service.state)
    return {
        "total": len(known),
        "queries": service.state.queries,
        "synapses": [
            {
                "note_a": s.a,
                "note_b": s.b,
                "weight": s.weight,
                "frequency": s.frequency,
                "last_coactivated": _iso(s.last),
            }
            for s in known
        ],
    }


def vaults(service: GraphService) -> dict[str, Any]:
    return {
        "default_vault": VAULT_ID,
        "vaults": [
            {
                "id": VAULT_ID,
                "name": clean_line(service.root.name) or VAULT_ID,
                "path": str(service.root),
                "neurons": len(service.index),
                "synapses": service.index.edge_count,
                "embeddings": len(service.index),
                "queries_processed": service.state.queries,
            }
        ],
    }


def graph(service: GraphService) -> dict[str, Any]:
    dormant = service.state.dormant()
    unresolved = list(service.index.unresolved())
    return {
        "nodes": [
            {
                "id": note.id,
                "title": note.title,
                "display_label": note.title,
                "text": beginning(note.text, GRAPH_TEXT_CHARS),
                "path": str(note.file.path),
                "relative_path": f"{note.id}.md",
                "dormant": note.id in dormant,
                "evidence": len(note.evidence),
            }
            for note in service.index.notes.values()
        ],
        "edges": [{"source": a, "target": b} for a, b in service.index.edges()],
        "hebbian": [
            {"source": s.a, "target": s.b, "weight": s.weight, "frequency": s.frequency}
            for s in hebbian.synapses(service.state)
        ],
        "phantom": sorted({target for _, target in unresolved}),
        "unresolved": [{"source": a, "target": b} for a, b in unresolved],
        "stats": stats(service),
    }


def consolidate(service: GraphService, dry_run: bool) -> dict[str, Any]:
    now = service.clock()
    done = consolidation.consolidate(service.state, service.index.notes, now, dry_run=dry_run)
    return {
        "downscale_factor": consolidation.DOWNSCALE,
        "weight_floor": consolidation.WEIGHT_FLOOR,
        "synapses_before": done.synapses_before,
        "synapses_after": done.synapses_after,
        "synapses_pruned": done.floor_dropped,
        "stale_weak_pruned": done.stale_dropped,
        "nodes_before": len(service.index),
        "nodes_after": len(service.index),
        "nodes_removed": 0,
        "dormant_before": done.dormant_before,
        "dormant_after": done.dormant_after,
        "cycles": 1,
        "timestamp": _iso(now),
        "dry_run": dry_run,
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
