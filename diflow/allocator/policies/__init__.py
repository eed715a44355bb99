"""The policies, a folder each, and what they share. `diflow.allocator.policies.base` loads them by name."""
