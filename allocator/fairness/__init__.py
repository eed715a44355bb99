"""The parts of the fair policy: shares, orders, and victims, as small functions."""
