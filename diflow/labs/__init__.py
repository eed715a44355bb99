"""Tools around diflow that it does not need itself: the simulator, the conformance checks, policies for comparison."""
