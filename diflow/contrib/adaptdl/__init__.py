"""The training processes of AdaptDL: the routes that its clients speak, and the variables that they read."""
