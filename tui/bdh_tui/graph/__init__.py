"""Screen 5: the graph, live."""
