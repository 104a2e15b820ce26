"""What a client costs in a round over sites: requests, checks, counting and answers, beside its work in one process.

FedAvg of 20 sites with 50 rows of 10 columns, two local steps on all rows: small work, so that what is around it shows.
CPU time of everything, server and sites, which are one process: without a transport between them, and as threads over
connections of the loopback interface. A run of few rounds is subtracted from one of many: sites join once. Every run
has a seed and sites of its own, as honest runs do: a question that a site has answered before is not audited again.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading

import numpy as np
from _timing import Report, compare

from fedconvex import FedAvg, Federation, Logistic, Problem, run
from fedconvex.remote import Exchange, Limits, Plain, Roster, Site, in_process, serve

K, PER, D = 20, 50, 10  # sites, rows of each, columns
FEW, MANY = 10, 110  # rounds
METHOD = FedAvg(step_size=0.1, local_steps=2)
LIMITS = Limits(share=1e9)  # rounds enough
SEEDS = itertools.count(1)


def make(federation):
    """Return the problem of all ends."""
    return Problem(federation, Logistic(), 1e-3)


def made(parts):
    """Return sites that have answered nothing yet."""
    return [Site(METHOD, make, own, limits=LIMITS) for own in parts]


def rounds(problem, T, seed=None, **how):
    """Return the model after so many rounds, of which the last is recorded; by default with a seed that is new."""
    return run(METHOD, problem, rounds=T, record_every=T, seed=next(SEEDS) if seed is None else seed, **how).w


def without_transport(roster, parts):
    """Return a function of T, and a seed, that runs in one process."""
    return lambda T, seed=None: rounds(roster, T, seed, transport=in_process(made(parts)))


def over_connections(roster, parts):
    """Return a function of T, and a seed, that runs over connections, sites as threads."""

    def ours(T, seed=None):
        known, sites = Plain(secrets.token_bytes(32)), made(parts)
        with Exchange(("127.0.0.1", 0), known, sites=K) as exchange:
            ends = [
                threading.Thread(target=serve, args=(site, exchange.address, known.site(k), k))
                for k, site in enumerate(sites)
            ]
            for end in ends:
                end.start()
            w = rounds(roster, T, seed, transport=exchange)
        for end in ends:
            end.join()
        return w

    return ours


def main():
    logging.getLogger("fedconvex").setLevel(logging.ERROR)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((K * PER, D)), rng.choice([-1.0, 1.0], K * PER)
    federation = Federation(X, y, np.arange(0, K * PER + 1, PER))
    problem, roster = make(federation), Roster.of(make, federation)
    parts = [federation.subset([k]) for k in range(K)]
    report = Report("sites", "A client in a round over sites", "µs per client and round", 1e6, clock="cpu")
    whole = rounds(problem, FEW, 0)
    for name, ours, bar in (
        ("one process, no sites", lambda T, seed=None: rounds(problem, T, seed), None),
        ("sites, no transport", without_transport(roster, parts), 100.0),
        ("sites, connections", over_connections(roster, parts), 200.0),
    ):
        report.check(f"{name}: bits that differ", float((ours(FEW, 0) != whole).sum()), 0.0)
        times = compare({"few": lambda f=ours: f(FEW), "many": lambda f=ours: f(MANY)}, repeats=12, limit=60.0)
        spent = {k: times["many"][k] - times["few"][k] for k in ("min", "median", "cpu_min", "cpu_median")}
        each = report.row("FedAvg, 20 sites", name, spent | {"repeats": 12}, K * (MANY - FEW))
        report.bar(f"{name}: CPU µs of a client and round", each, bar)
    report.write()


if __name__ == "__main__":
    main()
