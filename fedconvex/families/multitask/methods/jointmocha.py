"""JointMOCHA: MOCHA's nodes with a learned relationship, over W and Omega together and without alternation.

R(W) = lam (‖W‖^2/sigma2 + ‖W‖_*^2) is what is left after minimising over Omega; v_t = c_t X_t'alpha_t; some eta > 0.

1. node t: alpha_t <- 0, v_t <- 0; server: Z <- 0, W <- 0
2. each round: server sends w_t and rho_t = eta to node t
3.   node t: coordinate steps from u = w_t as in `mocha`; node answers v_t = c_t X_t'alpha_t
4. server: Z <- argmin R(Z') + ‖Z' - Z - eta V‖^2/(2 eta), which shrinks singular values; W <- 2 Z - (Z before)
5. server, rarely, unless eta is given: eta <- 1.5 eta or eta/1.5, to balance the residuals
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.draws import Draws
from fedconvex.families.multitask import dual_nodes
from fedconvex.families.multitask.balance import Balance
from fedconvex.families.multitask.dual_nodes import Memory, Message, NodeWork, Reply
from fedconvex.fields import CheckedFields, Positive
from fedconvex.problems import Covariance, FederatedProblem, Measure, MultiTaskProblem
from fedconvex.problems.protocol import MODEL_PER_TASK
from fedconvex.traits import LEAVE_OUT, Traits
from fedconvex.words import Words


class JointState(NamedTuple):
    """What the server of JointMOCHA keeps."""

    w: np.ndarray  # (R, m, *model) Z
    sent: np.ndarray  # (R, m, *model) W = 2 Z - (Z before)
    v: np.ndarray  # (R, m, p) V
    conjugate: np.ndarray  # (R, m) c_t sum of l*(-alpha_i)
    eta: np.ndarray  # (R,)
    due: np.ndarray  # (R,) when eta is looked at again
    steps: np.ndarray  # (R, m) coordinate steps so far
    prior: np.ndarray  # (2,) lam and sigma2
    t: int


def _valid_work(who: str, x: Any) -> NodeWork:
    """Return a `NodeWork`."""
    if not isinstance(x, NodeWork):
        raise wrong_type(who, "be a NodeWork, which says what nodes do", f"{x!r}")
    return x


@dataclass(frozen=True, kw_only=True)
class JointMOCHA(CheckedFields):
    """Multi-task learning with a learned Omega, over W and Omega together: no alternation, nothing to anneal.

    Nodes do what they do for `MOCHA`. With exact local solutions this is the alternating direction method of
    multipliers, or the primal-dual method of Chambolle and Pock, on sum_t losses + lam (‖W‖^2/sigma2 + ‖W‖_*^2); Omega
    is (Z Z')^{1/2}/trace. No rate is claimed for inexact solutions and dropped nodes: the joint gap certifies what a
    run reached, and not that it converges. Where nodes miss most rounds and the prior is light (lam small), runs may
    diverge; a smaller eta helps. On one task with one row x and the squared loss, a node that is back after many rounds
    overshoots by the factor (1/(2 lam) - eta)/(eta + 1/(c x^2)): with lam = 0.005, c x^2 = 1 and nine rounds of ten
    missed, eta = 1 diverges and eta = 0.1 converges (docs/theory/joint_mocha.md).

    Parameters
    ----------
    work : NodeWork
        What nodes do: epochs or local_steps, clock, drop, theta, replacement, participation. A `MOCHA` is one, of
        which nothing else is used.
    eta : float, optional
        Step of Z. None starts at 10 over the mean of c_t ‖x_i‖^2 and balances the residuals.

    Raises
    ------
    ValueError, TypeError
        If work is no `NodeWork`, or eta not positive.

    References
    ----------
    Chambolle, Pock, "A first-order primal-dual algorithm for convex problems with applications to imaging", J. Math.
    Imaging Vis. 40 (2011). Boyd et al., Found. Trends Mach. Learn. 3 (2011). Wohlberg, "ADMM penalty parameter
    selection by residual balancing", arXiv:1704.06209 (2017). Its use here: docs/mocha.md.

    Examples
    --------
    >>> from fedconvex import Hinge, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import JointMOCHA, NodeWork
    >>> from fedconvex.problems import Covariance, MultiTaskProblem
    >>> fed = logistic_federation(n_clients=5, seed=1).federation
    >>> problem = MultiTaskProblem(fed, Hinge(), Covariance(0.1), normalisation="mean")
    >>> run(JointMOCHA(work=NodeWork(epochs=2.0)), problem, rounds=2000, tol=1e-6, record_every=10).status.name
    'CONVERGED'
    """

    command = "jointmocha"
    benchmarks: ClassVar[Any] = {"jointmocha": {}}
    aims = ("learned relationship",)
    learns = (MODEL_PER_TASK,)
    constant = ("prior",)  # of the state: no round changes it
    lost = LEAVE_OUT

    work: Annotated[NodeWork, _valid_work] = NodeWork()
    eta: Positive | None = None

    memory = dual_nodes.memory  # 1

    def gradient_passes(self, problem: MultiTaskProblem) -> float:
        """Return the passes over all rows that a round takes."""
        return self.work.gradient_passes(problem)

    def words(self, problem: MultiTaskProblem) -> Words:
        made = self.work.words(problem)
        return made._replace(work=made.work.replace("NodeWork", "JointMOCHA", 1))

    @property
    def participation(self) -> Any:
        """Who is asked in a round."""
        return self.work.participation

    def statistics(self, problem: MultiTaskProblem) -> tuple[str, ...]:
        """Return what nodes are asked for before round 1: their conjugates, and the size of their rows to find eta."""
        return ("conjugate", "squared_norm") if self.eta is None else ("conjugate",)

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if the work does not fit the problem."""
        self.work.check_fit(problem, R)

    def init(self, problem: MultiTaskProblem, w: np.ndarray) -> JointState:
        start, R = dual_nodes.start(self, problem, w, 1.0), len(w)  # 1
        if not start.prior.size:
            raise bad("JointMOCHA: problem", "have a learned Omega", f"{problem.relation!r}", "use MOCHA")
        eta = np.full(R, self.eta or self._first_step(problem))
        due = np.full(R, Balance().due)
        return JointState(w, w, start.v, start.conjugate, eta, due, start.steps, start.prior, 0)

    @staticmethod
    def _first_step(problem: MultiTaskProblem) -> float:
        """Return 10 over the mean of c_t ‖x_i‖^2."""
        mean = float(np.sum(problem.statistic("squared_norm"))) / problem.federation.n
        return 10.0 / max(mean, 1e-300)

    def broadcast(self, state: JointState) -> Message:
        return Message(state.sent, np.tile(state.eta[:, None], (1, state.w.shape[1])))  # 2

    def local(
        self, problem: MultiTaskProblem, message: Message, clients: np.ndarray, memory: Memory, draws: Draws
    ) -> tuple[Reply, Memory]:
        work = self.work.asked(problem, draws.round)
        return dual_nodes.take_steps(problem, message, clients, memory, draws, work), memory  # 3

    def aggregate(self, state: JointState, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> JointState:
        mine = np.arange(len(clients))[:, None], clients
        v, conjugate, count, t = state.v.copy(), state.conjugate.copy(), state.steps.copy(), state.t + 1
        v[mine], conjugate[mine] = reply.v, reply.conjugate
        count[mine] += reply.steps
        relation, eta, due = Covariance(*state.prior.tolist()), state.eta.copy(), state.due.copy()
        old, sent = state.w.reshape(v.shape), state.sent.reshape(v.shape)
        new = np.array([relation.proximal(z + e * x, e) for z, x, e in zip(old, v, eta, strict=True)])  # 4
        for r in range(len(new)) if self.eta is None else ():
            U = sent[r] + eta[r] * (v[r] - state.v[r])
            e, balance = Balance(int(due[r])).step(t, float(eta[r]), U, new[r], old[r], v[r])
            eta[r], due[r] = e, balance.due  # 5
        w = new.reshape(state.w.shape)
        return JointState(w, 2.0 * w - state.w, v, conjugate, eta, due, count, state.prior, t)

    def traits(self, problem: MultiTaskProblem) -> Traits:
        return self.work.traits(problem)

    def measure(self, problem: MultiTaskProblem, state: JointState) -> Measure:
        V = state.v.reshape(state.w.shape)
        pairs = [problem.certificate(*one) for one in zip(state.w, V, state.conjugate, strict=True)]
        value, gap = np.array(pairs).T
        return Measure(value, gap)

    def observe(self, problem: MultiTaskProblem, state: JointState) -> dict[str, np.ndarray]:
        """Return dual, steps and eta, each (R,)."""
        dual = [-float(c.sum()) - problem.relation.conjugate(v) for c, v in zip(state.conjugate, state.v, strict=True)]
        return {"dual": np.array(dual), "steps": state.steps.sum(axis=1), "eta": state.eta}
