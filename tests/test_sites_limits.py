"""A server that reads rows out of answers, and what a site refuses it: schedule, ledger, audit."""

from __future__ import annotations

import itertools
import json
import logging
import math
import warnings
from typing import get_args, get_type_hints

import numpy as np
import pytest
import scipy.sparse as sp
from campaigns.sites import SHARED, shared
from test_contract import EVERY, kinds

from fedconvex import FedAvg, FederatedNewton, Federation, FedSGD, Logistic, Problem, Squared, methods, run
from fedconvex.methods import AFL, SCAFFOLD, IRMv1
from fedconvex.problems import InvariantProblem, MeanRegularised, MultiTaskProblem
from fedconvex.remote import Limits, Roster, Site, in_process
from fedconvex.remote.ledger import Audit, Latest
from fedconvex.remote.messages import ASK, JOIN, MEASURE, REFUSE, STATISTIC, Request, digest, fingerprint
from fedconvex.remote.questions import FIELDS
from fedconvex.remote.site_engine import SiteEngine

VERTICAL = {
    "FedBCD", "HyFDCA", "HybridDualAscent", "TrackedBlockDescent", "VerticalAcceleratedGradient",
    "VerticalGradientDescent", "VerticalNewtonCG",
}  # fmt: skip
OPEN = Limits(share=math.inf, trajectories=1 << 20, rows=0.0)
MAKE = lambda fed: Problem(fed, Logistic())  # noqa: E731


