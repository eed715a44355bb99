"""What people are told of a plan: the text of each reason, what is short where, the whole plan."""
