"""What frameworks usually do where a run does not say, and how runs spell their GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from estimator.cluster import Cluster
from estimator.plan import Offload, Recompute
from estimator.workload import Attention, LoraTargets

DEVICES: tuple[tuple[str, str], ...] = (
    (r"gb300|blackwell ultra.*gb300", "gb300"),
    (r"b300", "b300"),
    (r"gb200", "gb200"),
    (r"b200", "b200"),
    (r"gh200", "gh200-96gb"),
    (r"h200.*nvl", "h200-nvl"),
    (r"h200", "h200"),
    (r"h100.*96|h100.*500\s*w", "h100-sxm-96gb"),
    (r"h100(?!.*pcie)", "h100-sxm"),
    (r"a100.*40", "a100-sxm-40gb"),
    (r"a100(?!.*pcie)", "a100-sxm-80gb"),
    (r"v100.*16", "v100-sxm-16gb"),
    (r"v100", "v100-sxm-32gb"),
    (r"l40s", "l40s"),
    (r"mi300x", "mi300x"),
    (r"mi325x", "mi325x"),
    (r"mi350x", "mi350x"),
    (r"mi355x", "mi355x"),
    (r"^cpu$", "cpu"),
)
"""Pattern in a run's ``gpu`` (lower case) and the catalogue's device; the first match counts."""


CLUSTERS: tuple[tuple[str, str], ...] = (
    (r"perlmutter", "perlmutter"),
    (r"vista", "vista"),
    (r"jean zay", "jean-zay-v100"),
    (r"simumax", "simumax-b200"),
)
"""Pattern in a run's ``gpu``, ``inter_net`` and source and the catalogue's cluster, a machine that
was measured itself; its nominal rate is then not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """Defaults of one framework in one era."""

    name: str
    pattern: str
    """In the framework's name and the source's, lower case."""
    stack: str
    zero: int
    sequence_parallel: bool
    """With tp > 1."""
    attention: Attention = "flash"
    recompute: Recompute = "none"
    half: str = "bf16"
    """Precision where none is given; the device's other half precision where it lacks it."""
    dropout: bool = False
    interleaves: bool = False
    """Whether its recipes interleave when the number of chunks is not given."""
    parallel_residual: bool = False
    pipeline_zero: int | None = None
    """What its zero=3 amounts to under a pipeline, which keeps weights gathered for the step."""
    stages_of_micro_batches: bool = False
    """It cuts a rank's batch into as many micro-batches as there are stages, unless told."""
    eager_stack: str | None = None
    """Its stack where nothing is compiled."""
    adapter_stack: str | None = None
    """Its stack where adapters are trained."""
    graph_stack: str | None = None
    """Its stack where layers are replayed as CUDA graphs."""
    early_stack: str | None = None
    """Its stack before release (year, month) ``early_until``."""
    early_until: tuple[int, int] = (0, 0)
    experts_in_graphs_since: tuple[int, int] | None = None
    """Release (year, month) from which its recipes of mixtures of experts on Blackwell do so."""
    adapters_recompute: bool = False
    """Its recipes for adapters checkpoint every layer of models that one GPU cannot hold."""
    adapters_overlap_tp: bool | None = None
    """Whether adapters run tensor parallelism beside GEMMs; ``None`` is the stack's habit."""
    lora_targets: LoraTargets = "attention"
    zero3_offload: Offload = "none"
    """What its ZeRO-3 example leaves in host memory with full recompute, beside the optimizer's
    states where a run says so."""
    tuning_document: int | None = None
    """Mean tokens of the documents that its fine-tuning recipes pack into a sequence."""
    least_recompute: bool = False
    """Its recipes recompute no more than memory asks for."""
    selective_is_every_second_layer: bool = False
    """Its selective recompute runs every second layer again, not the attention core."""

    def precision(self, cluster: Cluster) -> str:
        """The precision of a run that does not say."""
        if self.half in cluster.device.peaks:
            return self.half
        return "fp16" if "fp16" in cluster.device.peaks else "fp32"


