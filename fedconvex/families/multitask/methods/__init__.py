"""MOCHA, joint MOCHA, CoCoA and mini-batch baselines."""
