"""Federated methods, one paper a file, and what their families share."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.families.boosting.methods.fedmultiboost import FedMultiBoost
    from fedconvex.families.boosting.methods.multiboost import MultiBoost
    from fedconvex.families.multitask.dual_nodes import Clock, NodeWork
    from fedconvex.families.multitask.methods.cocoa import CoCoA
    from fedconvex.families.multitask.methods.jointmocha import JointMOCHA
    from fedconvex.families.multitask.methods.minibatchsdca import MiniBatchSDCA
    from fedconvex.families.multitask.methods.minibatchsgd import MiniBatchSGD
    from fedconvex.families.multitask.methods.mocha import MOCHA
    from fedconvex.methods.acceleratedgradient import AcceleratedGradient
    from fedconvex.methods.afl import AFL, DomainSampling, OptimisticAFL, WeightedSampling
    from fedconvex.methods.agnosticfedavg import AgnosticFedAvg
    from fedconvex.methods.approxfedavg import ApproxFedAvg, SoftmaxFedAvg
    from fedconvex.methods.approximatenewton import DANE, GIANT
    from fedconvex.methods.centralised import SGD, GradientDescent
    from fedconvex.methods.compressedgradientdescent import CompressedGradientDescent
    from fedconvex.methods.diana import DIANA
    from fedconvex.methods.dynamicfedavg import DynamicFedAvg
    from fedconvex.methods.ef21 import EF21
    from fedconvex.methods.errorfeedback import ErrorFeedback
    from fedconvex.methods.fedavg import FedAvg
    from fedconvex.methods.fedbcd import FedBCD
    from fedconvex.methods.feddualavg import FedDualAvg
    from fedconvex.methods.feddyn import FedDyn
    from fedconvex.methods.federatednewton import FederatedNewton
    from fedconvex.methods.fedlin import FedLin
    from fedconvex.methods.fedmid import FedMiD
    from fedconvex.methods.fednl import FedNL
    from fedconvex.methods.fednova import FedNova
    from fedconvex.methods.fedprox import AdaptiveProximal, FedProx, ProximalPoint, Stragglers
    from fedconvex.methods.fedsam import FedSAM
    from fedconvex.methods.fedsgd import FedSGD
    from fedconvex.methods.flgame import FLGame
    from fedconvex.methods.fsvrg import FSVRG
    from fedconvex.methods.hybriddual import HybridDualAscent
    from fedconvex.methods.hyfdca import HyFDCA
    from fedconvex.methods.irmgame import IRMGame
    from fedconvex.methods.irmv1 import IRMv1
    from fedconvex.methods.parts.aggregation import CoordinateMedian, GeometricMedian, TrimmedMean, WeightedMean
    from fedconvex.methods.parts.automatic_steps import resolved
    from fedconvex.methods.parts.compressors import Dithering, RandK, TopK
    from fedconvex.methods.parts.hessian_compressors import RankR, SymmetricTopK
    from fedconvex.methods.parts.optimizers import (
        Averaging,
        ClientAdam,
        ClientMomentum,
        ClientSGD,
        ServerAdagrad,
        ServerAdam,
        ServerSGD,
        ServerYogi,
    )
    from fedconvex.methods.parts.participation import ProportionalSampling, ScaledSampling, UniformSampling
    from fedconvex.methods.parts.responses import BestResponse, GradientResponse
    from fedconvex.methods.parts.step_sizes import Decay
    from fedconvex.methods.progressivehedging import ProgressiveHedging
    from fedconvex.methods.proximalgradient import FISTA, ProximalFedSGD, ProximalGradient
    from fedconvex.methods.radfed import RADFed
    from fedconvex.methods.scaffnew import Scaffnew
    from fedconvex.methods.scaffold import SCAFFOLD
    from fedconvex.methods.stabilizeddane import SDANE, AcceleratedSDANE
    from fedconvex.methods.svrg import SVRG
    from fedconvex.methods.trackedblocks import TrackedBlockDescent
    from fedconvex.methods.verticalgradient import VerticalAcceleratedGradient, VerticalGradientDescent
    from fedconvex.methods.verticalnewton import VerticalNewtonCG
    from fedconvex.methods.virtual import VIRTUAL
    from fedconvex.secure import PlainSums, SecureSums
    from fedconvex.simplex.ascent import EntropicStep, ProjectedStep
    from fedconvex.simplex.uncertainty import KLBall, Point, Polytope, Simplex

__all__ = [
    "AFL",
    "DANE",
    "DIANA",
    "EF21",
    "FISTA",
    "FSVRG",
    "GIANT",
    "MOCHA",
    "SCAFFOLD",
    "SDANE",
    "SGD",
    "SVRG",
    "VIRTUAL",
    "AcceleratedGradient",
    "AcceleratedSDANE",
    "AdaptiveProximal",
    "AgnosticFedAvg",
    "ApproxFedAvg",
    "Averaging",
    "BestResponse",
    "ClientAdam",
    "ClientMomentum",
    "ClientSGD",
    "Clock",
    "CoCoA",
    "CompressedGradientDescent",
    "CoordinateMedian",
    "Decay",
    "Dithering",
    "DomainSampling",
    "DynamicFedAvg",
    "EntropicStep",
    "ErrorFeedback",
    "FLGame",
    "FedAvg",
    "FedBCD",
    "FedDualAvg",
    "FedDyn",
    "FedLin",
    "FedMiD",
    "FedMultiBoost",
    "FedNL",
    "FedNova",
    "FedProx",
    "FedSAM",
    "FedSGD",
    "FederatedNewton",
    "GeometricMedian",
    "GradientDescent",
    "GradientResponse",
    "HyFDCA",
    "HybridDualAscent",
    "IRMGame",
    "IRMv1",
    "JointMOCHA",
    "KLBall",
    "MiniBatchSDCA",
    "MiniBatchSGD",
    "MultiBoost",
    "NodeWork",
    "OptimisticAFL",
    "PlainSums",
    "Point",
    "Polytope",
    "ProgressiveHedging",
    "ProjectedStep",
    "ProportionalSampling",
    "ProximalFedSGD",
    "ProximalGradient",
    "ProximalPoint",
    "RADFed",
    "RandK",
    "RankR",
    "Scaffnew",
    "ScaledSampling",
    "SecureSums",
    "ServerAdagrad",
    "ServerAdam",
    "ServerSGD",
    "ServerYogi",
    "Simplex",
    "SoftmaxFedAvg",
    "Stragglers",
    "SymmetricTopK",
    "TopK",
    "TrackedBlockDescent",
    "TrimmedMean",
    "UniformSampling",
    "VerticalAcceleratedGradient",
    "VerticalGradientDescent",
    "VerticalNewtonCG",
    "WeightedMean",
    "WeightedSampling",
    "resolved",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
