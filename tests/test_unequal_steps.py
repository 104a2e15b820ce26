"""tau_k local steps at client k: by hand, over sites, what theorems and moments make of them, and the experiment."""

import numpy as np
import pytest
from campaigns.sites import compare

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, run
from fedconvex.cli import main
from fedconvex.methods import SCAFFOLD, AgnosticFedAvg, Decay, FedProx, FedSAM, RADFed, Stragglers
from fedconvex.papers import unequal_steps
from fedconvex.theory.fixed_points import fedavg_round
from fedconvex.theory.moments import Moments
from fedconvex.traits import traits_of
from fedconvex.verify import verify
from fedconvex.words import words_of

SIZES, TAU = (3, 6, 4, 5), (1, 2, 4, 7)


def clients(loss=Logistic(), **settings):  # noqa: B008
    rng = np.random.default_rng(8)
    rows = [(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in SIZES]
    return Problem(Federation.from_clients(rows), loss, 0.1, **settings)


def test_every_client_takes_its_own_steps():
    problem, w = clients(), np.array([0.3, -0.2])
    found = run(FedAvg(step_size=0.4, local_steps=TAU), problem, rounds=1, start=w, tol=0).w
    by_hand = np.zeros(2)
    for k, tau in enumerate(TAU):
        (X, y), v = problem.federation.client_rows(k), w.copy()
        for _ in range(tau):
            v -= 0.4 * (0.1 * v - X.T @ (y / (1.0 + np.exp(y * (X @ v)))) / len(y))
        by_hand += len(y) / sum(SIZES) * v
    np.testing.assert_allclose(found, by_hand, rtol=1e-13)


@pytest.mark.parametrize(
    "make",
    [
        FedAvg,
        lambda **s: FedAvg(batch_size=2, participation=2, **s),
        lambda **s: FedAvg(batch_size=5, shrink=True, **s),
        lambda **s: FedProx(proximal_mu=0.5, stragglers=Stragglers(0.5), **s),
        lambda **s: SCAFFOLD(participation=2, batch_size=2, **s),
        lambda **s: FedSAM(rho=0.1, **s),
        lambda **s: RADFed(redistributions=2, batch_size=2, **s),
        lambda **s: AgnosticFedAvg(domain_step_size=0.01, **s | {"step_size": 0.02}),
    ],
)
def test_equal_numbers_have_the_bits_of_one(make):
    problem = clients(weights="uniform")
    one, many = make(step_size=0.2, local_steps=3), make(step_size=0.2, local_steps=np.full(4, 3))
    a, b = (run(m, problem, rounds=6, seed=2, trajectories=2, tol=0) for m in (one, many))
    np.testing.assert_array_equal(a.w, b.w)
    assert words_of(one, problem) == words_of(many, problem)
    assert traits_of(one, problem).local.equal_steps == traits_of(many, problem).local.equal_steps == 3
    other = run(make(step_size=0.2, local_steps=(2, 3, 4, 3)), problem, rounds=6, seed=2, trajectories=2, tol=0)
    assert not np.array_equal(a.w, other.w)


def test_a_site_takes_its_own_steps():
    problem = clients()
    compare(
        FedAvg(step_size=0.2, local_steps=TAU, batch_size=2, participation=3),
        problem.federation,
        lambda fed: Problem(fed, Logistic(), 0.1),
        2,
    )


@pytest.mark.slow
def test_moments_and_the_fixed_point():
    """Full gradients: the run itself. Mini-batches: in the mean the same, as gradients are linear; but not for F."""
    problem = clients(Squared())
    end = fedavg_round(problem, step_size=0.1, local_steps=TAU).limit()
    np.testing.assert_allclose(
        run(FedAvg(step_size=0.1, local_steps=TAU), problem, rounds=900, tol=0).w, end, rtol=1e-9
    )
    drawn = Moments.of(FedAvg(step_size=0.1, local_steps=TAU, batch_size=2), problem).steady_state()
    np.testing.assert_allclose(problem.solve().w + drawn.mean_error, end, rtol=1e-9)
    assert np.linalg.norm(drawn.mean_error) > 1e-3
    with pytest.raises(ValueError, match="equally many"):
        Moments.of(FedAvg(step_size=0.1, local_steps=TAU), problem).shadow(rounds=1)
    with pytest.raises(ValueError, match=r"one per client \(4\)"):
        fedavg_round(problem, step_size=0.1, local_steps=TAU[:3])


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("fedavg-convex", FedAvg(step_size=0.1, local_steps=TAU)),
        ("fedavg-bias", FedAvg(step_size=0.1, local_steps=TAU)),
        ("scaffold-contraction", SCAFFOLD(step_size=0.1, local_steps=TAU)),
        ("fedsam", FedSAM(step_size=0.1, local_steps=TAU, rho=0.1)),
    ],
)
def test_theorems_that_need_equally_many_steps_say_so(name, method):
    verdict = verify(name, clients(Squared(), weights="uniform"), method, rounds=3)
    assert verdict.outcome.name == "NOT_APPLICABLE"
    assert "equally many local steps" in str(verdict), str(verdict)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": (1, 2)}, r"one number per client \(4\); got 2"),
        ({"local_steps": (1, 2, 0, 3)}, "at least 1, one per client"),
        ({"local_steps": (1, 2, 1.5, 3)}, "whole"),
        ({"local_steps": (), "step_size": 0.1}, "one per client"),
        ({"local_steps": TAU, "step_size": Decay(1.0)}, "1 to 7: use one number of local_steps="),
        ({"local_steps": TAU, "shadow": True}, "equally many steps everywhere"),
        ({"local_steps": TAU, "epochs": 2}, "local_steps or epochs"),
        ({"local_steps": TAU, "step_size": "auto"}, "1 to 7 local steps at different clients"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run(FedAvg(**{"step_size": 0.1} | settings), clients(), rounds=1)


def test_late_clients_need_two_steps_each():
    with pytest.raises(ValueError, match="at least 2 local_steps"):
        FedProx(proximal_mu=0.1, step_size=0.1, local_steps=(1, 5), stragglers=Stragglers(0.5))


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"{k % 3},{np.sin(k)},{np.cos(3 * k)}" for k in range(18)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *lines]))
    table = ["solve", "t.csv", "--client", "site", "--target", "y", "--rounds", "5"]
    assert main([*table, "--local-steps", "1,2,4"]) == 0
    assert "1 to 4 local steps on all rows" in capsys.readouterr().out
    assert main([*table, "--local-steps", "1,2"]) == 2
    assert "one number per client (3)" in capsys.readouterr().err
    assert main([*table, "--local-steps", "1,x"]) == 2
    assert "--local-steps must be a whole number; got 'x'" in capsys.readouterr().err


