"""bdh-bridge-tui: watch and steer the bridge from a terminal."""
