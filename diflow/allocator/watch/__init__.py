"""What the allocator sees: the objects that it watches, as records, and the cluster state at one moment."""
