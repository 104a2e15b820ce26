"""How every theorem is read off a setting: its hypotheses and constants, and the quantity that it speaks about.

A `Theorem` joins a bound (`theory`, which knows no method) to methods (which know no theory). Its quantity is obtained
exactly where the moments close (squared loss) or nothing is random, and from independent trajectories otherwise, always
through the real method. What searches have found against it (`fedconvex.verify.tightest`) is data: sharp.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedconvex.theorems import (
    adaboost,
    agnostic_clients,
    agnostic_floats,
    agnostic_generalisation,
    agnostic_rate,
    agnostic_softmax,
    agnostic_step,
    boosting,
    boosting_margins,
    contraction,
    dynamic_ball,
    dynamic_msd,
    dynamic_noise,
    dynamic_small_step,
    fedavg_convex,
    fedavg_limit,
    fedavg_refined,
    fedavg_strongly_convex,
    fedmultiboost,
    fedprox,
    fedsam,
    games,
    hedging,
    hybrid,
    irmv1,
    joint_mocha,
    li_lemmas,
    local_lemmas,
    mocha,
    mocha_sigma,
    radfed_limit,
    scaffold,
    svrg,
    vertical,
    virtual,
    weight_divergence,
)
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theorems.parts.tiny import read_sharp, with_sharp

__all__ = ["THEOREMS", "Setting", "Theorem"]

_FOUND = read_sharp(Path(__file__).with_name("sharp.json"))

THEOREMS: Mapping[str, Theorem] = {
    t.name: with_sharp(t, _FOUND)
    for module in (
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
        mocha,
        mocha_sigma,
        joint_mocha,
        boosting,
        adaboost,
        boosting_margins,
        fedmultiboost,
        irmv1,
        games,
        virtual,
        vertical,
        hybrid,
    )
    for t in module.THEOREMS
}
