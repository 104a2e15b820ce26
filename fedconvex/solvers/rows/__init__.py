"""Sums over rows that objectives are made of: means of clients, weights, Hessians of all entries or of some."""
