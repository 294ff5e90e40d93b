"""Measured operators: the schema, the published layouts with a hand-worked row each, bad files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.lower.operators import as_run, flops, moved_bytes
from estimator.operators import KINDS, operators
from estimator.samples import load_samples, medians, pooled


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "samples.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_own_schema_converts_its_unit_and_fills_defaults(tmp_path):
    read = load_samples(
        _write(
            tmp_path,
            "kind,dtype,m,n,k,device,microseconds\nlinear,bf16,4096,1024,512,h100-sxm,12.5\n",
        )
    )
    assert read.seconds[0] == pytest.approx(12.5e-6, rel=1e-12)
    assert read.ops.phase[0] == "forward" and read.ops.batch[0] == 1
    # By hand: 2 * 4096 * 1024 * 512 FLOP; (4096 * 512 + 512 * 1024 + 4096 * 1024) * 2 B.
    assert flops(read.ops)[0] == 4294967296
    assert moved_bytes(read.ops)[0] == 13631488


SIMUMAX = "gpu,op,b,m,k,n,layout,time_us,tflops_peak,efficiency,shape\n"
LAYOUTS = {
    # A NeuSight row: B x (M, N) x (N, K), milliseconds, N is the reduction.
    "neusight": (
        "op,latency_ms,device,B,M,N,K\nbmm,0.238592,NVIDIA L4,192,96,196,200\n",
        ("bmm", "fp32", "l4", 238.592e-6, 2 * 192 * 96 * 200 * 196),
    ),
    # Element-wise: two arrays in, one out.
    "neusight-vector": (
        "op,latency_ms,device,B,H\nadd,0.5,Tesla T4,1000,64\n",
        ("elementwise", "fp32", "t4", 500e-6, 1000 * 64),
    ),
    "aiconfigurator": (
        "system,table,dtype,m,n,k,latency_ms\nh100_sxm,t,bfloat16,128,256,512,0.01\n",
        ("linear", "bf16", "h100-sxm", 1e-5, 2 * 128 * 256 * 512),
    ),
    # Causal: of 4 x 4 pairs, 10 are attended to; two products of 2 FLOP, 8 heads of 64.
    "attention": (
        "system,table,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,"
        "window_size,latency_ms\na100_sxm,t,flash_attention,1,4,8,2,64,0,0.01\n",
        ("attention", "bf16", "a100-sxm-80gb", 1e-5, 4 * 8 * 10 * 64),
    ),
    # 8 experts on 2 ranks, 64 tokens to 2 each: 16 rows for each of 4 experts, whose three products
    # of width 32 are one of 96.
    "experts": (
        "system,table,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
        "moe_tp_size,moe_ep_size,distribution,latency_ms\n"
        "h100_sxm,t,moe_torch_flow_cutlass,bfloat16,64,256,32,2,8,1,2,balanced,0.01\n",
        ("linear", "bf16", "h100-sxm", 1e-5, 2 * 4 * 16 * 96 * 256),
    ),
    "training-product": (
        SIMUMAX + 'A100-PCIe-80GB,matmul,1,512,256,128,TN,200,312,0.5,"b=1, out_dtype=bf16"\n',
        ("linear", "bf16", "a100-pcie-80gb", 2e-4, 2 * 512 * 256 * 128),
    ),
    # Weight gradient of 4 groups of 64 rows: (32, 64) x (64, 128) each.
    "training-group": (
        SIMUMAX + 'B200-SXM,group_matmul,4,64,128,32,bwd_grad_w,200,2250,0.5,"ng=4, '
        'main_grad_dtype=fp32, stage=bwd_grad_w"\n',
        ("linear", "bf16", "b200-simumax", 2e-4, 2 * 4 * 32 * 64 * 128),
    ),
    # Full square of 4 x 4 pairs counted 5 times: 5 x 16 x 8 x 320 FLOP at half of 2250 TFLOP/s.
    # Causal: 10 pairs in 5 products, 160 columns on average, 2 FLOP.
    "training-attention": (
        SIMUMAX + 'B200-SXM,sdp_bwd,,,,,,,2250,0.5,"batch=1, seq_len=4, head_num=8, '
        'kv_head_num=8, qk_head_dim=192, v_head_dim=128, qkv_contiguous=True"\n',
        ("attention", "bf16", "b200-simumax", 204800 / 1125e12, 8 * 10 * 5 * 160 * 2),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_by_hand(layout, tmp_path):
    text, (kind, dtype, device, seconds, work) = LAYOUTS[layout]
    read = load_samples(_write(tmp_path, text))
    assert (read.ops.kind[0], read.ops.dtype[0], read.device[0]) == (kind, dtype, device)
    assert read.seconds[0] == pytest.approx(seconds, rel=1e-9)
    assert flops(read.ops)[0] == pytest.approx(work, rel=1e-9)


def test_operator_level_rows_are_forward_and_backward(tmp_path):
    read = load_samples(
        _write(
            tmp_path,
            "site,device,op,mp,b,l,dim,F_dur(us),B_dur(us)\n"
            "Perlmutter,A100-SXM4-80GB,linear1,2,4,1024,2048,1000,2000\n",
        )
    )
    assert read.ops.phase.tolist() == ["forward", "backward"]
    # Rows b l, columns 3 d / tp, reduction d; backward is two such products.
    assert flops(read.ops).tolist() == [2 * 4096 * 3072 * 2048, 4 * 4096 * 3072 * 2048]
    assert read.seconds.tolist() == pytest.approx([1e-3, 2e-3], rel=1e-9)


def test_broken_rows_are_counted_by_rule(tmp_path):
    read = load_samples(
        _write(
            tmp_path,
            "site,device,op,mp,b,l,dim,F_dur(us),B_dur(us)\n"
            "Perlmutter,A100-SXM4-80GB,linear2,1,4,1024,2048,1000,2000\n"
            "Perlmutter,A100-SXM4-80GB,linear2,4,4,1024,2048,1000,2000\n",
        )
    )
    assert len(read) == 2 and read.excluded == {"a100-linear2-tp": 2}


def test_experts_whose_shape_did_not_run_are_counted_by_rule(tmp_path):
    head = (
        "system,table,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
        "moe_tp_size,moe_ep_size,distribution,latency_ms\n"
    )
    rows = (
        "h200_sxm,t,moe_torch_flow_cutlass,bfloat16,64,256,32,2,8,1,2,power_law_1.2,0.01\n"
        "h200_sxm,t,moe_torch_flow_cutlass,bfloat16,2,256,32,2,8,1,2,balanced,0.01\n"
        "h200_sxm,t,vllm_fused_moe,bfloat16,64,256,32,2,8,1,2,balanced,0.01\n"
        "h200_sxm,t,vllm_fused_moe,bfloat16,64,2688,1856,2,8,1,1,balanced,0.1\n"
        "h200_sxm,t,moe_torch_flow_nongated,bfloat16,64,2688,1856,2,8,1,1,balanced,0.1\n"
    )
    read = load_samples(_write(tmp_path, head + rows))
    assert read.excluded == {
        "experts-skewed": 1,
        "experts-unvisited": 1,
        "experts-of-other-ranks": 1,
        "experts-gate-unsaid": 1,
    }
    # Without a gate an expert is two products.
    assert read.ops.n.tolist() == [2 * 1856] and read.ops.m.tolist() == [64 * 2 / 8]


FAULTS = {
    "unknown operator": (SIMUMAX + "B200-SXM,conv,1,1,1,1,TN,1,2250,0.5,b=1\n", "op 'conv'"),
    "unknown gradient": (SIMUMAX + "B200-SXM,matmul,1,1,1,1,XX,1,2250,0.5,b=1\n", "layout 'XX'"),
    "shape without a size": (
        SIMUMAX + 'A100-PCIe-80GB,sdp_fwd,,,,,,,312,0.5,"batch=1, seq_len=4"\n',
        "'batch=1, seq_len=4' has no head_num",
    ),
    "empty": ("kind,dtype,device,seconds\n", "has no rows"),
    "no unit": ("kind,dtype,device\nlinear,bf16,h100-sxm\n", "exactly one column of time"),
    "two units": (
        "kind,dtype,device,seconds,microseconds\nlinear,bf16,h100-sxm,1,1\n",
        "found seconds and microseconds",
    ),
    "unknown column": ("kind,dtype,device,seconds,tp\nlinear,bf16,h100-sxm,1,1\n", "'tp'"),
    "no device": ("kind,dtype,seconds\nlinear,bf16,1\n", "no column device"),
    "unknown device": ("kind,dtype,device,seconds\nlinear,bf16,h999,1\n", "h999"),
    "unknown kind": ("kind,dtype,device,seconds\nconv3,bf16,h100-sxm,1\n", "row 1: unknown kind"),
    "unknown dtype": ("kind,dtype,device,seconds\nlinear,b16,h100-sxm,1\n", "unknown dtype"),
    "zero shape": ("kind,dtype,m,device,seconds\nlinear,bf16,0,h100-sxm,1\n", "row 1: m=0"),
    "text shape": ("kind,dtype,m,device,seconds\nlinear,bf16,x,h100-sxm,1\n", "row 1: m="),
    "zero time": ("kind,dtype,device,seconds\nlinear,bf16,h100-sxm,0\n", "row 1: seconds=0"),
    "faster than light": (
        "kind,dtype,m,n,k,device,seconds\nlinear,bf16,4096,4096,4096,h100-sxm,1e-9\n",
        "row 1: linear in seconds=1e-09 is faster than h100-sxm can be",
    ),
    "negative": ("kind,dtype,device,seconds\nlinear,bf16,h100-sxm,-1\n", "row 1: seconds=-1"),
    "infinite": ("kind,dtype,device,seconds\nlinear,bf16,h100-sxm,inf\n", "row 1: seconds=inf"),
    "nan": (
        "kind,dtype,device,seconds\nlinear,bf16,h100-sxm,1\nlinear,bf16,h100-sxm,\n",
        "row 2: seconds=nan is not a number",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_files_are_one_line(fault, tmp_path):
    text, words = FAULTS[fault]
    with pytest.raises(ValueError) as caught:
        load_samples(_write(tmp_path, text))
    assert words in str(caught.value) and "samples.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_table(tmp_path):
    with pytest.raises(ValueError, match="is not a file"):
        load_samples(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="must end in"):
        load_samples(_write(tmp_path, "").rename(tmp_path / "samples.txt"))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not parquet")
    with pytest.raises(ValueError, match=r"broken\.parquet"):
        load_samples(broken)


def test_parquet_reads_as_csv(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"kind": ["linear"], "dtype": ["bf16"], "device": ["h200"], "seconds": [1e-3], "m": [64]}
    )
    frame.to_parquet(tmp_path / "samples.parquet")
    assert load_samples(tmp_path / "samples.parquet").seconds.tolist() == [1e-3]


def test_medians_pool_collections_of_one_shape(tmp_path):
    rows = "".join(f"linear,bf16,64,h200,{t}\n" for t in (1, 2, 9)) + "linear,bf16,64,b200,5\n"
    read = load_samples(_write(tmp_path, "kind,dtype,m,device,microseconds\n" + rows))
    middle = medians(pooled([read, read]))
    assert dict(zip(middle.device.tolist(), middle.seconds.tolist(), strict=True)) == {
        "b200": pytest.approx(5e-6),
        "h200": pytest.approx(2e-6),
    }


sizes = st.integers(1, 4096)


@given(batch=st.integers(1, 8), m=sizes, n=sizes, k=sizes)
def test_backward_of_a_product_is_two_products_of_equal_work(batch, m, n, k):
    backward = operators("linear", dtype="bf16", phase="backward", batch=batch, m=m, n=n, k=k)
    run, row = as_run(backward)
    assert row.tolist() == [0, 0] and set(run.phase.tolist()) == {"forward"}
    assert flops(run).sum() == flops(backward)[0]
    assert moved_bytes(run).sum() == moved_bytes(backward)[0]


@given(
    kind=st.sampled_from(KINDS), m=sizes, n=sizes, k=sizes, dtype=st.sampled_from(["fp32", "fp8"])
)
def test_work_is_positive_and_halves_with_the_element(kind, m, n, k, dtype):
    ops = operators(kind, dtype=[dtype, "fp16"], m=m, n=n, k=k)
    assert (flops(ops) > 0).all() and (moved_bytes(ops) > 0).all()
    ratio = 2.0 if dtype == "fp32" else 0.5
    assert moved_bytes(ops)[0] == ratio * moved_bytes(ops)[1]


def test_causal_attention_by_counting_pairs():
    m, n = 5, 9
    ops = operators("attention", dtype="bf16", m=m, n=n, k=16, heads=3, causal=[1.0, 0.0])
    pairs = sum(n - m + 1 + query for query in range(m))
    assert flops(ops).tolist() == [4 * 3 * 16 * pairs, 4 * 3 * 16 * m * n]
    assert np.all(flops(ops)[0] <= flops(ops)[1])
