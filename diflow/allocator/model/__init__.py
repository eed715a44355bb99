"""The input and output of policies: snapshots, plans, and what is derived from them. Pure."""
