"""Tests of the allocator's policies and of the simulator."""
