"""The server's side of an analysis whose rows are at sites: the likelihood, made of what sites answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis import covariances
from fedconvex.analysis.formulas import INTERCEPT
from fedconvex.analysis.likelihood import Alone
from fedconvex.analysis.model_rows import columns_of_all, intercepts_of
from fedconvex.analysis.response_families import Family
from fedconvex.analysis.site_answers import meat_of, symmetric
from fedconvex.families.survival.hazard_checks import PairCounts, Proportionality
from fedconvex.problems.protocol import Derivatives

_MODELS = 64  # in a question: what a site allows by default


@dataclass
class Asking:
    """Questions to all sites, and what was sent.

    Attributes
    ----------
    steps : dict of str to (int, int)
        Of each kind of question how often it was asked, and how many numbers every site answered.
    """

    server: Any  # a roster with a desk
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    who: str = "analyse over sites"  # for messages

    @property
    def hidden(self) -> bool:
        """Whether only sums are learnt."""
        return self.server.secure is not None

    @property
    def rounding(self) -> float:
        """What fixed point may have done to a sum."""
        return float(self.server.federation.K * 2.0 ** -(self.server.secure[0] + 1)) if self.hidden else 0.0

    def __call__(self, what: str, arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the answers of all sites; their sum alone where sums are secure.

        Raises
        ------
        ConnectionError
            If a site does not answer, or refuses.
        """
        self.server._round += 1
        flat = {name: np.ascontiguousarray(a, dtype=np.float64) for name, a in arrays.items()}
        found = self.server.reports({k: dict(flat) for k in range(self.server.federation.K)})
        if found is None:
            silent = "; ".join(sorted({f"{i.client}: {i.what}" for i in self.server.incidents}))
            raise ConnectionError(f"{self.who}: must have an answer of every site; {silent}")
        for k, answer in enumerate(found):
            if wrong := impossible(answer):
                who = "the sum of all sites" if self.hidden else f"site {self.server.federation.labels[k]}"
                raise ConnectionError(f"{self.who}: {who} answers what cannot be: its {wrong}")
        times, numbers = self.steps.get(what, (0, 0))
        self.steps[what] = times + 1, numbers + sum(int(a.size) for a in found[0].values())
        return found


def impossible(answer: dict[str, np.ndarray]) -> str:
    """Return what in an answer no rows can give, or nothing: sums of squares and of losses that are negative."""
    for name in ("N", "reach", "pearson", "size", "values", "slopes", "square", "lost"):
        if name in answer and not (answer[name] >= -1e-9 * (1.0 + np.abs(answer[name]).max(initial=0.0))).all():
            return f"{name} is negative"
    for name in ("gram", "bend", "information", "hc0", "hc2", "hc3", "cr"):
        for t in answer.get(name, ()):
            r = round((np.sqrt(8.0 * t.size + 1.0) - 1.0) / 2.0)
            if np.isfinite(t).all() and np.linalg.eigvalsh(H := symmetric(t, r)).min() < -1e-7 * np.abs(H).max():
                return f"{name} is no sum of squares"
    return ""


