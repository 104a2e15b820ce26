"""What families of methods share: participation, step sizes, local work, optimisers, weighting, dual nodes."""
