"""MultiBoost and its federated form."""