def patients(n=40, d=3, seed=0):
    """One client of n rows whose last column is an intercept, and labels of one half each."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, d - 1)), np.ones(n)])
    return Federation.from_clients([(X, np.where(np.arange(n) % 2, 1.0, -1.0))], labels=["north"])


class Server:
    """A server that asks what it likes, signed as it should be."""

    def __init__(self, site, method, fed, make=MAKE, trajectories=1, seed=0):
        self.site, self.round, self.refusals = site, -1, []
        seen, answered = [], []

        def ask(t, requests):
            seen.append(requests[0])
            answered.append(site.answer(requests[0]))
            return {0: answered[-1]}

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            SiteEngine(method, Roster.of(make, fed, patience=1, required=()), ask, np.uint64(seed), trajectories)
        self.session, self.joined = int(seen[0]["header"][4]), answered[0]

    def asks(self, kind, t, **arrays):
        """The answer, or None."""
        header = Request(kind, t, 0, self.session, fingerprint(arrays)).header()
        answer = self.site.answer({"header": header, **arrays})
        if answer["header"][1] != kind:
            self.refusals.append(answer["why"].tobytes().decode())
            return None
        return answer

    def measured(self, w):
        """Gradients at models (R, d), or None: one round a request."""
        self.round += 1
        answer = self.asks(MEASURE, self.round, w=w)
        return None if answer is None else answer["gradient"]

    def worked(self, w):
        """The same from local work."""
        self.round += 1
        numbers, none = np.arange(len(w)), np.full(2, -1)
        answer = self.asks(ASK, self.round, trajectories=numbers, acknowledged=none, **{"message/w": w})
        return None if answer is None else answer["reply/g"][:, 0]


def rows_read(ask, fed, models, requests, seed=1):
    """Rows (n', d) that a server makes out of gradients at models on a line: where one jumps by a single row.

    At S (a + t b), S large, the slope of row i is 0 or +-1 and jumps at t_i = -x_i'a/x_i'b, the gradient by x_i/n.
    Intervals in which it jumps are halved; a jump whose entry at the intercept is +-1/n is one row.
    """
    n, d, rng, S = fed.n, fed.d, np.random.default_rng(seed), 1e9
    a, b = rng.normal(size=d), rng.normal(size=d)
    found, known, left, spent = {}, {}, [], 0

    def gradients(ts):
        nonlocal spent
        spent += 1
        answers = ask(np.ascontiguousarray([S * (a + t * b) for t in ts]))
        if answers is not None:
            known.update(zip(ts, answers, strict=True))

    ends = np.tan(np.linspace(-1.55, 1.55, models)).tolist()
    gradients(ends)
    left = list(itertools.pairwise(ends))
    while left and spent < requests:
        new = []
        for s, t in left:
            jump = known[t] - known[s] if s in known and t in known else np.zeros(d)
            if abs(abs(jump[-1]) * n - 1.0) < 1e-6:
                found[s] = jump / jump[-1]
            elif np.abs(jump).max() > 1e-9 / n and t - s > 1e-12:
                new.append((s, 0.5 * (s + t), t))
        new = new[:models]
        if not new:
            break
        gradients([m for _, m, _ in new])
        left = [pair for s, m, t in new for pair in ((s, m), (m, t)) if m in known]
    return np.array([*found.values()]).reshape(-1, d)


def one_by_one(ask):
    """Ask about a model in each of as many rounds; NaN where nothing is answered."""

    def asked(W):
        found = [ask(w[None]) for w in W]
        return np.array([w * np.nan if g is None else g[0] for w, g in zip(W, found, strict=True)])

    return asked


def right(rows, fed):
    """How many of a site's rows are among those that were read, to seven digits."""
    if not len(rows):
        return 0
    off = np.abs(fed.X[:, None] - rows[None]).max(axis=2).min(axis=1)
    return int((off < 1e-6).sum())


@pytest.mark.parametrize("how", ["measured", "worked"])
def test_a_server_reads_rows_out_of_answers_where_nothing_is_limited(how):
    """The attack: more than nine of ten rows in a dozen requests of 128 models each."""
    fed, method = patients(), FedSGD(step_size=0.5)
    server = Server(Site(method, MAKE, fed, limits=OPEN), method, fed, trajectories=128)
    assert right(rows_read(getattr(server, how), fed, 128, 12), fed) > 0.9 * fed.n
    assert server.refusals == []


@pytest.mark.parametrize("how", ["measured", "worked"])
def test_a_site_refuses_it(how):
    """Many models at once, or in as many rounds as a server likes: hardly a row is read."""
    fed, method = patients(), FedSGD(step_size=0.5)
    site = Site(method, MAKE, fed)
    server = Server(site, method, fed, trajectories=128)
    assert server.joined["header"][1] == REFUSE
    assert b"runs 128 trajectories, and the site allows 64" in server.joined["why"].tobytes()
    server = Server(site, method, fed)  # joins as a run of one trajectory, and asks about many models all the same
    assert server.joined["header"][1] == JOIN
    assert right(rows_read(getattr(server, how), fed, 128, 12), fed) == 0
    assert server.refusals
    patient = one_by_one(getattr(server, how))
    assert right(rows_read(patient, fed, 16, 200), fed) <= 1
    assert site.ledger.numbers <= site.ledger.unknown == 40 * 4
    assert site.ledger.refused > 10


def test_a_count_alone_would_not_do():
    """With the audit off, single rows are read within the ledger; with the ledger open, none as a difference."""
    fed, method = patients(), FedSGD(step_size=0.5)
    read = {}
    for name, limits in {"count": Limits(rows=0.0), "audit": Limits(share=math.inf)}.items():
        server = Server(Site(method, MAKE, fed, limits=limits), method, fed)
        one = one_by_one(server.worked)
        read[name] = right(rows_read(one, fed, 16, 200), fed)
    assert read["count"] >= 5
    assert read["audit"] == 0


def between_two_jumps(fed, a, b):
    """Two models, far out on a line, between which the slope of one row jumps and no other one's."""
    ts = np.sort(-(fed.X @ a) / (fed.X @ b))
    i = int(np.argmax(np.diff(ts[5:-5]))) + 5
    return [1e9 * (a + 0.5 * (ts[j] + ts[j + 1]) * b) for j in (i, i + 1)]


PAIR = np.array([1.0, 0.3, 0.2]), np.array([0.1, 1.0, -0.4])


def environment(fed):
    return InvariantProblem(fed, Logistic(), 1.0)


def tasks(fed):
    return MultiTaskProblem(fed, Logistic(), MeanRegularised(0.1, 0.1))


@pytest.mark.parametrize(
    ("method", "make", "kind", "name", "shape"),
    [
        (FedSGD(step_size=0.5), MAKE, MEASURE, "w", (3,)),
        (methods.FedDualAvg(step_size=0.5), MAKE, ASK, "message/z", (3,)),
        (methods.RADFed(step_size=0.5), MAKE, ASK, "message/w", (1, 3)),
        (methods.MOCHA(), tasks, MEASURE, "w", (1, 3)),
        (IRMv1(step_size=0.5), environment, ASK, "message/w", (3,)),
    ],
    ids=["measured", "dual model", "a place's own model", "task", "environment"],
)
def test_models_are_audited_wherever_they_stand(method, make, kind, name, shape):
    fed = patients()
    one, other = between_two_jumps(fed, *PAIR)
    server = Server(Site(method, make, fed, limits=Limits(share=math.inf)), method, fed, make)
    more = {} if kind == MEASURE else {"trajectories": np.zeros(1, np.int64), "acknowledged": np.full(2, -1)}
    assert server.asks(kind, 0, **{name: one.reshape(1, *shape)}, **more) is not None
    assert server.asks(kind, 1, **{name: other.reshape(1, *shape)}, **more) is None
    assert "by a single row" in server.refusals[0]


def test_a_model_that_is_not_finite_hides_no_other_one():
    fed, method = patients(), FedSGD(step_size=0.5)
    one, other = between_two_jumps(fed, *PAIR)
    server = Server(Site(method, MAKE, fed, limits=Limits(share=math.inf)), method, fed, trajectories=2)
    assert server.measured(np.array([one, one * np.nan])) is not None
    assert server.measured(np.array([one * np.nan, other])) is None
    assert "by a single row" in server.refusals[0]


@pytest.mark.parametrize("how", ["measured", "worked"])
def test_each_domain_is_audited_where_they_are_weighed(how):
    """The slopes of many rows change, and of one in the domain that the server weighs: the difference is that row."""
    fed, (a, b) = patients(), PAIR
    jumps = np.argsort(-(fed.X @ a) / (fed.X @ b))
    names = np.where(np.isin(np.arange(40), jumps[1::2]), "odd", "even")  # one after the other on the line
    half = Federation.from_arrays(fed.X, fed.y, ["north"] * 40, domains=names)
    own = half.subset([0])
    at = np.sort(-(fed.X @ a) / (fed.X @ b))
    one, other = (1e9 * (a + 0.5 * (at[j] + at[j + 1]) * b) for j in (16, 18))  # two rows jump, one of each domain
    method = AFL(step_size=0.1, domain_step_size=0.1)

    def asked(server, t, w, alpha):
        if how == "measured":
            return server.asks(MEASURE, t, w=w[None], alpha=alpha)
        more = {"message/counts": np.array([[20.0, 20.0]]), "acknowledged": np.full(2, -1)}
        more |= {"message/w": w[None], "message/domain_weights": alpha, "trajectories": np.zeros(1, np.int64)}
        return server.asks(ASK, t, **more)

    server = Server(Site(method, MAKE, own, limits=Limits(share=math.inf, rows=1.9)), method, half)
    assert asked(server, 0, one, np.array([[0.0, 1.0]])) is not None, server.refusals
    assert asked(server, 1, other, np.array([[0.0, 1.0]])) is None
    assert "by a single row" in server.refusals[0]


def test_a_hessian_of_one_patient_is_refused():
    """Far out the score of one row only is not certain: its Hessian, less l2, is that row times its transpose."""
    fed, method, l2 = patients(), FederatedNewton(), 0.01
    make = lambda f: Problem(f, Logistic(), l2=l2)  # noqa: E731
    a, i = PAIR[0], 17
    w = 1e6 * (a - (fed.X[i] @ a) * np.eye(3)[2])
    more = {"acknowledged": np.full(2, -1), "message/w": w[None], "trajectories": np.zeros(1, np.int64)}
    server = Server(Site(method, make, fed, limits=Limits(rows=0.0)), method, fed, make)
    upper, H = np.triu_indices(3), np.zeros((3, 3))
    H[upper] = server.asks(ASK, 0, **more)["reply/hessian"][0, 0]
    H -= l2 * np.eye(3)
    np.testing.assert_allclose(H[:, 2] / H[2, 2], fed.X[i], rtol=1e-9)  # without an audit: the patient
    server = Server(Site(method, make, fed, limits=Limits()), method, fed, make)
    assert server.asks(ASK, 0, **more) is None and "fewer than five rows" in server.refusals[0]
    assert server.asks(ASK, 0, **{**more, "message/w": np.zeros((1, 3))}) is not None


def test_hessians_that_differ_by_one_row_are_refused_though_slopes_of_many_do():
    """Curvatures are equal at z and -z: of two models that mirror each other all slopes change, and one curvature."""
    X = np.zeros((60, 3))
    X[:, 2], X[:30, 0], X[30, 1] = 1.0, np.where(np.arange(30) % 2, 1.0, -1.0), 1.0  # row 30 alone has column 1
    problem = Problem(Federation.from_clients([(X, np.where(np.arange(60) % 3, 1.0, -1.0))]), Logistic())
    one, other = np.array([[1e3, 0.0, 0.5]]), np.array([[-1e3, 2.0, -0.5]])
    difference = problem.hessian(other[0]) - problem.hessian(one[0])
    assert np.linalg.matrix_rank(difference, tol=1e-9) == 1 and difference[0, 0] == 0.0
    for hessians in (False, True):
        audit = Audit(2.0, hessians)
        assert audit.few(problem, one, False) == ""
        audit.keep()
        assert ("single row" in audit.few(problem, other, False)) is hessians


def one_row_alone(sparse):
    """A hundred rows of which row 7 alone has column 4, and row 0 column 5; the first ten are a domain."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 6))
    X[:, 4:] = 0.0
    X[7, 4], X[0, 5] = 1.0, 100.0
    domains = np.where(np.arange(100) < 10, "few", "many")
    fed = Federation.from_arrays(sp.csr_array(X) if sparse else X, rng.normal(size=100), ["n"] * 100, domains=domains)
    return Problem(fed, Squared()), np.array([0.1, 0.2, -0.1, 0.3, 0.0, 0.0])


@pytest.mark.parametrize("by_domain", [False, True])
def test_a_row_of_a_small_domain_is_a_row_of_its_site(by_domain):
    """Domains of ten rows are too small to be audited: the site as a whole is, whatever is weighed."""
    problem, w = one_row_alone(sparse=False)
    audit, other = Audit(2.0), w + 3.0 * (np.arange(6) == 4)
    assert audit.few(problem, w[None], by_domain) == ""
    audit.keep()
    assert "by a single row" in audit.few(problem, other[None], by_domain)


@pytest.mark.parametrize("at_once", [1, 250, 1 << 18])
@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_model_is_held_against_every_earlier_one(place, at_once, monkeypatch):
    """One, two or all models of 100 rows at once: whichever of six earlier ones is the near one, it is found."""
    monkeypatch.setattr("fedconvex.remote.ledger._AT_ONCE", at_once)
    problem, w = one_row_alone(sparse=False)
    audit, earlier = Audit(2.0), w + np.random.default_rng(1).normal(size=(6, 6)) * (np.arange(6) < 4)
    for model in earlier:
        assert audit.few(problem, model[None], False) == ""
        audit.keep()
    near = earlier[place] + 3.0 * (np.arange(6) == 4)
    assert "by a single row" in audit.few(problem, near[None], False)
    elsewhere = near + np.array([0.1, -0.2, 0.3, 0.1, 0.0, 0.0])
    assert audit.few(problem, elsewhere[None], False) == ""


@pytest.mark.compiled
@pytest.mark.parametrize("at_once", [1, 1 << 18])
def test_changes_of_few_rows_are_found_in_all_ways(at_once, monkeypatch):
    """By a kernel, for several outputs, among the rows of a domain: (sum |d|)^2 < 2.5 sum d^2 for one of m changes."""
    monkeypatch.setattr("fedconvex.remote.ledger._AT_ONCE", at_once)
    rng, audit, found = np.random.default_rng(0), Audit(2.5), []
    for _ in range(300):
        m, n, changed = rng.integers(0, 6), 40, rng.integers(1, 7, 5)
        now = rng.normal(size=(n, 1))
        then = np.repeat(now[None], m, axis=0)
        for i in range(m):
            rows = rng.choice(n, changed[i % 5], replace=False)
            then[i, rows, 0] += rng.normal(size=rows.size) * rng.choice([1.0, 1e-14])
        d = np.abs(then - now)[:, :, 0]
        few = bool(((d.sum(axis=1) ** 2 < 2.5 * (d * d).sum(axis=1)) & (d.max(axis=1) > 1e-13)).any()) if m else False
        twice = np.concatenate([then, np.ones_like(then)], axis=2), np.concatenate([now, np.ones_like(now)], axis=1)
        order = rng.permutation(n)
        ways = [audit._is_few(then, now, None), audit._is_few(*twice, None), audit._is_few(then, now, order)]
        assert ways == [few] * 3
        found.append(few)
    assert 50 < sum(found) < 250


@pytest.mark.compiled
@pytest.mark.parametrize("size", [1e153, 1e155, 1e300, 1e308])
@pytest.mark.parametrize("by_domain", [False, True])
@pytest.mark.parametrize("hessians", [False, True])
def test_a_row_is_noticed_though_squares_overflow(hessians, by_domain, size):
    """A server that goes so far out that the squares of changes are infinite reads a row like any other one."""
    problem, w = one_row_alone(sparse=False)
    audit, far = Audit(2.0, hessians), 1e155 * w  # where all changes overflow
    for model in (far, w):
        assert audit.few(problem, model[None], by_domain) == ""
        audit.keep()
    assert "by a single row" in audit.few(problem, w[None] + size * (np.arange(6) == 4), by_domain)
    assert "by a single row" in audit.few(problem, w[None] + 3.0 * (np.arange(6) == 4), by_domain)


@pytest.mark.compiled
def test_changes_whose_squares_overflow_are_those_of_few_rows_or_not():
    """In all ways of comparing; also where the change itself is larger than any number, beside models that are near."""
    audit, rng = Audit(2.5), np.random.default_rng(0)
    for size in (1.0, 1e153, 1e155, 1e300, 1.7e308):
        for changed in (1, 2, 4, 30):
            now = rng.normal(size=(40, 1))
            then = np.repeat(now[None], 3, axis=0) + 10.0  # of all rows
            rows = rng.choice(40, changed, replace=False)
            then[1] = now
            then[1, rows, 0], now[rows, 0] = -size, size
            twice = np.repeat(then, 2, axis=2), np.repeat(now, 2, axis=1)
            ways = (then, now, None), (*twice, None), (then, now, rng.permutation(40))
            assert [audit._is_few(*way) for way in ways] == [changed < 3] * 3, (size, changed)
    near, now = np.full((2, 40, 2), 1e160), np.zeros((40, 2))
    near[1] = 0.0
    near[1, 3] = 1.0
    assert audit._is_few(near, now, None)


def read_otherwise(w, R):
    """Return two questions: R models at zero with weights of two domains, and w, where a name is taken for bytes.

    Without a mark of where names end, the bytes of both are the same: the weights hold what the other one describes.
    """
    later = f"w ({R}, 3) <f8;".encode() + bytes(24 * R)
    for letters, left in itertools.product(range(8), range(16 * R)):
        head = b"a" * letters + b" (0,) |u1;w (1, 3) <f8;" + w.tobytes() + f"x ({left + len(later)},) |u1;".encode()
        if len(head) + left == 16 * R and ((weights := np.frombuffer(head + bytes(left))) >= 0.0).all():
            weights = weights.reshape(R, 2)
            named = {f"alpha ({R}, 2) <f8;" + "a" * letters: np.zeros(0, np.uint8), "w": w[None]}
            rest = np.frombuffer(bytes(left) + later, np.uint8)
            return {"alpha": weights, "w": np.zeros((R, 3))}, named | {"x": rest}
    raise AssertionError


def test_a_question_is_known_by_its_arrays_however_they_are_named():
    """Else a server would have models answered that nobody has audited, nor counted."""
    fed = patients()
    one, other = between_two_jumps(fed, *PAIR)
    names = np.where(np.arange(40) % 2, "odd", "even")
    half = Federation.from_arrays(fed.X, fed.y, ["north"] * 40, domains=names)
    method = AFL(step_size=0.1, domain_step_size=0.1)
    site = Site(method, MAKE, half.subset([0]), limits=Limits(share=math.inf))
    server = Server(site, method, half, trajectories=16)
    assert server.asks(MEASURE, 0, w=one[None]) is not None
    asked, named = read_otherwise(other, 16)
    assert server.asks(MEASURE, 0, **asked) is not None
    assert server.asks(MEASURE, 0, **named) is None
    assert digest(asked) != digest(named)
    assert "is not made of it" in server.refusals[0]


def test_the_latest_arrays_are_those_of_a_list():
    """Any number at a time, beyond what is kept: by place in the tuples, in some order."""
    rng, kept, listed = np.random.default_rng(0), Latest(20), []
    for some in (0, 1, 3, 8, 0, 13, 30, 5):
        new = [(rng.normal(size=(4, 2)), rng.normal(size=(3,))) for _ in range(some)]
        kept.add(new)
        listed = [*listed, *new][-20:]
        assert len(kept) == len(listed)
        for place, shape in enumerate([(4, 2), (3,)]):
            found = sorted(a.tobytes() for a in kept.array(place, shape))
            both = kept.array(place, shape, zeros=True)
            assert not both[0].any()
            assert sorted(a.tobytes() for a in both[1:]) == found
            assert found == sorted(one[place].tobytes() for one in listed)


def test_more_models_than_are_kept_overwrite_the_oldest():
    """The 128th before is still compared with, and one row apart from it is noticed; earlier ones are forgotten."""
    problem, w = one_row_alone(sparse=False)
    audit, earlier = Audit(2.0), w + np.random.default_rng(1).normal(size=(150, 6)) * (np.arange(6) < 4)
    for model in earlier:
        assert audit.few(problem, model[None], False) == ""
        audit.keep()
    assert len(audit.models) == 128
    for i in (149, 100, 22):
        assert "by a single row" in audit.few(problem, earlier[i][None] + 3.0 * (np.arange(6) == 4), False)
    assert audit.few(problem, earlier[21][None] + 3.0 * (np.arange(6) == 4), False) == ""


@pytest.mark.parametrize("sparse", [True, False])
def test_scores_that_overflow_hide_no_rows_with_zeros_there(sparse):
    """Dense answers are NaN throughout; of sparse rows a kernel skips the zeros, and tells the others."""
    problem, w = one_row_alone(sparse)
    far = w + 1e307 * (np.arange(6) == 5)
    with np.errstate(over="ignore", invalid="ignore"):
        told = np.isfinite(problem.gradient(far)).any()
        assert bool(told) is sparse
        assert ("overflow" in Audit(2.0).few(problem, far[None], False)) is sparse


def test_an_invitation_to_a_huge_roster_takes_no_memory():
    """480 kB that would become two matrices of sites by sites, 3.2 GB each."""
    fed, method = patients(), FedSGD(step_size=0.5)
    Server(site := Site(method, MAKE, fed), method, fed)
    told = {k: v for k, v in site.joined.items() if k != "session"}
    K = 20_000
    told |= {"ids": np.arange(K), "sizes": np.full(K, 40), "masses": np.full(K, 40.0)}
    answer = site.answer({"header": Request(JOIN, -1, 0, 1, fingerprint(told)).header(), **told})
    assert b"20,000 sites is larger" in answer["why"].tobytes()
    domains = np.frombuffer(json.dumps([*range(100_000)]).encode(), dtype=np.uint8)
    told |= {"ids": np.arange(1000), "sizes": np.full(1000, 40), "masses": np.full(1000, 40.0), "domains": domains}
    answer = site.answer({"header": Request(JOIN, -1, 0, 1, fingerprint(told)).header(), **told})
    assert b"1,000 sites is larger" in answer["why"].tobytes()


def test_a_site_that_starts_again_still_knows_what_it_answered(tmp_path):
    """The pair of models whose answers differ by one row: one before, one after."""
    fed, method = patients(), FedSGD(step_size=0.5)
    models = [w[None] for w in between_two_jumps(fed, *PAIR)]
    build = lambda: Site(method, MAKE, fed, checkpoint=tmp_path / "north")  # noqa: E731
    assert Server(build(), method, fed).measured(models[0]) is not None
    server = Server(build(), method, fed)
    assert server.measured(models[1]) is None
    assert "by a single row" in server.refusals[0]


def test_the_ledger_counts_numbers_over_all_runs_and_lives(tmp_path):
    fed, method = patients(), FedAvg(step_size=0.5, local_steps=2)
    site = Site(method, MAKE, fed, checkpoint=tmp_path / "north", limits=Limits(share=0.5))
    server, w = Server(site, method, fed), np.zeros((1, 3))
    assert server.measured(w) is not None
    assert (site.ledger.numbers, site.ledger.answers) == (1 + 3 + 1 + 1, 1)  # value, gradient, error, off
    assert server.measured(w) is not None  # the same model, a round later: nothing new
    counted = site.ledger.numbers
    server = Server(site, method, fed, seed=1)  # another run
    assert server.joined["header"][1] == JOIN
    assert site.ledger.numbers == counted
    again = Site(method, MAKE, fed, checkpoint=tmp_path / "north", limits=Limits(share=0.5))  # another life
    assert again.ledger.numbers == counted
    server = Server(again, method, fed, seed=1)
    rng = np.random.default_rng(0)
    while server.measured(rng.normal(size=(1, 3))) is not None:
        assert again.ledger.numbers <= 80
    assert again.ledger.numbers > 80 - 6
    assert "allows no more (Limits(share=0.5))" in server.refusals[-1]
    assert "of the 160 that the rows hold; at most 80; 1 refused)" in repr(again.ledger)


def test_requests_outside_of_the_schedule_are_refused():
    fed = Federation.from_arrays(np.eye(4), [1.0, -1.0, 1.0, -1.0], [0, 0, 0, 0], domains=["a", "a", "b", "b"])
    w, alpha, one = np.zeros((1, 4)), np.ones((1, 2)), np.zeros(1, dtype=np.int64)
    none = np.full(2, -1)
    plain, agnostic = FedSGD(step_size=0.5), AFL(step_size=0.1, domain_step_size=0.1)
    game = lambda f: InvariantProblem(f, Logistic(), 0.3)  # noqa: E731
    work = {"acknowledged": none, "message/w": w}
    single = Federation.from_arrays(np.eye(4), [1.0, -1.0, 1.0, -1.0], [0, 0, 0, 0])
    for method, make, kind, t, arrays, said in (
        (plain, MAKE, MEASURE, 0, {"w": w, "alpha": alpha}, "the certificate of FedSGD is not made of it"),
        (plain, MAKE, MEASURE, 0, {"w": np.zeros((2, 4))}, "not of at most 1 models"),
        (plain, MAKE, MEASURE, -2, {"w": w}, "there is no round -2"),
        (plain, MAKE, ASK, -1, {**work, "trajectories": one}, "there is no round -1"),
        (plain, MAKE, ASK, 20, {**work, "trajectories": one}, "round 20 is not one of the 20"),
        (plain, MAKE, ASK, 0, {**work, "trajectories": np.zeros(2, np.int64)}, "not different ones of 1"),
        (plain, MAKE, ASK, 0, {"trajectories": one, "acknowledged": np.zeros(2), "message/w": w}, "counts on"),
        (plain, MAKE, STATISTIC, -1, {"name": np.frombuffer(b"smoothness", np.uint8)}, "needs no statistic"),
        (agnostic, MAKE, MEASURE, 0, {"w": w, "alpha": np.ones((1, 3))}, "have shape (1, 3)"),
        (IRMv1(step_size=0.1), game, MEASURE, 0, {"moments": np.ones(1)}, "the certificate of IRMv1"),
    ):
        own = single if make is game else fed
        site = Site(method, make, own, limits=Limits(share=math.inf, rounds=20))
        server, counted = Server(site, method, own, make), site.ledger.numbers
        assert server.asks(kind, t, **arrays) is None, said
        assert said in server.refusals[0], server.refusals
        assert site.ledger.numbers <= counted + 1  # what is found wrong after it was looked at counts one


def test_a_round_is_asked_again_a_few_times_only():
    """A server that goes back to its checkpoint may ask another question in the same round; not as many as it likes."""
    fed, method = patients(), FedSGD(step_size=0.5)
    server = Server(Site(method, MAKE, fed, limits=OPEN), method, fed)
    rng = np.random.default_rng(0)
    found = [server.asks(MEASURE, 3, w=rng.normal(size=(1, 3))) is not None for _ in range(12)]
    assert found == [True] * 8 + [False] * 4
    assert "asks for more models than its method has in a round" in server.refusals[0]


def test_another_invitation_makes_another_question():
    """A server that invites anew under the session's number chooses other draws: no batch comes for nothing."""
    fed, method = patients(), FedAvg(step_size=0.5, local_steps=1, batch_size=8)
    site, told, w = Site(method, MAKE, fed), [], np.array([[0.1, -0.2, 0.3]])

    def ask(t, requests):
        told.append(requests[0])
        return {0: site.answer(requests[0])}

    SiteEngine(method, Roster.of(MAKE, fed, patience=1, required=()), ask, np.uint64(0), 1)
    joining, answers = {name: a for name, a in told[0].items() if name != "header"}, set()
    question = {"trajectories": np.zeros(1, np.int64), "acknowledged": np.full(2, -1), "message/w": w}
    for key in range(12):
        invited = joining | {"key": np.array(key, dtype=np.uint64)}
        site.answer({"header": Request(JOIN, -1, 0, 7, fingerprint(invited)).header(), **invited})
        answer = site.answer({"header": Request(ASK, 0, 0, 7, fingerprint(question)).header(), **question})
        if answer["header"][1] == ASK:
            answers.add(answer["reply/w"].tobytes())
    assert 1 < len(answers) <= 8
    assert site.ledger.numbers >= 3 * len(answers)


def test_another_memory_makes_another_question():
    """An earlier round that is asked anew changes what SCAFFOLD remembers, and so the answer to the same message."""
    fed, method, none = patients(), SCAFFOLD(step_size=0.5, local_steps=2), np.full(2, -1)
    site = Site(method, MAKE, fed)
    server, w, one = Server(site, method, fed), np.zeros((1, 3)), np.zeros(1, np.int64)

    def asked(t, acknowledged, c):
        message = {"message/w": w, "message/c": np.full((1, 3), c)}
        return server.asks(ASK, t, trajectories=one, acknowledged=acknowledged, **message)

    found = []
    for c in (0.0, 0.5, 0.0, 0.5):
        assert asked(0, none, c) is not None
        found.append(asked(1, np.zeros(2, np.int64), 0.0))
    changes = {b"".join(a[name].tobytes() for name in sorted(a) if name.startswith("reply/")) for a in found}
    assert len(changes) == 2
    assert site.ledger.answers == 4  # two questions of round 0, and two of round 1; what comes again is no new one


def test_refusals_are_counted_and_tell_nothing_once_the_ledger_is_full():
    """Whether one row or none changes its side is an answer too: a line is searched for the places where rows do."""
    fed, method = patients(), FedSGD(step_size=0.5)
    site = Site(method, MAKE, fed)
    server = Server(site, method, fed)
    a, b, wrong = np.array([1.0, 0.3, 0.2]), np.array([0.1, 1.0, -0.4]), np.zeros(3)
    ts = np.sort(-(fed.X @ a) / (fed.X @ b))
    i = int(np.argmax(np.diff(ts[5:-5]))) + 5
    assert server.measured(1e9 * (a + 0.5 * (ts[i - 1] + ts[i]) * b)[None]) is not None  # before one row's jump
    for t in np.linspace(ts[i], ts[i + 1], 302)[1:-1]:  # and 300 models after it
        assert server.measured(1e9 * (a + t * b)[None]) is None
    told = ["by a single row" in why for why in server.refusals]
    assert told == [True] * (160 - 6) + [False] * 146
    assert site.ledger.numbers == site.ledger.unknown == 160
    site = Site(method, MAKE, fed, limits=Limits(share=100.0))
    server = Server(site, method, fed)
    assert server.asks(ASK, 0, trajectories=np.zeros(1, np.int64), acknowledged=wrong, **{"message/w": a[None]}) is None
    assert site.ledger.numbers == 1
    assert site.audit.models == []  # what was not answered is nothing to compare with


@pytest.mark.slow
def test_runs_within_their_limits_are_not_disturbed_and_are_logged(caplog):
    """The bits of one process; the log says at half, and at all, of what the rows hold, and when it is over."""
    rng = np.random.default_rng(2)
    clients = [(rng.normal(size=(60, 3)), rng.choice([-1.0, 1.0], 60)) for _ in range(2)]
    fed = Federation.from_clients(clients, labels=["north", "east"])
    make = lambda f: Problem(f, Logistic(), 0.1)  # noqa: E731
    method = SCAFFOLD(step_size=0.5, local_steps=2)
    sites = [Site(method, make, fed.subset([k]), limits=Limits(share=1.1, rounds=20)) for k in range(2)]
    plain = in_process(sites)
    with caplog.at_level(logging.WARNING, "fedconvex"):
        result = run(method, Roster.of(make, fed), transport=plain, rounds=20, tol=0)
    np.testing.assert_array_equal(result.state.w, run(method, make(fed), rounds=20, tol=0).state.w)
    assert sites[0].ledger.numbers == 20 * 6 + 21 * 6  # 2 d of SCAFFOLD a round; value, gradient, two of rounding
    assert "site north: Ledger(" in caplog.text
    assert "% of the 240 that the rows hold" in caplog.text


@pytest.mark.slow
def test_trials_in_one_process_are_not_limited_unless_asked_to():
    fed, method = patients(12), FedSGD(step_size=0.5)
    for limits, share in ((None, math.inf), (Limits(share=0.1), 0.1)):
        site = Site(method, MAKE, fed, limits=limits)
        in_process([site])
        assert site.ledger.limits.share == share
    site = Site(method, MAKE, fed)
    result = run(method, Roster.of(MAKE, fed), transport=in_process([site]), rounds=2, trajectories=100, tol=0)
    assert result.state.w.shape == (100, 3)


def test_limits_are_checked():
    fed = patients(4)
    for wrong, said in (
        ({"share": 0.0}, "Limits.share"),
        ({"share": math.nan}, "Limits.share"),
        ({"share": np.array([1.0, 2.0])}, "Limits.share"),
        ({"trajectories": 0}, "Limits.trajectories"),
        ({"rounds": 0}, "Limits.rounds"),
        ({"rows": -1.0}, "Limits.rows"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            Limits(**wrong)
    with pytest.raises(TypeError, match=r"Site.limits must be"):
        Site(FedSGD(step_size=0.1), lambda f: Problem(f, Squared()), fed, limits=1.0)


# ---------------------------------------------------------------- fields of messages


def test_every_field_of_every_message_has_a_rule():
    """Of all methods that sites carry out: a field without one would reach kernels as it came."""
    seen = set()
    for name in methods.__all__:
        kind = getattr(methods, name)
        returned = get_type_hints(getattr(kind, "broadcast", None) or (lambda: None)).get("return")
        for message in get_args(returned) or (returned,):
            if not VERTICAL & {name} and hasattr(message, "_fields"):
                assert set(message._fields) <= FIELDS.keys(), (name, message)
                seen |= set(message._fields)
    assert seen == FIELDS.keys()


def signed(arrays, header):
    return {"header": Request(*header[1:5].tolist(), fingerprint(arrays)).header(), **arrays}


def spoiled(a):
    """Shapes, types and numbers that a field cannot have."""
    yield a[None] if a.ndim else np.zeros(3)
    yield np.zeros((*a.shape, 2), a.dtype)
    yield a.astype(np.float32) if a.dtype.kind == "f" else a.astype(np.float64) + 0.5
    yield a.astype(np.int64) if a.dtype.kind == "f" else a.astype(np.uint8)
    if a.ndim > 1 and a.shape[-1] > 1:
        yield np.ascontiguousarray(a[..., :-1])
        yield np.zeros((*a.shape[:-1], 10**5), a.dtype)


RANGES = {"rho": [-1.0, 0.0, np.nan, np.inf], "mu": [-1.0, np.nan, np.inf], "alpha": [-1.0], "counts": [-1.0]}
RANGES |= {"domain_weights": [-1.0], "frequency": [-1.0]}


def check_fields(name):
    kind = kinds(name)[0]
    method = EVERY[name]
    fed, make = shared(name, kind, False)
    sites, seen = [Site(method, make, fed.subset([k]), limits=OPEN) for k in range(fed.K)], []
    plain = in_process(sites)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watched = lambda t, r: seen.extend(r.values()) or plain(t, r)  # noqa: E731
        run(method, Roster.of(make, fed), transport=watched, rounds=2, tol=0)
    tried = 0
    for request in [a for a in seen if a["header"][1] in (ASK, MEASURE)]:
        site, own = sites[int(request["header"][3])], {k: a for k, a in request.items() if k != "header"}
        for field, a in own.items():
            wrong = list(spoiled(a))
            wrong += [np.full_like(a, v) for v in RANGES.get(field.removeprefix("message/"), ()) if a.size]
            for b in wrong if field not in ("acknowledged", "moments") else ():
                if b.shape == a.shape and b.dtype == a.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                    continue
                answer = site.answer(signed(own | {field: b}, request["header"]))
                assert answer["header"][1] == REFUSE, (name, field, b.shape, b.dtype)
                said = answer["why"].tobytes().decode()
                assert "the log of the site says more" not in said, (name, field, b.shape, said)  # not by luck
                tried += 1
    assert tried > 5, name


@pytest.mark.slow
def test_fields_of_messages_are_checked():
    for name in ("VIRTUAL", "SCAFFOLD", "MOCHA clock", "AFL"):
        check_fields(next(n for n in SHARED if n.startswith(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", {type(EVERY[name]).__name__: name for name in SHARED}.values())
def test_fields_of_all_methods_are_checked(name):
    check_fields(name)


@pytest.mark.slow
def test_statistics_that_cannot_be_are_refused_by_name():
    """A place outside of an array, counts of other rows, bounds below zero: no raw error, and no wrapped index."""
    cases = {"FedMultiBoost": [-1, 99], "IRMv1": [-1.0, 99.0, np.nan], "ProgressiveHedging": [-1.0], "AFL": [-1, 5]}
    for name, values in cases.items():
        fed, make = shared(name, kinds(name)[0], False)
        if name == "AFL":
            domains = np.arange(fed.n) % 2
            fed = Federation(fed.X, fed.y, fed.ptr, fed.labels, domains, np.array(["a", "b"]))
        method = methods.ProgressiveHedging() if name == "ProgressiveHedging" else EVERY[name]  # which looks for rho
        for value in values:
            plain = in_process([Site(method, make, fed.subset([k])) for k in range(fed.K)])

            def ask(t, requests, plain=plain, value=value):
                answers = plain(t, requests)
                if 1 in answers and "statistic" in answers[1]:
                    answers[1]["statistic"] = np.full_like(answers[1]["statistic"], value)
                return answers

            with warnings.catch_warnings(), pytest.raises(ConnectionError, match=f"{fed.labels[1]}: .*refused"):
                warnings.simplefilter("ignore")
                run(method, Roster.of(make, fed, patience=1, required=()), transport=ask, rounds=1)