CONVENTIONS: tuple[Convention, ...] = (
    # MLPerf submissions of NVIDIA's partners: fp8 recipes.
    Convention(
        name="mlperf",
        pattern=r"\bmlperf\b",
        stack="mlperf",
        adapter_stack="mlperf-lora",
        graph_stack="mlperf-graphs",
        zero=1,
        sequence_parallel=True,
        half="fp8",
    ),
    # GPT-NeoX on DeepSpeed's pipeline engine: checkpoints every layer.
    Convention(
        name="gpt-neox",
        pattern=r"neox",
        stack="gpt-neox",
        zero=1,
        sequence_parallel=False,
        attention="eager",
        recompute="full",
        half="fp16",
        parallel_residual=True,
    ),
    # Hugging Face Trainer with DeepSpeed: ZeRO-3 without model parallelism.
    Convention(
        name="huggingface-deepspeed",
        pattern=r"hf trainer|hugging ?face",
        stack="fsdp-eager",
        zero=3,
        sequence_parallel=False,
        attention="eager",
        half="fp16",
    ),
    Convention(
        name="megatron-deepspeed",
        pattern=r"deepspeed",
        stack="megatron-deepspeed",
        zero=0,
        sequence_parallel=False,
        attention="eager",
        half="fp16",
        dropout=True,
        # DeepSpeedExamples, ds_pretrain_gpt2-zero3.sh: PA, PA_CPU.
        zero3_offload="checkpoints",
    ),
    # The fork of the zero-bubble papers (2023), with flash attention.
    Convention(
        name="zero-bubble",
        pattern=r"zero-bubble",
        stack="megatron",
        zero=1,
        sequence_parallel=True,
        half="bf16",
    ),
    Convention(
        # PEFT recipes of NeMo AutoModel: match_all_linear, activation_checkpointing from 32B on.
        name="nemo-automodel",
        pattern=r"automodel",
        stack="automodel",
        zero=3,
        sequence_parallel=False,
        pipeline_zero=1,
        adapters_recompute=True,
        lora_targets="all",
    ),
    Convention(
        name="nemo",
        pattern=r"nemo|megatron-bridge|\bngc\b|nvidia",
        stack="nemo",
        zero=1,
        sequence_parallel=True,
        interleaves=True,
        graph_stack="nemo-graphs",
        early_stack="nemo-2024",
        early_until=(24, 9),
        experts_in_graphs_since=(26, 6),
        # llama3_70b.finetune_performance_optimizations: tp_comm_overlap for full fine-tuning alone.
        adapters_overlap_tp=False,
        # Its recipes for speed (performance_mode) pack SQuAD into 4096 tokens: paragraph, question
        # and answer come to some 200.
        tuning_document=200,
    ),
    # Megatron-Core's own regression runs, recent whatever the GPU.
    Convention(
        name="megatron-core",
        pattern=r"mlm_golden|megatron[- ]core|mcore",
        stack="megatron",
        zero=1,
        sequence_parallel=True,
    ),
    Convention(
        name="megatron-lm",
        pattern=r"megatron",
        stack="megatron",
        zero=1,
        sequence_parallel=True,
    ),
    # Shards optimizer states only; flash attention from the start.
    Convention(
        name="internevo",
        pattern=r"internevo",
        stack="internevo",
        zero=1,
        sequence_parallel=False,
    ),
    # MaxText and Paxml as NVIDIA/dgxc-benchmarking runs them: their policies save what fits, from
    # all products (GPT 5B) to those of queries, keys and values alone (Llama 70B).
    Convention(
        name="maxtext",
        pattern=r"maxtext|paxml",
        stack="maxtext",
        zero=3,
        sequence_parallel=True,
        least_recompute=True,
    ),
    # llm-foundry: FSDP without compilation.
    Convention(
        name="composer",
        pattern=r"composer|llm-foundry",
        stack="composer",
        zero=3,
        sequence_parallel=False,
    ),
    # torch FSDP and XLA's equivalent.
    Convention(
        name="fsdp",
        pattern=r"fsdp|torchtitan|pytorch",
        stack="fsdp",
        zero=3,
        sequence_parallel=True,
        # torchtitan: fsdp_reshard_after_forward "default" and pipeline_parallel_microbatches.
        pipeline_zero=1,
        stages_of_micro_batches=True,
        eager_stack="fsdp-eager",
        selective_is_every_second_layer=True,
    ),
)


def convention_of(framework: str, source: str | None, device: str) -> Convention | None:
    """The convention of a framework, by name and, for Megatron-LM, by era.

    Before flash attention (Volta, Ampere), Megatron-LM ran fp16 with unfused attention, dropout
    and every gradient on every rank.
    """
    text = f"{framework} {source or ''}".lower()
    found = next((one for one in CONVENTIONS if re.search(one.pattern, text)), None)
    if found is not None and found.name == "megatron-lm" and re.match("v100|a100", device):
        return replace(
            found,
            name="megatron-lm-classic",
            stack="megatron-2021",
            zero=0,
            sequence_parallel=False,
            attention="eager",
            half="fp16",
            dropout=True,
        )
    return found
