"""Measured runs: reading, units, and the mapping of hand-worked rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.assumptions import UnmappedError
from estimator.mapping import map_run
from estimator.runs import Run, read_runs

LLAMA = Run(
    model="llama-3.1-8b",
    gpu="H100-SXM5-80GB",
    n_gpus=16,
    framework="NeMo",
    global_batch=128,
    seq_len=8192,
    tp=2,
    iter_time_s=4.0,
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_hand_worked_row(tmp_path: Path) -> None:
    """2048 sequences of 2048 tokens on 512 GPUs at 741 tokens/s each are 11.055 s."""
    path = write(
        tmp_path,
        "model,gpu,n_gpus,global_batch,seq_len,tokens_per_s_per_gpu,mem_gb_per_gpu,mem_kind\n"
        "gpt3-175b,H100-SXM5-80GB,512.0,2048,2048,741,60.5,GiB max reserved\n",
    )
    (run,) = read_runs(path).runs
    assert run.n_gpus == 512
    assert run.seconds == pytest.approx(2048 * 2048 / (741 * 512), rel=1e-9)
    assert run.peak_bytes == pytest.approx(60.5 * 2**30, rel=1e-9)
    assert (run.memory_kind, run.memory_rank) == ("reserved", "max")


@pytest.mark.parametrize(
    ("text", "kind", "rank"),
    [
        ("max over ranks of max_memory_allocated (1e9 bytes)", "allocated", "max"),
        ("torch max allocated (1e9 bytes), rank 0", "allocated", "first"),
        ("GiB, max reserved logged by torchtitan", "reserved", "max"),
        ("GPU memory GB as printed (nvidia-smi)", "device", "unsaid"),
        ("allocated, last rank", "allocated", "last"),
    ],
)
def test_kinds_of_memory(text: str, kind: str, rank: str) -> None:
    run = Run(mem_gb_per_gpu=1.0, mem_kind=text)
    assert (run.memory_kind, run.memory_rank) == (kind, rank)


def test_time_from_samples() -> None:
    assert Run(global_batch=64, samples_per_s=16.0).seconds == 4.0
    assert Run(tokens_per_s_per_gpu=100.0).seconds is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a,b\n1,2\n", "has none of the columns of a run"),
        ("gpu,n_gpus\n", "has no rows"),
        ("gpu,gpu\nx,y\n", "names column gpu twice"),
        ("gpu,n_gpus\nH100,8,9\n", "line 2 has more cells than the first line"),
        ("gpu,n_gpus\nH100,many\n", "line 2: n_gpus='many': input should be a valid integer"),
        ("gpu,n_gpus\nH100,0\n", "line 2: n_gpus='0': input should be greater than or equal to 1"),
        ("gpu,iter_time_s\nH100,-3\n", "line 2: iter_time_s='-3': input should be greater than 0"),
        ("gpu,iter_time_s\nH100,nan\n", "line 2: iter_time_s='nan': input should be"),
        ("gpu,sp\nH100,perhaps\n", "line 2: sp='perhaps': input should be a valid boolean"),
        ('gpu,model\nH100,"open\n', "is not a CSV of text in UTF-8"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ValueError) as error:
        read_runs(write(tmp_path, text))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a directory; give a CSV"):
        read_runs(tmp_path)
    with pytest.raises(ValueError, match="does not exist; give a CSV"):
        read_runs(tmp_path / "none.csv")
    binary = tmp_path / "runs.csv"
    binary.write_bytes(b"\xff\xfe\x00gpu")
    with pytest.raises(ValueError, match="is not a CSV of text in UTF-8"):
        read_runs(binary)


def test_what_is_not_said_is_assumed_and_recorded() -> None:
    mapped = map_run(LLAMA)
    assert mapped.stack.name == "nemo"
    assert mapped.cluster.nodes == 2
    assert mapped.plan.dp == 8
    assert mapped.plan.zero == 1
    assert mapped.plan.sequence_parallel
    assert mapped.workload.precision == "bf16"
    assert mapped.workload.attention == "flash"
    taken = set(mapped.assumed)
    assert {"pp", "cp", "micro_batch", "zero_stage", "sp", "precision", "recompute"} <= taken
    assert "tp" not in taken
    assert mapped.assumed["recompute"] == "none (usual for its stack)"


def test_what_is_said_is_kept() -> None:
    said = LLAMA.model_copy(
        update={
            "sp": False,
            "zero_stage": 0,
            "recompute": "full",
            "precision": "fp8 (tensorwise)",
            "flash_attention": False,
            "inter_net_gbps_per_gpu": 100.0,
            "micro_batch": 2,
        }
    )
    mapped = map_run(said)
    assert not mapped.plan.sequence_parallel
    assert mapped.plan.zero == 0
    assert mapped.plan.recompute == "full"
    assert mapped.workload.precision == "fp8"
    assert mapped.workload.attention == "eager"
    assert mapped.cluster.scale_out is not None
    assert mapped.cluster.scale_out.bandwidth == pytest.approx(12.5e9)
    assert mapped.plan.micro_batch == 2


@pytest.mark.parametrize(
    ("framework", "gpu", "stack", "zero", "attention"),
    [
        ("Megatron-LM", "A100-SXM4-80GB", "megatron-2021", 0, "eager"),
        ("Megatron-LM", "H100-SXM5-80GB", "megatron", 1, "flash"),
        ("Megatron-DeepSpeed", "A100-SXM4-80GB", "megatron-deepspeed", 0, "eager"),
        ("torchtitan", "H100-SXM5-80GB", "fsdp", 3, "flash"),
        ("MaxText (JAX)", "H100-SXM5-80GB", "maxtext", 3, "flash"),
        ("GPT-NeoX (DeepSpeed pipeline)", "A100-SXM4-80GB", "gpt-neox", 1, "eager"),
    ],
)
def test_conventions_by_framework_and_era(
    framework: str, gpu: str, stack: str, zero: int, attention: str
) -> None:
    mapped = map_run(LLAMA.model_copy(update={"framework": framework, "gpu": gpu}))
    assert mapped.stack.name == stack
    assert mapped.plan.zero == zero
    assert mapped.workload.attention == attention


def test_what_was_fitted_to_adapters_is_for_adapters() -> None:
    """MLPerf's runs of role fit are all fine-tuning: pretraining takes nothing from them."""
    run = LLAMA.model_copy(update={"source_id": "mlperf", "framework": "NVIDIA NeMo"})
    tuned = run.model_copy(update={"workload": "lora"})
    graphs = tuned.model_copy(update={"cuda_graphs": True})
    stacks = [map_run(one).stack for one in (run, tuned, graphs)]
    assert [one.name for one in stacks] == ["mlperf", "mlperf-lora", "mlperf-graphs"]
    assert stacks[0].calibration is None
    assert stacks[1].calibration is not None


