"""Screen 4: the provider chain of classification and rewrite."""
