"""A study on Flower."""
