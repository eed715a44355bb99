"""What one tenant can try against the allocator, and how the others fare meanwhile."""
