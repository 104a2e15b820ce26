"""Theorems on boosting: rates, margins, and the accuracy of smoothing."""
