"""Five measured runs of GPT-NeoX from learned operators, fitted collectives and the simulator.

Nothing here is fitted on the runs: the operators are from samples of single operators, and the
collectives from a microbenchmark on the same machine. Gaps between kernels are left out: their
share is known from GPT-20B's own traces, so the errors with them are printed, not asserted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from estimator import Plan
from estimator.catalog import load_cluster
from estimator.cost.collectives import collective_seconds
from estimator.cost.regression import shipped_regression
from estimator.lower.slots import Collective
from estimator.operators import Operators, operators
from estimator.simulate.build import build
from estimator.simulate.engine import run as simulate
from tests.acceptance.extracts import rows
from tests.acceptance.neox import HALF, RUNS, Run, ends, layer
from tests.estimator.test_simulate_orders import pure

MOST_STEP_ERROR = 0.06
MOST_PART_ERROR = 0.15
GAPS = 0.044
"""Share of a layer's time in which a rank of GPT-20B runs no kernel (arXiv 2509.22832's traces)."""
EXPLAINED = {
    ("GPT-20B 4-8-4", "dp all-reduce"): "the run's groups skip every other node: it took 29 % "
    "longer than 8-4-4's of the same ranks for 3 % more bytes, whose time is met",
    ("Llemma-7B 4-2-2", "dp all-reduce"): "36 ms of 9.6 s, with the copies into buckets and the "
    "division by dp on its timer, which no sample has",
    ("Llemma-7B 4-2-2", "update"): "50 ms of 9.6 s, with ZeRO's unscaling, norm and search for "
    "overflows on its timer, which no sample has",
    ("LLaMA-13B 4-8-2", "transfer"): "5 ms of a 2.5 s micro-batch; the mask that goes along in "
    "the other runs seems to be sent apart",
}
CLUSTER = load_cluster("perlmutter:128")
MODEL = shipped_regression()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds; stages as lists."""

    layer_forward: float
    layer_backward: float
    tp: float
    forward: list[float]
    backward: list[float]
    reductions: list[float]
    updates: list[float]
    transfer: float

    def step(self, micro_batches: int) -> float:
        """Seconds of a step: 1F1B, then the reduction and update of every stage.

        DeepSpeed's transfers hide behind nothing, so they are part of each pass.
        """
        forward, backward = (
            [seconds + self.transfer for seconds in part] for part in (self.forward, self.backward)
        )
        work = replace(
            pure(forward, backward, micro_batches),
            gradients=np.array(self.reductions),
            optimizer=np.array(self.updates),
        )
        return simulate(build(work, Plan(pp=len(self.forward))).tasks).makespan


def collective(kind: Collective, size: float, group: int, inside: int) -> float:
    """Seconds by Perlmutter's own tables."""
    bytes_, ranks, near = (np.array([float(number)]) for number in (size, group, inside))
    return float(collective_seconds(kind, bytes_, ranks, near, CLUSTER)[0])


def kernels(ops: Operators | None) -> float:
    return 0.0 if ops is None else float(MODEL.seconds(ops, CLUSTER.device).sum())


def update(run: Run, parameters: float, inside: int) -> float:
    """Adam on a rank's share, then the gather of weights: half of an all-reduce, as in a ring.

    (The microbenchmark's own gathers count bytes of one rank, and some of them are broken.)
    """
    share = operators(
        "optimizer", name="adam", dtype="fp32", m=parameters / run.dp, reads=4, writes=3
    )
    return kernels(share) + collective("all_reduce", HALF * parameters, run.dp, inside) / 2


