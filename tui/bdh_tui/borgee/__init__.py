"""Screen 8: messages received from Borgee; there only where its inbox is."""
