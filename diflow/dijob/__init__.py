"""The DIJob: what users write, its rules, and the form in which a Workflow stores it."""