# ---------------------------------------------------------------- the experiment


def _planted(good):
    at = [{"eta": 0.5, "w1": 1.0, "w2": 2.0, "closed form 1": 1.0 + (not good), "closed form 2": 2.0}]
    rows = [
        {"problem": 0, "method": name, "eta L": share, "apart": 1.0, to: 0.01 * (share if good else share**2)}
        for name, to in (
            (unequal_steps.UNEQUAL, "from surrogate's"),
            (unequal_steps.EQUAL, "from F's"),
            (unequal_steps.NORMALISED, "from F's"),
        )
        for share in (1.0, 0.5)
    ]
    off = 0.0 if good else 1.0
    each = [{"run": off, "scaffold": off, "gradient2": 0.5 + off, "bound": 1.0, "chi2": 0.3}]
    return [c.holds for c in unequal_steps.claims(at, rows, each)]


def test_claims_can_fail():
    assert _planted(True) == [True] * 7
    assert _planted(False) == [False] * 7


@pytest.mark.slow
@pytest.mark.compiled
def test_the_experiment():
    findings = unequal_steps.EXPERIMENT.run(quick=True, seed=3)
    assert [c.holds for c in findings.claims] == [True] * 6 + [None]
    by_hand = np.array([1.0, 4.0, 16.0]) @ np.array(unequal_steps.CENTRES) / 21.0
    np.testing.assert_allclose(unequal_steps.mean_limit(1e-9, (1, 4, 16)), by_hand, rtol=1e-7)
