"""Screen 1: the turns as they happen."""
