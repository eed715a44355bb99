"""What `make demo-elastic` records of the allocator's work, and the picture that it draws of it."""