@pytest.mark.parametrize(
    ("notes", "column", "value"),
    [
        ("run with tp_comm_overlap=True", "overlap_tp", True),
        ("TP_COMM_OVERLAP=0", "overlap_tp", False),
        ("compile + AsyncTP", "overlap_tp", True),
        ("compile + AsyncTP", "compiled", True),
        ("eager", "compiled", False),
        ("no compile", "compiled", False),
        ("no comm overlap", "overlap_grad", False),
        ("no comm overlap", "overlap_p2p", False),
        ("cuda_graph=1", "cuda_graphs", True),
        ("interleaved 1F1B", "interleaved", True),
        ("bnb 8-bit optimizer; 31GB", "optimizer", "adam-8bit"),
        ("compilers, recompiled, 18-bit optimizers", "compiled", None),
        ("18-bit optimizers", "optimizer", None),
    ],
)
def test_notes_fill_blank_columns_of_the_recipe(notes: str, column: str, value: object) -> None:
    row = LLAMA.model_dump() | {"notes": notes}
    assert getattr(Run.model_validate(row), column) == value


def test_a_column_goes_before_the_notes() -> None:
    row = LLAMA.model_dump() | {"notes": "eager", "compiled": True, "optimizer": "sgd"}
    run = Run.model_validate(row)
    assert run.compiled is True
    assert map_run(run).workload.optimizer == "sgd"


