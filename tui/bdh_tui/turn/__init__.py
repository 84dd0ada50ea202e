"""Screen 2: one turn, span by span."""
