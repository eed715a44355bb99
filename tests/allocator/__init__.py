"""Tests of the allocator as it runs: its view of the cluster, its election, its writes."""
