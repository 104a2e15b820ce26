"""The geometric median of the clients' mean rows: robust aggregation (Pillutla, Kakade, Harchaoui 2022)."""
