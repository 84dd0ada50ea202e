"""Screen 3: what the gates decided, counted."""
