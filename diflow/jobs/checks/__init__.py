"""Checks of a cluster and of what diflow needs in it."""
