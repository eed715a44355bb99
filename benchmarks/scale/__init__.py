"""The measurements at the scale of a large team, on a real API server and fake nodes: `make bench-scale`."""
