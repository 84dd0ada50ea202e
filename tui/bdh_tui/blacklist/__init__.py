"""Screen 6: the blacklist, edited live."""