def test_a_shape_without_a_catalogue_entry() -> None:
    run = LLAMA.model_copy(update={"model": "my-llama", "layers": 16, "hidden": 3072, "heads": 24})
    model = map_run(run).model
    assert model.ffn == 8192  # 8/3 of 3072
    assert model.head_dim == 128
    assert model.activation == "swiglu"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "TPU v5p"}, "gpu 'TPU v5p' is not in the catalogue"),
        ({"gpu": None}, "gpu is not given"),
        ({"framework": "MyTrainer"}, "framework 'MyTrainer' is unknown"),
        ({"model": "mystery"}, "model 'mystery' has no shape (layers, hidden, heads)"),
        ({"moe_experts": 8}, "contradiction: moe_experts=8, but llama-3.1-8b of the catalogue"),
        ({"offload": "params"}, "offload of 'params' is not supported; use none, optimizer, ch"),
        ({"offload": "optimizer", "gpu": "MI300X"}, "the host of mi300x, for offload, is not"),
        ({"precision": "int4"}, "precision 'int4' is not supported yet"),
        ({"optimizer": "lion"}, "optimizer 'lion' is not supported; use adam, adam-bf16, "),
        ({"tp": 3}, "contradiction: tp x cp x pp = 3 does not divide 16 GPUs"),
        ({"dp": 3}, "contradiction: dp=3, but 16 GPUs over tp x cp x pp leave 8"),
        ({"global_batch": 12}, "contradiction: dp x micro_batch = 8 does not divide"),
        ({"n_gpus": 20}, "n_gpus=20 is no whole number of nodes of 8"),
        ({"n_gpus": None}, "n_gpus is not given"),
        ({"recompute": "some"}, "recompute 'some' is unknown; use none, selective, mlp, full"),
        ({"gpu": "V100-SXM2-32GB", "precision": "bf16"}, "v100-sxm-32gb has no bf16"),
    ],
)
def test_unmapped_runs_say_why(change: dict[str, object], reason: str) -> None:
    with pytest.raises(UnmappedError) as error:
        map_run(LLAMA.model_copy(update=change))
    assert str(error.value).startswith(reason)


def test_a_known_cluster_keeps_the_memory_of_the_gpu() -> None:
    change = {"gpu": "V100-SXM2-16GB", "inter_net": "Omni-Path (Jean Zay)", "precision": "fp16"}
    run = LLAMA.model_copy(update={**change, "gpus_per_node": 4, "flash_attention": False})
    cluster = map_run(run).cluster
    assert cluster.device.name == "v100-sxm-16gb"
    assert cluster.scale_out is not None
    assert "omni" in cluster.scale_out.name.lower()


@pytest.mark.parametrize(
    ("version", "stack"),
    [
        ("release table 2024-03", "nemo-2024"),
        ("24.07 (Aug 2024)", "nemo-2024"),
        ("NeMo 24.11/24.09 container", "nemo"),
        ("NeMo (recipe v25.02)", "nemo"),
        ("26.06.01 NeMo Container", "nemo"),
        ("main", "nemo"),
        (None, "nemo"),
    ],
)
def test_early_releases_have_a_stack_of_their_own(version: str | None, stack: str) -> None:
    run = LLAMA.model_copy(update={"framework_version": version})
    assert map_run(run).stack.name == stack


def test_fine_tuning_recipes_pack_documents() -> None:
    tuned = LLAMA.model_copy(update={"workload": "sft"})
    mapped = map_run(tuned)
    assert mapped.workload.document == 200
    assert mapped.assumed["document"] == "200 (packed by its fine-tuning recipes)"
    assert map_run(tuned.model_copy(update={"document": 512})).workload.document == 512
    assert map_run(LLAMA).workload.document is None
    eager = tuned.model_copy(update={"flash_attention": False})
    assert map_run(eager).workload.document is None
    other = tuned.model_copy(update={"framework": "torchtitan"})
    assert map_run(other).workload.document is None


