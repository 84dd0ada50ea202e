"""Screens for durable queues: what waits, what is in doubt, and what an operator can do."""
