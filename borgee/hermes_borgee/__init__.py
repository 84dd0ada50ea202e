"""The Borgee platform adapter for Hermes Agent."""
