"""All experiments: those of this folder, and those that families declare."""

from __future__ import annotations

from collections.abc import Mapping

from fedconvex.families import constant, loaded
from fedconvex.papers import (
    afl_curves,
    agnostic_adult,
    agnostic_clients,
    agnostic_fashion,
    agnostic_text,
    agnostic_toy,
    bound_terms,
    communication,
    data_sharing,
    domain_counts,
    dynamic_logistic,
    dynamic_msd,
    fedavg_central,
    fedprox_stragglers,
    flatness,
    hull_classes,
    hybrid_blocks,
    large_client,
    primal_averaging,
    radfed_rounds,
    robust_aggregation,
    scaffold_quadratics,
    scaffold_similarity,
    toy_sampled,
    unequal_steps,
    vertical_adult,
    virtual_har,
    writers,
)
from fedconvex.papers.findings import Experiment
from fedconvex.papers.inference import confounded_levels, coverage, one_shot, two_creams
from fedconvex.papers.invariance import against, chain, colour

EXPERIMENTS: Mapping[str, Experiment] = {
    e.name: e
    for e in (
        dynamic_msd.EXPERIMENT,
        dynamic_logistic.EXPERIMENT,
        scaffold_quadratics.EXPERIMENT,
        scaffold_similarity.EXPERIMENT,
        unequal_steps.EXPERIMENT,
        robust_aggregation.EXPERIMENT,
        bound_terms.EXPERIMENT,
        primal_averaging.EXPERIMENT,
        virtual_har.EXPERIMENT,
        vertical_adult.EXPERIMENT,
        hybrid_blocks.EXPERIMENT,
        agnostic_toy.EXPERIMENT,
        toy_sampled.EXPERIMENT,
        agnostic_adult.EXPERIMENT,
        agnostic_clients.EXPERIMENT,
        agnostic_fashion.EXPERIMENT,
        afl_curves.EXPERIMENT,
        domain_counts.EXPERIMENT,
        large_client.EXPERIMENT,
        hull_classes.EXPERIMENT,
        communication.EXPERIMENT,
        data_sharing.EXPERIMENT,
        fedprox_stragglers.EXPERIMENT,
        radfed_rounds.EXPERIMENT,
        writers.EXPERIMENT,
        flatness.EXPERIMENT,
        fedavg_central.EXPERIMENT,
        agnostic_text.EXPERIMENT,
        chain.EXPERIMENT,
        colour.EXPERIMENT,
        against.EXPERIMENT,
        coverage.EXPERIMENT,
        one_shot.EXPERIMENT,
        confounded_levels.EXPERIMENT,
        two_creams.EXPERIMENT,
        *(constant(module.__name__, "EXPERIMENT", Experiment) for module in loaded("experiments")),
    )
}
