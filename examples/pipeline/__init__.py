"""A pipeline with a DIJob as one of its steps: prepare → train → evaluate → promote, or not."""
