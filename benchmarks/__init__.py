"""Speed and memory, measured side by side in one run. `make bench` prints them and writes out/bench.json."""
