"""The theorems of the core, in the order of the report, and what searches have found against all."""

from __future__ import annotations

from pathlib import Path

from fedconvex.theorems import (
    agnostic_clients,
    agnostic_floats,
    agnostic_generalisation,
    agnostic_rate,
    agnostic_softmax,
    agnostic_step,
    contraction,
    dynamic_ball,
    dynamic_msd,
    dynamic_noise,
    dynamic_small_step,
    fedavg_convex,
    fedavg_limit,
    fedavg_refined,
    fedavg_strongly_convex,
    fedprox,
    fedsam,
    games,
    hedging,
    hybrid,
    irmv1,
    li_lemmas,
    local_lemmas,
    radfed_limit,
    scaffold,
    svrg,
    vertical,
    virtual,
    weight_divergence,
)
from fedconvex.theorems.parts.tiny import read_sharp

FOUND = read_sharp(Path(__file__).with_name("sharp.json"))

CORE = (
    fedavg_convex,
    fedavg_refined,
    fedavg_strongly_convex,
    contraction,
    dynamic_noise,
    dynamic_msd,
    dynamic_ball,
    dynamic_small_step,
    weight_divergence,
    scaffold,
    fedprox,
    fedsam,
    svrg,
    hedging,
    fedavg_limit,
    radfed_limit,
    local_lemmas,
    li_lemmas,
    agnostic_rate,
    agnostic_generalisation,
    agnostic_floats,
    agnostic_clients,
    agnostic_softmax,
    agnostic_step,
    irmv1,
    games,
    virtual,
    vertical,
    hybrid,
)
