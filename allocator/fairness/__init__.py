"""Parts that `fair` and `fit` are made of: shares, orders, victims, who gives way, and who gets what is left."""