def test_a_document_longer_than_the_sequence_does_not_map() -> None:
    with pytest.raises(UnmappedError, match="document=9000 must lie from 1 to the 8192 tokens"):
        map_run(LLAMA.model_copy(update={"document": 9000}))


@pytest.mark.parametrize(
    ("layers", "gpus", "sequence", "recompute"),
    [
        (16, 16, 8192, "none"),
        # 16 bytes of each of 69e9 parameters over 64 GPUs are 17 GB; inputs of layers and outputs
        # of projections 80 * 4096 * 2 * (2 * 8192 + 10240) = 17 GB; with inputs and outputs of
        # norms, core and MLP 80 * 4096 * 2 * (5 * 8192 + 10240 + 3 * 28672) = 90 GB.
        (80, 64, 4096, "mlp"),
        (80, 64, 16384, "full"),
        # Nothing fits: the most there is.
        (80, 4, 8192, "full"),
    ],
)
def test_jax_recipes_recompute_the_least_that_fits(
    layers: int, gpus: int, sequence: int, recompute: str
) -> None:
    shape = {"hidden": 8192, "ffn": 28672, "heads": 64, "kv_heads": 8, "vocab": 32000}
    size = {"layers": layers, "n_gpus": gpus, "seq_len": sequence, "tp": 1, "micro_batch": 1}
    run = LLAMA.model_copy(update={**shape, **size, "framework": "MaxText (JAX)"})
    mapped = map_run(run)
    assert (mapped.stack.name, mapped.plan.recompute) == ("maxtext", recompute)
    assert mapped.assumed["recompute"] == f"{recompute} (the least that fits)"
    said = map_run(run.model_copy(update={"recompute": "selective"}))
    assert said.plan.recompute == "selective"
    assert "recompute" not in said.assumed


def test_a_network_says_how_many_nics_share_a_node() -> None:
    """Four of 100 Gb/s for eight GPUs are 50 Gb/s for each; numbers that disagree say nothing."""

    def nic(network: str, rate: float) -> float | None:
        change = {"inter_net": network, "inter_net_gbps_per_gpu": rate}
        link = map_run(LLAMA.model_copy(update=change)).cluster.scale_out
        assert link is not None
        assert link.bandwidth == rate * 1e9 / 8
        return link.nic_bandwidth

    assert nic("4x100Gb RoCE per node", 50.0) == 12.5e9
    assert nic("4x100Gb RoCE per node", 100.0) is None
    assert nic("RoCE", 50.0) is None


def test_the_zero_3_example_of_megatron_deepspeed_leaves_checkpoints_on_the_host() -> None:
    """DeepSpeedExamples, ds_pretrain_gpt2-zero3.sh: partitioned over tp, in host memory."""
    change = {"framework": "Megatron-DeepSpeed", "gpu": "V100-SXM2-32GB", "precision": "fp16"}
    run = LLAMA.model_copy(update={**change, "zero_stage": 3, "recompute": "full"})
    mapped = map_run(run)
    assert mapped.plan.offload == "checkpoints"
    assert mapped.assumed["offload"] == "checkpoints (as its example for zero=3)"
    for other in ({"offload": "none"}, {"recompute": "none"}, {"zero_stage": 1}):
        assert map_run(run.model_copy(update=other)).plan.offload == "none"
    said = Run(source_ref="gpt2.md :: ZeRO (old branch) / With full optim cpu offload (line 398)")
    assert said.offload == "optimizer"
    optimizer = map_run(run.model_copy(update={"offload": said.offload}))
    assert optimizer.plan.offload == "both"
    elsewhere = {"framework": "HF Trainer + DeepSpeed", "offload": "optimizer"}
    assert map_run(run.model_copy(update=elsewhere)).plan.offload == "optimizer"


