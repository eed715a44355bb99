"""Measurements of speed and memory. `make bench` prints them and writes out/bench.json."""
