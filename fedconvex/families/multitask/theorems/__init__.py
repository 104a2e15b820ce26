"""Theorems on MOCHA, with fixed and with learned relations."""
