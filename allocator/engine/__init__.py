"""The allocator at work: caches, planning, reconciliation, patches, and the process around them."""
