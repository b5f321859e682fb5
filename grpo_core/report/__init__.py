"""A round for people to read: which rollouts are worth a look, and a page that shows them."""
