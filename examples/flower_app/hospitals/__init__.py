"""Three hospitals fit one logistic model on Flower."""
