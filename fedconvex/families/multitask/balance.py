"""When the step size of an alternating direction method is changed: rarely, where its residuals differ much."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Balance(NamedTuple):
    """When and how eta of the joint method is changed: rarely, by 1.5, if relative residuals differ by more than 5.

    Residuals: ‖U - Z‖/max(‖U‖, ‖Z‖), and ‖Z - Z_old‖/(eta ‖V‖) (Wohlberg 2017).
    """

    due: int = 10  # round of the next look

    def step(
        self, t: int, eta: float, U: np.ndarray, Z: np.ndarray, old: np.ndarray, V: np.ndarray
    ) -> tuple[float, Balance]:
        """Return eta for the rounds after t, and when to look next."""
        if t < self.due:
            return eta, self
        apart = float(np.linalg.norm(U - Z)) / max(float(np.linalg.norm(U)), float(np.linalg.norm(Z)), 1e-300)
        moved = float(np.linalg.norm(Z - old)) / max(eta * float(np.linalg.norm(V)), 1e-300)
        later = Balance(int(1.3 * self.due) + 5)
        if apart > 5.0 * moved:
            return eta / 1.5, later
        return (eta * 1.5 if moved > 5.0 * apart else eta), later
