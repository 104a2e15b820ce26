"""Families of algorithms: each the product of its conventions, with the NumPy reference that follows the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedconvex.conformance import agnostic, averaging, compressed, corrected, feddyn, served
from fedconvex.conformance.algorithm_family import DETERMINISTIC, Family
from fedconvex.conformance.conventions import BASE, LOCAL, PARTIAL, Convention, Value, always, only, pick
from fedconvex.conformance.exams import Exam

BATCHED = ("batches of two", "single rows", "fresh batches")
ALL = (*DETERMINISTIC, "partial participation", *BATCHED)


def _rounds(exam: Exam, r: Mapping[str, str]) -> bool:
    return exam.rounds > 1


def _shown_if(name: str, *values: str, shown: Callable[..., bool] = always) -> Callable[..., bool]:
    """Return what asks whether an earlier convention has one of these values."""
    return lambda exam, r: r.get(name) in values and shown(exam, r)


def _unless_exact(*conventions: Convention) -> tuple[Convention, ...]:
    """Return conventions of which those about local steps are not shown where clients solve exactly."""
    steps = ("steps", "start", "direction", "work", "draw", "last batch", "client")

    def narrowed(c: Convention) -> Convention:
        return (
            c._replace(shown=lambda exam, r: r.get("solver") != "exact" and c.shown(exam, r)) if c.name in steps else c
        )

    return tuple(narrowed(c) for c in conventions)


PUBLISHED, ERROR = "published", "error"
BY_ROUND = tuple(  # one step a round: schedules by step are those by round
    c._replace(values=c.values[:3]) if c.name == "schedule" else c for c in BASE
)
FOLLOWS = (  # local steps of FedAvg, without a step-size schedule: that is FedAvg's
    *only(BASE, "weights", "loss", "squared", "ridge", "direction"),
    *LOCAL,
    *PARTIAL,
)
PLAINLY = (  # the same, where the paper averages plainly: its form for clients of unequal size is as good
    *(
        c._replace(values=tuple(v._replace(kind=PUBLISHED) if v.name == "1/K" else v for v in c.values))
        if c.name == "weights"
        else c
        for c in FOLLOWS
    ),
)

CLIENT = pick(
    "client",
    Value("sgd", "clients take plain steps", PUBLISHED),
    Value("momentum", "clients take heavy-ball steps m <- beta m + g, w <- w - eta m"),
    Value("damped", "clients take damped momentum steps m <- beta m + (1 - beta) g, w <- w - eta m"),
    Value("nesterov", "clients take Nesterov steps m <- beta m + g, w <- w - eta (g + beta m)"),
    Value("adam", "clients take steps of Adam, with bias correction and epsilon outside the root"),
)
VELOCITY = pick(
    "velocity",
    Value("reset", "the clients' momentum starts at zero in every round", PUBLISHED),
    Value("kept", "the clients' momentum is kept between rounds"),
    shown=_shown_if("client", "momentum", "damped", "nesterov", shown=_rounds),
)


def _by_steps(r: Mapping[str, str]) -> bool:
    return r.get("solver") != "exact"


SOLVER = pick(
    "solver",
    Value("steps", "clients take steps on their proximal problems", PUBLISHED),
    Value("exact", "clients solve their proximal problems exactly", PUBLISHED),
)
PROX = (
    pick(
        "prox",
        Value("(mu/2) d^2", "the proximal term is (mu/2) |w - w_t|^2", PUBLISHED),
        Value("mu d^2", "the proximal term is mu |w - w_t|^2"),
        Value("(mu/2) d", "the proximal term is (mu/2) |w - w_t|, not squared", when=_by_steps),
        Value("absent", "there is no proximal term: it was dropped", ERROR, _by_steps),
        Value(
            "-(mu/2) d^2", "the proximal term pushes away from the server's model: its sign is wrong", ERROR, _by_steps
        ),
        Value("d^2/2", "the proximal term is |w - w_t|^2/2: mu is not used", ERROR, _by_steps),
    ),
    pick(
        "anchor",
        Value("server", "the proximal term pulls towards the model that was just sent", PUBLISHED),
        Value("stale", "the proximal term pulls towards the server's model of one round earlier", ERROR),
        Value("first", "the proximal term pulls towards the first model of all", ERROR),
        Value("zero", "the proximal term pulls towards zero: it is a ridge", ERROR),
        Value("own", "the proximal term pulls towards the client's own last model", ERROR),
        shown=lambda exam, r: r.get("prox") != "absent" and _by_steps(r),
    ),
    pick(
        "mu rule",
        Value("constant", "mu is constant", PUBLISHED),
        Value("adaptive", "mu grows by 0.1 when the objective rose, and shrinks after five falls in a row"),
        shown=_rounds,
    ),
    pick(
        "late",
        Value("averaged", "what stragglers got done is averaged", PUBLISHED),
        Value("dropped", "stragglers are left out"),
        shown=lambda exam, r: exam.events == "stragglers",
    ),
)
CONTROLS = (
    pick(
        "control",
        Value("-c_i + c", "local steps follow g - c_i + c", PUBLISHED),
        Value(
            "+c_i - c",
            "the control variates have the wrong sign: in the local steps, g + c_i - c, or where clients renew them",
            ERROR,
        ),
        Value("-c_i", "local steps follow g - c_i: the server's control variate is missing", ERROR),
        Value("+c", "local steps follow g + c: the client's control variate is missing", ERROR),
        Value("-c_i - c", "local steps follow g - c_i - c: the server's control variate has the wrong sign", ERROR),
        Value("absent", "local steps follow g alone: the control variates are not used", ERROR),
        shown=_rounds,
    ),
    pick(
        "option",
        Value("II", "clients renew c_i by option II, c_i - c + (x - y_i)/(K eta)", PUBLISHED),
        Value("I", "clients renew c_i by option I, the gradient at x", PUBLISHED),
        shown=_rounds,
    ),
    pick(
        "divisor",
        Value("K eta", "option II divides by K eta", PUBLISHED),
        Value("K", "option II divides by K only: eta is missing", ERROR),
        Value("eta", "option II divides by eta only: K is missing", ERROR),
        Value("1", "option II does not divide by K eta", ERROR),
        shown=_shown_if("option", "II", shown=_rounds),
    ),
    pick(
        "renewal",
        Value("c_i - c", "option II starts from c_i - c", PUBLISHED),
        Value("c_i + c", "option II starts from c_i + c: the sign of c is wrong", ERROR),
        Value("c_i", "option II starts from c_i: c is missing", ERROR),
        Value("-c", "option II starts from -c: c_i is missing", ERROR),
        Value("without", "option II takes (x - y_i)/(K eta) alone: c_i - c is missing", ERROR),
        Value("never", "clients never renew c_i", ERROR),
        shown=_shown_if("option", "II", shown=_rounds),
    ),
    pick(
        "c read",
        Value("current", "clients use the c that was just sent", PUBLISHED),
        Value("stale", "clients use the c of one round earlier", ERROR),
        shown=_rounds,
    ),
    pick(
        "client memory",
        Value("kept", "clients keep c_i between rounds", PUBLISHED),
        Value("lost", "clients forget c_i: it is zero in every round", ERROR),
        shown=_rounds,
    ),
    pick(
        "c weights",
        Value("uniform", "the server averages changes of c_i with weights 1/K", PUBLISHED),
        Value("as models", "the server averages changes of c_i with the weights of the models",
              when=lambda r: r.get("weights") == "n_k/n"),
        shown=_rounds,
    ),
    pick(
        "server c",
        Value("N", "changes of c_i enter c divided by the number N of all clients", PUBLISHED),
        Value("S", "changes of c_i enter c divided by the number S of a round's clients"),
        Value("sum", "changes of c_i enter c undivided: the division by N is missing", ERROR),
        Value("-", "changes of c_i enter c with the wrong sign", ERROR),
        Value("replaced", "c is replaced by the average change of c_i", ERROR),
        Value("never", "the server never renews c", ERROR),
        shown=_rounds,
    ),
)  # fmt: skip
SERVER_STEP = pick(
    "server step",
    Value("applied", "the server's step size multiplies the update", PUBLISHED),
    Value("ignored", "the server's step size is not used", ERROR),
)
ADAPTIVE = ("adam", "yogi", "adagrad")
_adaptive, _corrected = _shown_if("server", *ADAPTIVE), _shown_if("server", "adam", "yogi")
SERVER = (
    pick(
        "server",
        Value("plain", "the server takes w + eta_g Delta", PUBLISHED),
        Value("heavy-ball", "the server's momentum is m <- beta m + Delta, w + eta_g m"),
        Value("damped", "the server's momentum is damped, m <- beta m + (1 - beta) Delta, w + eta_g m"),
        Value("nesterov", "the server's momentum is Nesterov's, m <- beta m + Delta, w + eta_g (beta m + Delta)"),
        Value("nesterov, damped", "the server's momentum is Nesterov's and damped"),
        Value("adam", "the server takes steps of FedAdam, v <- beta_2 v + (1 - beta_2) Delta^2", PUBLISHED),
        Value("yogi", "the server takes steps of FedYogi, v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)", PUBLISHED),
        Value("adagrad", "the server takes steps of FedAdagrad, v <- v + Delta^2", PUBLISHED),
        Value("negative momentum", "the server's momentum has the wrong sign, m <- -beta m + Delta", ERROR),
    ),
    pick(
        "v_0",
        Value("tau^2", "v starts at tau^2", PUBLISHED),
        Value("0", "v starts at 0"),
        Value("0.1", "v starts at 0.1"),
        Value("tau", "v starts at tau, not tau^2"),
        Value("1e-6", "v starts at 1e-6"),
        Value("1e-6, m too", "v starts at 1e-6, and so does the first moment of -Delta"),
        shown=_adaptive,
    ),
    pick(
        "epsilon",
        Value("outside", "the step is divided by sqrt(v) + tau", PUBLISHED),
        Value("inside", "the step is divided by sqrt(v + tau)"),
        Value("inside, squared", "the step is divided by sqrt(v + tau^2)"),
        Value("no root", "the step is divided by v + tau: the root is missing", ERROR),
        shown=_adaptive,
    ),
    pick(
        "bias correction",
        Value("none", "m and v are not corrected for their start", PUBLISHED),
        Value("both", "m and v are corrected for their start, exponent t in round t = 1, 2, ..."),
        Value("both, t + 1", "m and v are corrected for their start, with the exponent t + 1 in round t = 1, 2, ..."),
        Value("step", "the step size is multiplied by sqrt(1 - beta_2^t)/(1 - beta_1^t)"),
        Value("step, t + 1", "the step size is multiplied by sqrt(1 - beta_2^(t+1))/(1 - beta_1^(t+1)) in round t"),
        Value("m only", "m is corrected for its start, v is not", ERROR),
        shown=_corrected,
    ),
    pick(
        "first moment",
        Value("damped", "m <- beta_1 m + (1 - beta_1) Delta", PUBLISHED),
        Value("heavy", "m <- beta_1 m + Delta: the factor 1 - beta_1 is missing"),
        Value("absent", "the step follows Delta: beta_1 is not used"),
        shown=_adaptive,
    ),
    pick(
        "square",
        Value("of Delta", "v follows the square of Delta, entry by entry", PUBLISHED),
        Value("of m", "v follows the square of m", ERROR),
        Value("norm", "v follows the squared norm of Delta, the same for all entries", ERROR),
        shown=_adaptive,
    ),
    pick(
        "v read",
        Value("current", "the step is divided by the new v", PUBLISHED),
        Value("stale", "the step is divided by the v of one round earlier", ERROR),
        shown=_adaptive,
    ),
    pick(
        "yogi sign",
        Value("paper", "v moves towards Delta^2", PUBLISHED),
        Value("reversed", "v moves away from Delta^2: the sign is wrong", ERROR),
        shown=_shown_if("server", "yogi"),
    ),
    pick(
        "betas",
        Value("paper", "beta_1 belongs to m and beta_2 to v", PUBLISHED),
        Value("swapped", "beta_1 and beta_2 are exchanged", ERROR),
        shown=_corrected,
    ),
    pick(
        "delta",
        Value("forward", "the server moves towards the clients' models", PUBLISHED),
        Value("reversed", "the server moves away from the clients' models: the sign of Delta is wrong", ERROR),
    ),
)  # fmt: skip
ACCELERATION = pick(
    "acceleration",
    Value("none", "gradients are taken at the model", PUBLISHED),
    Value("fista", "gradients are taken ahead of the model, w_t + (s_t - 1)/s_{t+1} (w_t - w_{t-1}): FISTA"),
    shown=_rounds,
)
SIMPLE_SERVER = pick(
    "server",
    Value("average", "the server takes the average", PUBLISHED),
    Value("plain", "the server takes w + eta_g Delta"),
    Value("heavy-ball", "the server's momentum is m <- beta m + Delta, w + eta_g m"),
    Value("damped", "the server's momentum is damped, m <- beta m + (1 - beta) Delta, w + eta_g m"),
)
RHO = pick(
    "rho rule",
    Value("constant", "rho is constant", PUBLISHED),
    Value("1/(1+i)", "rho is divided by 1 + i, i all local steps so far"),
)
PERTURBATION = pick(
    "perturbation",
    Value("normalised", "gradients are taken at w + rho g/|g|", PUBLISHED),
    Value("not normalised", "gradients are taken at w + rho g"),
    Value("squared norm", "gradients are taken at w + rho g/|g|^2: the norm is squared", ERROR),
    Value("downhill", "gradients are taken at w - rho g/|g|: the sign is wrong", ERROR),
    Value("absent", "gradients are taken at w: the perturbation was dropped", ERROR),
)
LOCAL_STEP = pick(
    "local step",
    Value("eta/E", "local steps are eta divided by their number", PUBLISHED),
    Value("eta", "local steps are eta, whatever their number", ERROR),
)
NORMALISATION = pick(
    "normalisation",
    Value("paper", "updates per step are averaged, times sum_k p_k tau_k", PUBLISHED),
    Value("mean", "updates per step are averaged, times the mean of tau_k"),
    Value("largest", "updates per step are averaged, times the largest tau_k"),
    Value("1", "updates per step are averaged, and not multiplied by an effective number of steps", ERROR),
    Value("absent", "updates are not divided by the clients' numbers of steps", ERROR),
)
PLAYERS = (
    pick(
        "ascent",
        Value("projected", "domain weights take a projected gradient step", PUBLISHED),
        Value("exponentiated", "domain weights take an exponentiated gradient step", PUBLISHED),
        Value("clipped", "domain weights are clipped at 0 and divided by their sum, which is no projection"),
        Value("linear", "domain weights are multiplied by 1 + gamma F_k and divided by their sum"),
        Value("softmax", "domain weights are the softmax of the last losses: the old weights are lost", ERROR),
        Value("exponentiated, not normalised", "domain weights are not divided by their sum", ERROR),
    ),
    pick(
        "domain direction",
        Value("ascent", "domain weights go to domains that lose more", PUBLISHED),
        Value("descent", "domain weights go to domains that lose less: the sign is wrong", ERROR),
    ),
    pick(
        "domain loss",
        Value("mean", "domains are compared by the mean loss of their rows", PUBLISHED),
        Value("sum", "domains are compared by the sum of losses over their rows", ERROR),
    ),
    pick(
        "first weights",
        Value("uniform", "domain weights start at 1/p", PUBLISHED),
        Value("n_k/n", "domain weights start at n_k/n"),
    ),
)
AFL = (
    *only(BY_ROUND, "loss", "squared", "ridge", "direction", "schedule"),
    *PLAYERS,
    pick(
        "order",
        Value("at once", "both players step from the same pair (w_t, lambda_t)", PUBLISHED),
        Value("weights first", "domain weights step first, and the model uses the new ones"),
        Value("model first", "the model steps first, and domain weights see losses at the new one"),
    ),
    pick(
        "output",
        Value("average before", "the model is the average of w_0, ..., w_t", PUBLISHED),
        Value("average after", "the model is the average of w_1, ..., w_{t+1}", PUBLISHED),
        Value("average of all", "the model is the average of w_0, ..., w_{t+1}"),
        Value("last", "the model is the last point w_{t+1}"),
    ),
    pick(
        "optimism",
        Value("none", "steps follow the gradients of the round", PUBLISHED),
        Value("optimistic", "steps follow 2 g_t - g_{t-1}"),
        shown=_rounds,
    ),
    pick(
        "descent weights",
        Value("lambda", "the model descends sum_k lambda_k F_k", PUBLISHED),
        Value("by size", "the model descends with lambda_k n_k: sizes count twice", ERROR),
    ),
    *only(LOCAL, "work"),
)
AGNOSTIC = (
    *only(BASE, "loss", "squared", "ridge", "direction"),
    *LOCAL,
    pick(
        "domain rule",
        Value("ascent", "domain weights take a step in every round", PUBLISHED),
        Value("softmax", "domain weights are the softmax of mu times the losses heard in the round before"),
    ),
    *(c._replace(values=c.values[1:2] + c.values[:1] + c.values[2:] if c.name == "ascent" else c.values,
                 shown=_shown_if("domain rule", "ascent", shown=c.shown)) for c in PLAYERS),
    pick(
        "model weights",
        Value("beta", "models weigh lambda_k n_k over the rows of the window", PUBLISHED),
        Value("lambda", "models weigh lambda_k"),
        Value("lambda n_k", "models weigh lambda_k n_k: sizes are not divided out", ERROR),
        shown=_shown_if("domain rule", "ascent"),
    ),
    pick(
        "first window",
        Value("ones", "the window of sizes holds ones at first", PUBLISHED),
        Value("sizes", "the window of sizes holds the sizes from the first round on"),
        shown=lambda exam, r: r.get("model weights") == "beta",
    ),
    pick(
        "losses at",
        Value("sent model", "losses are those of the model that was sent", PUBLISHED),
        Value("local model", "losses are those after the local steps"),
        Value("new model", "losses are those of the new average"),
        shown=_rounds,
    ),
)  # fmt: skip

_OPT = ("server_step_size", "momentum", "beta1", "beta2", "epsilon")
FAMILIES = {
    f.name: f
    for f in (
        Family("fedavg", "federated averaging", "McMahan et al., AISTATS 2017, Algorithm 1",
               (*BASE, *LOCAL, CLIENT, VELOCITY, *PARTIAL), ALL,
               knows=("client_momentum", "beta1", "beta2", "epsilon")),
        Family("fedsgd", "one gradient a client and round", "McMahan et al., AISTATS 2017, Section 2",
               (*BY_ROUND, *PARTIAL, ACCELERATION), ("one step", "four rounds", "partial participation"),
               {"local_steps": 1, "epochs": 1}),
        Family("fedprox", "averaging with a proximal term", "Li et al., MLSys 2020, Algorithm 2",
               (SOLVER, *_unless_exact(*PLAINLY, CLIENT), *PROX, SIMPLE_SERVER), (*ALL, "eight rounds", "stragglers"),
               knows=("proximal_mu", "stragglers", *_OPT)),
        Family("scaffold", "averaging with control variates", "Karimireddy et al., ICML 2020, Algorithm 1",
               (*PLAINLY, SERVER_STEP, *CONTROLS), ALL, {"server_step_size": 0.6}, ("server_step_size",)),
        Family("fedopt", "averaging with a server optimiser", "Reddi et al., ICLR 2021, Algorithms 1 and 2",
               (*PLAINLY, SERVER_STEP, *SERVER), ALL, knows=_OPT,
               server_side=tuple(c.name for c in (SERVER_STEP, *SERVER))),
        Family("feddyn", "averaging with dynamic regularisation", "Acar et al., ICLR 2021, Algorithm 1",
               (SOLVER, *_unless_exact(*feddyn.UNIFORM, *LOCAL, *PARTIAL), *feddyn.DYNAMIC), ALL, knows=("alpha",),
               first=feddyn.first, reply=feddyn.reply, move=feddyn.move,
               at_server=(*averaging.AT_SERVER, "server state")),
        Family("fednova", "normalised averaging", "Wang et al., NeurIPS 2020, Section 4",
               (*FOLLOWS, NORMALISATION), ALL),
        Family("fedsam", "averaging with sharpness-aware steps", "Qu et al., ICML 2022, Algorithm 1",
               (*PLAINLY, PERTURBATION, RHO, *only(BASE, "schedule"), SIMPLE_SERVER), ALL,
               knows=("rho", "server_step_size", "momentum")),
        Family("dynamicfedavg", "averaging with steps eta/E", "Rizk, Vlaski, Sayed, SPAWC 2020, Algorithm 1",
               (*PLAINLY, LOCAL_STEP), (*DETERMINISTIC, "partial participation", "fresh batches")),
        Family("afl", "agnostic federated learning", "Mohri, Sivek, Suresh, ICML 2019, Figure 2",
               AFL, ("one step", "four rounds", "fresh batches"), {"local_steps": 1}, ("domain_step_size",),
               first=agnostic.first, reply=agnostic.reply_afl, move=agnostic.move_afl, at_server=agnostic.AFL_SERVER),
        Family("agnosticfedavg", "averaging by domain weights", "Ro et al., Interspeech 2021, Algorithm 1",
               (*AGNOSTIC, *only(PARTIAL, "sampling")), ALL, {}, ("domain_step_size", "softmax_mu"),
               at_server=agnostic.AT_SERVER, first=agnostic.first, reply=agnostic.reply, move=agnostic.move),
        *corrected.FAMILIES,
        *compressed.FAMILIES,
        *served.FAMILIES,
    )
}  # fmt: skip
