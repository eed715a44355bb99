"""The records that a namespace keeps of its jobs, as lines in ConfigMaps."""
