"""Words of :mod:`bdh_bridge.gates.eligibility`."""
