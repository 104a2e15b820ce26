"""The empirical risk over columns of several owners: the blocks of the model lie where the columns are."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, instance, real, whole, wrong_type
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.joined import JoinedTable
from fedconvex.problems.protocol import VERTICAL_MODEL
from fedconvex.solvers.damping import block_map
from fedconvex.vertical_federation import VerticalFederation


class VerticalProblem(JoinedTable):
    """F(w) = mean_i l(sum_b x_{ib}'w_b, y_i) + (l2/2)‖w‖^2, w = (w_1, ..., w_K), w_b at the owner of the columns b.

    A model w is (d,), or (C, d) for a loss with C classes; columns ``federation.ptr[b]:ptr[b+1]`` of it are w_b.

    Parameters
    ----------
    federation : VerticalFederation
    loss : loss
    l2 : float
        Positive: the certificate and what is known of rates rest on it.

    Raises
    ------
    ValueError, TypeError
        If l2 is not positive, or the loss does not take the labels.

    Notes
    -----
    Certificate: F(w) - F* <= ‖grad F(w)‖^2/(2 l2) by strong convexity, one number an owner since
    ‖grad F‖^2 = sum_b ‖grad_b F‖^2. It is the duality gap at the dual variables -l'(z_i, y_i): there Fenchel's
    inequality is an equality, and with v = -X'l'/(l2 n) the gap is (l2/2)‖w - v‖^2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Logistic, VerticalFederation
    >>> from fedconvex.problems import VerticalProblem
    >>> rng = np.random.default_rng(0)
    >>> A, B, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)), rng.choice([-1, 1], 50)
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    >>> problem = VerticalProblem(fed, Logistic(), l2=0.1)
    >>> bool(problem.measure(problem.solve().w[None]).gap[0] < 1e-12)
    True
    """

    learns = VERTICAL_MODEL
    members = "owners"
    # the server is who knows the labels; of the owners it knows how many columns they have
    shared = ("y", "ptr", "n_outputs", "size", "penalty")
    fingerprint = "vertical"

    def __init__(self, federation: VerticalFederation, loss: Any, l2: float) -> None:
        instance("VerticalProblem.federation", federation, VerticalFederation)
        self.federation = federation
        self.l2 = real("VerticalProblem.l2", l2, low=0.0, strict=True)
        self.pooled = Problem(federation.rows, loss, self.l2)
        self.loss, self.y, self.ptr = self.pooled.loss, federation.y, federation.ptr
        self.weights = np.full(federation.K, 1.0 / federation.K)

    def block_gradient(self, slopes: np.ndarray, block: np.ndarray, b: int) -> np.ndarray:
        """grad_b F from the slopes (n, C) of all rows, in the shape of the block: what owner b makes of them."""
        g = (self._transposed[b] @ slopes).T / self.federation.n
        return np.asarray(g.reshape(block.shape) + self.l2 * block)

    @cached_property
    def _transposed(self) -> tuple[Any, ...]:
        """X_b': a view of dense rows; of CSR a copy by columns, which takes half the time of products with a view."""
        blocks = (self.federation.block(b).T for b in range(self.federation.K))
        return tuple(X.tocsr() if sp.issparse(X) else X for X in blocks)

    def damping(self, local_steps: int = 1, step_share: float = 1.0) -> np.ndarray:
        """Return the eigenvalues kappa of Pi H, (d,): parallel rounds of `FedBCD` converge iff theta < 2/max kappa.

        Errors grow or shrink by max |1 - theta kappa| a round in the long run; Pi = blockdiag((I - (I - eta_b H_bb)^Q)
        H_bb^{-1}), Q ``local_steps``, eta_b L_b = ``step_share``.

        Raises
        ------
        TypeError
            For losses that are not quadratic, whose rounds are not linear.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex import Squared, VerticalFederation
        >>> from fedconvex.problems import VerticalProblem
        >>> one = np.ones((4, 1))  # two owners of the same column: each takes the whole step
        >>> problem = VerticalProblem(VerticalFederation.from_blocks([one, one], np.ones(4)), Squared(), l2=0.25)
        >>> problem.damping().round(12).tolist()
        [0.2, 1.8]
        """
        if not self.traits.quadratic:
            got, cure = f"{self.loss!r}", 'take FedBCD(damping="safe")'
            raise wrong_type("VerticalProblem.damping", "be asked of a quadratic loss", got, cure)
        steps = whole("VerticalProblem.damping: local_steps", local_steps, low=1)
        share = real("VerticalProblem.damping: step_share", step_share, low=0.0, high=2.0, strict=True)
        X = self.federation.rows.X
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            S = X.T @ X
        H = np.asarray(S.toarray() if self.federation.is_sparse else S) / self.federation.n
        if not (np.isfinite(H).all() and (np.diag(H) + self.l2 > 0.0).all()):
            must = "be asked of features whose squares are doubles"
            raise bad("VerticalProblem.damping", must, "squares that overflow or vanish", "use other units")
        return block_map(H + self.l2 * np.eye(self.federation.d), self.ptr, steps, share)
