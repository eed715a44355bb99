"""Data shards: a data set cut into ranges of indices, leased to the workers of a job. Pure: no I/O, no clock.

`dataset` says which samples a shard has; `ledger` who has which shard, and what is done.
"""
