"""Peak memory against published measurements; no constant was fitted for any of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Plan, Transformer, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from tests.acceptance.extracts import rows


def simumax_error(row: dict[str, str]) -> float:
    model = replace(load_model("llama-3.1-70b"), layers=int(row["layers"]), max_positions=131072)
    workload = Workload(global_batch=int(row["global_batch"]), sequence=int(row["sequence"]))
    plan = Plan(
        dp=int(row["dp"]),
        tp=int(row["tp"]),
        cp=int(row["cp"]),
        pp=int(row["pp"]),
        sequence_parallel=int(row["tp"]) > 1,
        zero=1,
    )
    answer = estimate(model, workload, load_cluster("b200:8"), plan, stack=load_stack("megatron"))
    return answer.allocated_bytes / float(row["max_allocated_bytes"]) - 1


def test_simumax_b200(capsys: pytest.CaptureFixture[str]) -> None:
    errors = [simumax_error(row) for row in rows("simumax_b200")]
    mape = sum(abs(error) for error in errors) / len(errors)
    worst = max(errors, key=abs)
    with capsys.disabled():
        print(
            f"\nSimuMax B200, {len(errors)} dense rows, all mapped: allocated memory MAPE "
            f"{100 * mape:.2f} %, worst {100 * worst:+.2f} %"
        )
    assert mape <= 0.006


GPT_20B = Transformer(
    name="gpt-20b",
    layers=44,
    hidden=6144,
    ffn=24576,
    heads=64,
    kv_heads=64,
    head_dim=96,
    vocab=50257,
    max_positions=2048,
    activation="gelu",
    positions="rotary",
    norm="layernorm",
    bias="all",
    tied=False,
    parallel_residual=True,
)


@pytest.mark.parametrize(
    "row", rows("gpt20b"), ids=lambda r: f"pp{r['pp']}-tp{r['tp']}-dp{r['dp']}"
)
def test_gpt_20b_first_stage(row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    dp = int(row["dp"])
    workload = Workload(
        global_batch=16 * 4 * dp, sequence=2048, precision="fp16", attention="eager"
    )
    plan = Plan(
        dp=dp,
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        micro_batch=4,
        zero=1,
        recompute="full",
        first_stage_layers=int(row["first_stage_layers"]),
        last_stage_layers=int(row["last_stage_layers"]),
    )
    answer = estimate(
        GPT_20B,
        workload,
        load_cluster("a100-sxm-80gb:128"),
        plan,
        stack=load_stack("megatron-deepspeed"),
    )
    first = answer.stages[0]
    assert first["stage"] == "first"
    error = first["allocated_bytes"] / 2**20 / float(row["max_allocated_mib"]) - 1
    with capsys.disabled():
        print(f"\nGPT-20B pp={row['pp']} tp={row['tp']}: rank 0 allocated {100 * error:+.2f} %")
    assert abs(error) < 0.02
