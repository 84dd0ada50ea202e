"""Screen 7: writes on their way to the graph."""