class SitesLikelihood:
    """N over sites, its derivatives and what an inference asks of rows; columns are (x - shift) M."""

    blocks = 1  # of coefficients

    def __init__(self, ask: Asking, family: Family, shift: np.ndarray, M: np.ndarray, own: bool) -> None:
        self.ask, self.family, self.site_intercepts = ask, family, own
        self.federation = ask.server.federation
        self.frame = {"shift": shift, "map": M, "own": np.array(float(own))}
        self.size, self.self_concordance = self.blocks * M.shape[1], family.self_concordance

    def _asked(self, what: str, m: int, **arrays: np.ndarray) -> list[dict[str, np.ndarray]]:
        frame = {name: np.broadcast_to(a, (m, *a.shape)) for name, a in self.frame.items()}
        return self.ask(what, frame | arrays)

    def _total(self, what: str, m: int, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        found = self._asked(what, m, **arrays)
        return {name: np.sum([a[name] for a in found], axis=0) for name in found[0]}

    @property
    def n(self) -> float:
        """Sum of the weights of all rows."""
        return float(self.federation.masses.sum())

    @property
    def parameters(self) -> int:
        """Number of coefficients, site intercepts among them."""
        return self.size + (self.federation.K if self.site_intercepts else 0)

    def sums(self, B: np.ndarray) -> Derivatives:
        """Return N, its gradients and Hessians at models B (R, p)."""
        parts = [self._sums(B[i : i + _MODELS]) for i in range(0, len(B), _MODELS)]
        return Derivatives(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _sums(self, B: np.ndarray) -> Derivatives:
        total = self._total("sums", len(B), w=B)
        lost = total["lost"] > 0.5
        N, g = np.where(lost, np.inf, total["N"]), np.where(lost[:, None], np.inf, total["slope"])
        H = np.array([symmetric(t, self.size) for t in total["bend"]])
        return Derivatives(N, g, np.where(lost[:, None, None], np.inf, H))

    def spread(self, inverses: np.ndarray) -> np.ndarray:
        """Return max_i (x_i'A x_i)^(1/2) of inverses (R, p, p), (R,); of sums, a bound."""
        found = []
        for i in range(0, len(inverses), _MODELS):
            some = inverses[i : i + _MODELS]
            each = np.array([a["reach"] for a in self._asked("reach", len(some), inverse=some)])
            found.append(np.sqrt(each.max(axis=0) + self.ask.rounding))
        return np.concatenate(found)

    def roundings(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how far gradients and N at models (R, p) may be off, (R, p) and (R,)."""
        total = [
            self._total("rounding", len(b), rounding=b) for b in (B[i : i + _MODELS] for i in range(0, len(B), _MODELS))
        ]
        few = (self.federation.K + 2.0) * np.finfo(float).eps
        slopes, values = (np.concatenate([a[name] for a in total]) for name in ("slopes", "values"))
        return slopes * (1.0 + few) + 2.0 * self.ask.rounding, values * (1.0 + few) + 2.0 * self.ask.rounding

    def gradient_rounding(self, b: np.ndarray) -> np.ndarray:
        """Return how far entries of the gradient may be off, (p,)."""
        return self.roundings(b[None])[0][0]

    def value_rounding(self, b: np.ndarray) -> float:
        """Return how far N may be off."""
        return float(self.roundings(b[None])[1][0])

    @cached_property
    def _facts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of facts over sites, and who is silent."""
        each = np.array([a["facts"][0] for a in self._asked("facts", 1, facts=np.zeros(1))])
        return each.sum(axis=0), each[:, 5]

    @property
    def constants(self) -> float:
        """What the log-likelihood has beside N."""
        return float(self._facts[0][0])

    @property
    def varies(self) -> bool:
        """Whether responses differ, beyond rounding."""
        _, s, sy, syy = self._facts[0][:4]
        return bool(syy * s - sy * sy > 1e-12 * syy * s + self.ask.rounding * (s + 2.0 * abs(sy)))

    @property
    def is_binary(self) -> bool:
        """Whether whole numbers are 0 and 1, without offsets: their sum is that of their squares."""
        _, s, sy, syy, exposed, _ = self._facts[0]
        off = 4.0 * self.ask.rounding + 1e-9 * s
        return bool(abs(syy - sy) <= min(off, 0.5) and abs(exposed - s) <= off)

    @property
    def log_mean(self) -> float:
        """Where the search for a common intercept of a logarithmic link begins."""
        total, exposed = self._facts[0][2], self._facts[0][4]
        return float(np.log(total / exposed)) if total > 0.0 else 0.0

    @property
    def silent(self) -> np.ndarray:
        """Sites whose responses all agree, with site intercepts; of sums, whether all do."""
        who = self._facts[1]
        return np.asarray(who > 0.5) if not self.ask.hidden else np.asarray(who > self.federation.K - 0.5)

    def gram(self) -> np.ndarray:
        """Return X'X with weights, columns less their means over each site with site intercepts."""
        return symmetric(self._total("gram", 1, gram=np.zeros(1))["gram"][0], self.size)

    def _end(self, b: np.ndarray) -> dict[str, np.ndarray]:
        key = b.tobytes()
        if self.__dict__.get("_ended", (b"",))[0] != key:
            self._ended = key, self._total("end", 1, end=b[None])
        return self._ended[1]

    def pearson(self, b: np.ndarray) -> float:
        """Return sum s (y - mu)^2/V(mu)."""
        return float(self._end(b)["pearson"][0])

    def information(self, b: np.ndarray) -> np.ndarray:
        """Return the expected information."""
        return symmetric(self._end(b)["information"][0], self.size)

    def score_size(self, b: np.ndarray) -> float:
        """Return a bound on responses and scores."""
        return float(self._end(b)["size"][0])

    def covariance(self, b: np.ndarray, inverse: np.ndarray, kind: str) -> np.ndarray:
        """Return a robust covariance at the estimate b with J^-1 (p, p); "client" is CR1."""
        found = self._asked("robust", 1, robust=b[None], inverse=inverse[None])
        total = covariances.added([meat_of(a, self.size) for a in found])
        return covariances.robust("CR1" if kind == "client" else kind, inverse, total, self.n, self.parameters)

    def alone(self) -> list[Alone | None]:
        """Return the estimates of every site alone.

        Raises
        ------
        ValueError
            Where only sums are learnt.
        """
        if self.ask.hidden:
            raise bad("Analysis.differences over sites", "be asked for with PlainSums()", "SecureSums: sums only")
        found: list[Alone | None] = []
        for a in self._asked("alone", 1, alone=np.zeros(1)):
            there, N, pearson = map(float, a["three"][0])
            found.append(Alone(a["b"][0], symmetric(a["information"][0], self.size), N, pearson) if there else None)
        return found

    def no_minimum(self, names: Any, J: np.ndarray) -> ValueError:
        """Return the error that says that no finite estimate is certified, with the columns along which N is flat."""
        v = np.linalg.eigh(J)[1][:, 0]  # of standardised columns
        where = [j for j in np.argsort(-np.abs(v)) if abs(v[j]) > 0.05 * np.abs(v).max() and names[j] != INTERCEPT]
        what = f"the likelihood seems to rise for ever along {', '.join(names[j] for j in where[:6]) or INTERCEPT}"
        must = (
            "be finite, and found from answers of five rows or more (else responses are separated, or rows too unequal)"
        )
        cure = "leave out what separates the responses, or merge levels with few rows, at all sites"
        return bad("analyse over sites: the estimate", must, what, cure)


class _SitesOthers(SitesLikelihood):
    """Likelihoods without a dispersion, whose Hessian is their information, and whose sites answer sums of squares."""

    _factors: ClassVar[Mapping[str, str]]  # kinds of robust covariances, and what clusters by client are called

    def information(self, b: np.ndarray) -> np.ndarray:
        """Return the Hessian."""
        return np.asarray(self.sums(b[None]).hessians[0])

    def pearson(self, b: np.ndarray) -> float:
        """Return 0: there is no dispersion."""
        return 0.0

    def covariance(self, b: np.ndarray, inverse: np.ndarray, kind: str) -> np.ndarray:
        """Return a robust covariance at the estimate b with J^-1 (p, p)."""
        if kind not in self._factors:
            must = f"be {', '.join(self._factors)} for family {self.family.name!r}"
            raise bad("analyse: robust", must, repr(kind))
        found = self._asked("robust", 1, robust=b[None], inverse=inverse[None])
        total = covariances.added([meat_of(a, self.size) for a in found])
        if kind == "client" and total.clients < 2:
            raise bad("robust='client'", "have at least 2 clients", f"{total.clients:g}", "take HC0")
        return covariances.robust(self._factors[kind], inverse, total, self.n, self.parameters)


class SitesTimes(_SitesOthers):
    """Cox's partial likelihood over sites, each with baseline hazards of its own: no event time is told."""

    _factors: ClassVar = {"HC0": "HC0", "client": "CR0"}

    @property
    def events(self) -> int:
        """Number of events."""
        return round(float(self._facts[0][4]))

    def concordance(self, b: np.ndarray) -> float:
        """Return Harrell's C, ties one half, of pairs within a site and a stratum."""
        counts = self._total("pairs", 1, pairs=b[None])["pairs"][0]
        return PairCounts(*(round(float(v)) for v in counts)).concordance

    def drift(self, b: np.ndarray) -> Proportionality:
        """Return sums over events with times less the mean of all times, in the unit of the plan."""
        _, rows, total, *_ = self._facts[0]
        found = self._total("drift", 1, drift=b[None], centre=np.array([total / rows]))
        crossed, squared = (symmetric(found[name][0], self.size) for name in ("crossed", "squared"))
        return Proportionality(found["drift"][0], self.information(b), crossed, squared)


class SitesClasses(_SitesOthers):
    """The likelihood of several classes over sites."""

    _factors: ClassVar = {"HC0": "HC0", "HC1": "HC1", "client": "CR1"}

    def __init__(self, ask: Asking, family: Family, shift: np.ndarray, M: np.ndarray, own: bool) -> None:
        self.blocks = ask.server.blocks
        super().__init__(ask, family, shift, M, own)


_KINDS: dict[str, type[SitesLikelihood]] = {"cox": SitesTimes, "multinomial": SitesClasses}


@dataclass
class SitesModel:
    """What is analysed over sites: words and columns that all have agreed on, and whom to ask."""

    ask: Asking
    family: Family
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    event: str
    units: tuple[np.ndarray, np.ndarray]  # where numbers of the columns begin, and their size, roughly: (p,) each
    left_out: list[tuple[str, str, int]] = field(default_factory=list)
    notes: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()
    has_strata: bool = False  # within sites
    unit: float = 1.0  # what sites divide responses by

    @property
    def intercepts(self) -> list[int]:
        """Where intercepts are among the coefficients."""
        return intercepts_of(self.names)

    @property
    def federation(self) -> Any:
        """Names, sizes and weights of the sites."""
        return self.ask.server.federation

    @property
    def told(self) -> str:
        """What was asked, and how many numbers every site has answered."""
        steps = ", ".join(f"{what} {times} ({numbers:,})" for what, (times, numbers) in self.ask.steps.items())
        total, sums = sum(numbers for _, numbers in self.ask.steps.values()), ", as sums under masks" * self.ask.hidden
        return f"{total:,} numbers of each site{sums}; questions (numbers): {steps}"

    @property
    def rows_read(self) -> int:
        """Rows that take part; sites know what they left out."""
        return int(self.federation.n)

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the columns, (p,) each, by two sums."""
        (mean, unit), n = self.units, float(self.federation.n)
        for _ in range(2):
            found = self.ask("moments", {"center": mean[None], "unit": unit[None]})
            total, square = (np.sum([a[name][0] for a in found], axis=0) / n for name in ("sum", "square"))
            mean, unit = mean + unit * total, unit * np.sqrt(np.maximum(square - total**2, 0.0))
            unit[unit <= 1e-13 * np.abs(mean)] = 1.0  # a constant column
        return mean, unit

    def standardised(self, kept: list[int], own: bool) -> tuple[SitesLikelihood, np.ndarray]:
        """Return the likelihood of some columns, standardised, and T with b = T b~."""
        several = max(len(self.classes) - 1, 1)
        p = len(self.names) // several
        kept = columns_of_all(kept, several, p)
        names = [self.names[j].rpartition(": ")[2] if self.classes else self.names[j] for j in kept]
        mean, scale = (a[kept] for a in self.moments)
        if not own:
            mean = mean * float(INTERCEPT in names)
        T, shift, M = np.diag(1.0 / scale), np.zeros(p), np.zeros((p, len(kept)))
        if INTERCEPT in names:
            mean[0], scale[0] = 0.0, 1.0
            T[0, 0], T[0, 1:] = 1.0, -mean[1:] / scale[1:]
        shift[kept], M[kept, range(len(kept))] = mean, 1.0 / scale
        kind = _KINDS.get(self.family.name, SitesLikelihood)
        return kind(self.ask, self.family, shift, M, own), np.kron(np.eye(several), T) * self.unit
