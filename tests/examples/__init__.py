"""Tests of the examples: each is real code that users copy."""
