"""AMPeD's closed form on the Megatron-LM runs that its paper also compares with.

Rows ran with full recompute, which AMPeD lacks: its extension here adds the forward again. What the
source does not say is fixed in advance: micro-batch 1, no interleaving, nothing sharded.
"""

from __future__ import annotations

import numpy as np
import pytest

from estimator import Plan, Plans, Transformer, Workload
from estimator.amped import Amped
from estimator.catalog import load_cluster
from tests.acceptance.extracts import rows
from tests.estimator.amped_problems import amped

ROWS = rows("megatron2021")
NAMES = [row["model"] for row in ROWS]
FOUR = ("145.6B", "310.1B", "529.6B", "1008.0B")
SEQUENCE, VOCAB = 2048, 51200


def model_of(row: dict[str, str]) -> Transformer:
    layers, hidden, heads = (int(row[name]) for name in ("layers", "hidden", "heads"))
    return Transformer(
        name=f"megatron-{row['model']}",
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=VOCAB,
        max_positions=SEQUENCE,
        activation="gelu",
        positions="learned",
        norm="layernorm",
        bias="all",
        tied=True,
    )


def measured_seconds(row: dict[str, str]) -> float:
    """Of an iteration: the paper's FLOPs (equation 3) over its FLOP/s."""
    batch, layers, hidden = (int(row[name]) for name in ("global_batch", "layers", "hidden"))
    tail = 1 + SEQUENCE / (6 * hidden) + VOCAB / (16 * layers * hidden)
    flops = 96 * batch * SEQUENCE * layers * hidden**2 * tail
    return flops / (int(row["gpus"]) * 1e12 * float(row["teraflops_per_gpu"]))


def predicted_seconds(row: dict[str, str], efficiency: float) -> float:
    workload = Workload(
        global_batch=int(row["global_batch"]),
        sequence=SEQUENCE,
        precision="fp16",
        attention="eager",
    )
    plan = Plan.parse(f"tp={row['tp']},pp={row['pp']},mbs=1,recompute=full", world=int(row["gpus"]))
    cluster = load_cluster(f"a100-sxm-80gb:{row['gpus']}")
    answer = amped(model_of(row), workload, cluster, Plans.of([plan]), Amped(efficiency=efficiency))
    return float(answer.step_seconds[0])


def fitted_efficiency(chosen: list[dict[str, str]]) -> float:
    """Least squares of relative errors: a step is affine in one over the efficiency."""
    at_1, at_half = (np.array([predicted_seconds(row, e) for row in chosen]) for e in (1.0, 0.5))
    measured = np.array([measured_seconds(row) for row in chosen])
    slope, rest = (at_half - at_1) / measured, (2 * at_1 - at_half) / measured
    return float((slope @ slope) / (slope @ (1 - rest)))


def error(row: dict[str, str], efficiency: float) -> float:
    return predicted_seconds(row, efficiency) / measured_seconds(row) - 1


def test_iteration_times_follow_from_the_published_flops() -> None:
    """By hand, for the 1.7B row."""
    row = ROWS[0]
    products = 96 * 512 * 2048 * 24 * 2304**2
    tail = 1 + 2048 / 13824 + 51200 / (16 * 24 * 2304)
    assert measured_seconds(row) == pytest.approx(products * tail / (32 * 137e12), rel=1e-12)
    assert measured_seconds(row) == pytest.approx(3.5, abs=0.1)


@pytest.mark.parametrize("left_out", FOUR)
def test_three_rows_predict_the_fourth(left_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    others = [row for row in ROWS if row["model"] in FOUR and row["model"] != left_out]
    efficiency = fitted_efficiency(others)
    row = ROWS[NAMES.index(left_out)]
    off = error(row, efficiency)
    with capsys.disabled():
        print(
            f"\nAMPeD {left_out}: efficiency {efficiency:.3f} from the other three, "
            f"{predicted_seconds(row, efficiency):.1f} s, measured {measured_seconds(row):.1f} s, "
            f"{100 * off:+.1f} %"
        )
    assert 0.4 < efficiency < 0.91
    assert abs(off) <= 0.12


def test_the_other_rows_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was fitted on them."""
    efficiency = fitted_efficiency([row for row in ROWS if row["model"] in FOUR])
    errors = {row["model"]: error(row, efficiency) for row in ROWS if row["model"] not in FOUR}
    with capsys.disabled():
        listed = ", ".join(f"{name} {100 * off:+.1f} %" for name, off in errors.items())
        print(f"\nAMPeD with efficiency {efficiency:.3f} of the four large rows: {listed}")
    assert max(map(abs, errors.values())) <= Amped().uncertainty
