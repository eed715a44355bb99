"""Jobs of other programs as DIJobs, for `diflow convert`: what carries over, and by name what does not."""
