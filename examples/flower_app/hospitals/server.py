"""The app of the server, which has no rows."""

import numpy as np

from fedconvex.engines.flower import server_app
from hospitals.agreed import method, roster


def done(result):
    print(result.status.name, f"after {result.rounds} rounds; F(w) is within {result.gap:.1e} of its minimum")
    np.save("model.npy", result.w)


app = server_app(method, roster, done, rounds=100, tol=1e-6, record_every=3, deadline=120.0)
