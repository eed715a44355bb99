"""The policies, one module each. They are loaded by name through `diflow.allocator.policy`."""
