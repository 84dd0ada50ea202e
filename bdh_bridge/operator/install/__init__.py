"""Putting the bridge into a Hermes home, and taking it out again exactly."""
