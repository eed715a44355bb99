"""The policies, a room each, and what they share. They are loaded by name through `diflow.allocator.policies.base`."""
