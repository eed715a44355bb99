"""What all rooms may use: errors, keys, limits, quantities, words, durations, tables, names."""