def test_a_run_that_ran_fits_what_it_selects() -> None:
    """Every second layer, or all of them where half would not fit; 70B in bf16 on 128 GPUs."""
    change = {"framework": "fms-fsdp (PyTorch FSDP)", "recompute": "selective", "micro_batch": 2}
    run = LLAMA.model_copy(update={**change, "n_gpus": 128, "tp": 1, "global_batch": 256})
    half = map_run(run)
    assert (half.plan.recompute, half.plan.recompute_layers) == ("full", 16)
    whole = map_run(run.model_copy(update={"model": "llama-3.1-70b"}))
    assert (whole.plan.recompute, whole.plan.recompute_layers) == ("full", None)
    assert whole.assumed["recompute_layers"] == "all (every second layer would not fit)"


def test_words_of_notes_say_what_fp8_scales() -> None:
    fp8 = LLAMA.model_copy(update={"precision": "fp8"})
    assert Run(notes="async TP; float8 rowwise; torch.compile").fp8_scaling == "row"
    assert Run(notes="vanilla TP; float8 tensorwise").fp8_scaling == "tensor"
    assert map_run(fp8.model_copy(update={"fp8_scaling": "row"})).workload.fp8_scaling == "row"
    assert map_run(LLAMA.model_copy(update={"fp8_scaling": "row"})).workload.fp8_scaling == "tensor"
    with pytest.raises(UnmappedError, match="fp8_scaling 'block' is unknown; use tensor, row"):
        map_run(fp8.model_copy(update={"fp8_scaling": "block"}))


def test_llamas_of_gpt_neox_run_one_block_after_the_other() -> None:
    """GPT-NeoX-20B has one residual for both; configurations of Llama do not (gpt_j_residual)."""
    change = {"framework": "GPT-NeoX (DeepSpeed)", "layers": 40, "hidden": 5120, "heads": 40}
    run = LLAMA.model_copy(update={**change, "n_gpus": 64, "tp": 8})
    for name, parallel in (("gpt-neox-20b", True), ("llama-13b", False), ("llemma-7b", False)):
        model = map_run(run.model_copy(update={"model": name})).model
        assert model.parallel_residual == parallel
        assert model.norm == ("layernorm" if parallel else "rmsnorm")


def test_words_of_notes_say_what_shards_are_spread_over() -> None:
    said = Run(notes="FSDP shard group 128, DP replicas 4", framework="MaxText (JAX)")
    assert said.shard_size == 128
    assert Run(notes="FSDP shard group 128", shard_size=64).shard_size == 64
    assert Run(notes="zero1 group=8; pack_sample_into_one=True").shard_size == 8
    assert Run(notes="zero1 group=-1 (-1 = all DP ranks)").shard_size is None
    shape = {"layers": 16, "hidden": 4096, "ffn": 16384, "heads": 32, "kv_heads": 32, "tp": 1}
    run = LLAMA.model_copy(update={**shape, "framework": "MaxText (JAX)", "shard_size": 8})
    assert map_run(run).plan.shard_size == 8
    whole = run.model_copy(update={"shard_size": 16})
    assert map_run(whole).plan.shard_size is None, "all ranks there are"
    with pytest.raises(UnmappedError, match="shard_size=5 does not divide dp x cp = 16"):
        map_run(run.model_copy(update={"shard_size": 5}))


@pytest.mark.parametrize(
    ("notes", "overlap"),
    [
        ("MoE force-balanced; moe_a2a_overlap=True", True),
        ("overlap_moe_expert_parallel_comm=0", False),
        ("MoE force-balanced", None),
    ],
)
def test_words_of_notes_say_whether_exchanges_of_experts_hide(
    notes: str, overlap: bool | None
) -> None:
    assert Run(notes=notes).overlap_ep is overlap


def test_adapters_overlap_less() -> None:
    """NeMo's recipes for LoRA do not run tensor parallelism beside GEMMs."""
    tuned = LLAMA.model_copy(update={"workload": "lora", "tp": 2})
    mapped = map_run(tuned)
    assert mapped.plan.overlap_tp is False
    assert mapped.assumed["overlap_tp"] == "False (usual for its adapters)"
    assert map_run(tuned.model_copy(update={"overlap_tp": True})).plan.overlap_tp is True
    assert map_run(tuned.model_copy(update={"workload": "sft"})).plan.overlap_tp is None
    assert map_run(tuned.model_copy(update={"tp": 1})).plan.overlap_tp is None
