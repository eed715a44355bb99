"""Tests of the running allocator: its view of the cluster, leader election, its writes."""
