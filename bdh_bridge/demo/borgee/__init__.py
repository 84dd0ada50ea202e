"""The demo of the Borgee platform: a chat, a crash in the middle of a turn, and an operator.

``scripts/demo --borgee`` plays it. No Borgee server runs here: :mod:`.server` stands in for one.
"""
