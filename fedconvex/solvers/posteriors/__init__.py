"""Gaussian posteriors: free energies, their minimisers and what rounding does to their gradients."""
