"""The writes, as plain values, and their only sender."""