def predict(run: Run, gaps: float = 0.0) -> Prediction:
    busy = 1 - gaps
    activation = HALF * run.tokens * run.hidden
    tp = collective("all_reduce", activation, run.tp, min(run.tp, 4))
    inside = min(run.dp, max(1, 4 // run.tp))
    forward = kernels(layer(run, "forward")) / busy + run.reductions * tp
    # What is kept cut over tp is gathered before it is recomputed.
    gathered = tp / 2 if run.llama else 0.0
    backward = kernels(layer(run, "backward")) / busy + 2 * tp + gathered + forward
    # Embedding and logits: one reduction each, in opposite passes.
    head = np.zeros(run.pp)
    tail = head.copy()
    head[0], tail[-1] = tp, tp
    stages = range(run.pp)
    parameters = [run.parameters(s) for s in stages]
    buckets = [np.ceil(p / run.bucket) for p in parameters]
    return Prediction(
        layer_forward=forward,
        layer_backward=backward,
        tp=tp,
        forward=[
            run.layers[s] * forward + kernels(ends(run, s, "forward")) + head[s] for s in stages
        ],
        backward=[
            run.layers[s] * backward + kernels(ends(run, s, "backward")) + tail[s] for s in stages
        ],
        reductions=[
            n * collective("all_reduce", HALF * p / n, run.dp, inside)
            for p, n in zip(parameters, buckets, strict=True)
        ],
        updates=[update(run, p, inside) for p in parameters],
        # The attention mask goes along with the activations.
        transfer=collective("send_recv", activation / run.tp + HALF * run.sequence**2, 2, 1),
    )


def measured(run: Run) -> dict[str, float]:
    """Seconds of each part; of what waits for others, the first stage, which waits for nobody."""

    def find(file: str) -> dict[str, str]:
        wanted = (run.name.split()[0], str(run.pp), str(run.tp), str(run.dp))
        return next(
            row
            for row in rows("neox_stages", file)
            if row["system"] == "perlmutter"
            and (row["model"], row["pp"], row["tp"], row["dp"]) == wanted
        )

    layers, stages = find("layers.csv"), find("stages.csv")

    def largest(part: str) -> float:
        return max(float(stages[f"{part}_{stage}_ms"]) for stage in ("first", "middle", "last"))

    milliseconds = {
        "layer forward": float(layers["layer_forward_ms"]),
        "layer backward": float(layers["layer_backward_ms"]),
        "tp all-reduce": float(layers["tp_all_reduce_ms"]),
        "stage forward": largest("forward"),
        "stage backward": largest("backward"),
        "dp all-reduce": float(stages["all_reduce_first_ms"]),
        # LLaMA-13B's timer of the update shows less than that of the gather within it.
        "update": max(float(stages["update_first_ms"]), float(stages["all_gather_first_ms"])),
        "transfer": float(stages["transfer_ms"]),
        "step": float(layers["median_step_ms"]),
        "published step": float(layers["published_step_ms"]),
    }
    return {part: value / 1e3 for part, value in milliseconds.items()}


def errors(run: Run) -> dict[str, float]:
    """Signed relative error of every part and of the step."""
    found, truth = predict(run), measured(run)
    values = {
        "layer forward": found.layer_forward,
        "layer backward": found.layer_backward,
        "tp all-reduce": found.tp,
        "stage forward": max(found.forward),
        "stage backward": max(found.backward),
        "dp all-reduce": found.reductions[0],
        "update": found.updates[0],
        "transfer": found.transfer,
        "step": found.step(run.micro_batches),
        "step with gaps": predict(run, GAPS).step(run.micro_batches),
    }
    truth["step with gaps"] = truth["step"]
    return {
        **{part: value / truth[part] - 1 for part, value in values.items()},
        "published step": truth["published step"] / truth["step"] - 1,
    }


def test_steps_from_learned_operators(capsys: pytest.CaptureFixture[str]) -> None:
    table = {run.name: errors(run) for run in RUNS}
    steps = np.array([parts["step"] for parts in table.values()])
    gaps = np.array([parts["step with gaps"] for parts in table.values()])
    theirs = np.array([parts["published step"] for parts in table.values()])
    with capsys.disabled():
        for name, parts in table.items():
            shown = ", ".join(f"{part} {100 * error:+.1f}" for part, error in parts.items())
            print(f"\n{name} (%): {shown}", end="")
        print(
            f"\nmean |error| of the median step {np.abs(steps).mean():.2%}, "
            f"bias {steps.mean():+.2%}; with gaps {np.abs(gaps).mean():.2%}, {gaps.mean():+.2%}; "
            f"published {np.abs(theirs).mean():.2%}, {theirs.mean():+.2%}"
        )
    assert np.abs(steps).mean() <= MOST_STEP_ERROR
    off = {
        (name, part)
        for name, parts in table.items()
        for part, error in parts.items()
        if abs(error) > MOST_PART_ERROR and "step" not in part
    }
    assert off == set(EXPLAINED), "a part is off without a reason, or a reason is out of date"


def test_every_operator_of_a_layer_is_covered() -> None:
    for run in RUNS:
        for phase in ("forward", "backward"):
            ops = layer(run, phase)
            assert MODEL.covers(ops, CLUSTER.device).all()
            outside = MODEL.origin(ops, CLUSTER.device) == "extrapolated"
            # Sampled attention was not causal; padded or gradient-sized rows are beyond residuals.
            assert set(ops.name[outside].tolist()) <= {"flash2", "gelu", "res_add", "linear2"}
