"""The demo: a scripted conversation with the real Hermes Agent, each claim checked.

``python -m bdh_bridge.demo`` (what ``scripts/demo`` runs) starts the embedded graph on the sample
vault, a model server with scripted answers and the agent in a home of its own, holds the
conversation of :mod:`bdh_bridge.demo.conversation`, and says for every claim whether it was seen.
"""
