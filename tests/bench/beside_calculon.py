"""Calculon (github.com/calculon-ai/calculon, Apache-2.0), run from a checkout on plans of ours."""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from estimator import Plan, Workload

NODE = 8
"""Devices of an A100 node: the size of Calculon's first network tier."""
SYSTEM = "systems/a100_80g.json"
RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}

Words = dict[str, Any]
"""A plan as Calculon's execution file says it."""
Run = Callable[[int, Words], dict[str, Any]]
"""Statistics of a plan of the model with this index."""


def execution(plan: Plan, workload: Workload) -> Words:
    """A plan in Calculon's words. An axis is on the first tier where one node holds its group."""
    dp_stride = plan.tp * (1 if plan.order == "tp-cp-ep-dp-pp" else plan.pp)
    pp_stride = plan.tp * (1 if plan.order == "tp-cp-ep-pp-dp" else plan.dp)
    return {
        "num_procs": plan.world,
        "tensor_par": plan.tp,
        "pipeline_par": plan.pp,
        "data_par": plan.dp,
        "tensor_par_net": int(plan.tp > NODE),
        "pipeline_par_net": int(plan.pp > 1 and pp_stride * plan.pp > NODE),
        "data_par_net": int(plan.dp > 1 and dp_stride * plan.dp > NODE),
        "batch_size": workload.global_batch,
        "microbatch_size": plan.micro_batch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[plan.recompute],
        "pipeline_interleaving": plan.interleave,
        "optimizer_sharding": plan.zero == 1,
        "tensor_par_comm_type": "rs_ag" if plan.sequence_parallel else "ar",
        "tensor_par_overlap": "ring" if plan.overlap_tp else "none",
        # As in Megatron-LM, the sequence is gathered again for the weight gradient.
        "seq_par_ag_redo": plan.sequence_parallel and plan.recompute != "full",
        "data_par_overlap": bool(plan.overlap_grad),
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


class _Silent:
    """A logger that drops everything."""

    def debug(self, *message: object) -> None:
        """Drop a message."""


class _WithoutLogCalls(ast.NodeTransformer):
    """Source without its ``log.debug(...)`` statements: their arguments alone are costly."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Replace one log statement by nothing."""
        call = node.value
        logs = isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "debug"
        return ast.copy_location(ast.Pass(), node) if logs else node


class Calculon:
    """A checkout with the models it is asked about; nothing in it is changed."""

    def __init__(self, folder: Path, models: Sequence[str]) -> None:
        """Load ``models``, files of the checkout such as ``models/megatron-22B.json``."""
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder))
        importlib.import_module("calculon.llm")
        # The package hides its module of the same name behind a star import.
        self.module: Any = sys.modules["calculon.llm.llm"]
        read = importlib.import_module("calculon.io").read_json_file
        self.system = self.module.System(read(str(folder / SYSTEM)))
        self.configs = [read(str(folder / model)) for model in models]
        file = str(self.module.__file__)
        tree = ast.fix_missing_locations(
            _WithoutLogCalls().visit(ast.parse(Path(file).read_text()))
        )
        names: dict[str, Any] = {"__name__": self.module.__name__, "__package__": "calculon.llm"}
        exec(compile(tree, file, "exec"), names)
        self.bare = names["Llm"]

    def settings(self) -> dict[str, Run]:
        """Its search's way to evaluate a plan, by setting, slowest first; all answer the same.

        ``logging off`` gives it a logger that drops messages and formats no number for them;
        ``log calls removed`` also saves computing what the messages would have said.
        """
        silent = self._run(self.module.Llm, _Silent)
        human_format = self.module.human_format

        def quiet(model: int, words: Words) -> dict[str, Any]:
            self.module.human_format = lambda *_: ""
            try:
                return silent(model, words)
            finally:
                self.module.human_format = human_format

        return {
            "as shipped": self._run(self.module.Llm, partial(logging.Logger, "sub")),
            "logging off": quiet,
            "log calls removed": self.fastest(),
        }

    def fastest(self) -> Run:
        """The setting without log calls."""
        return self._run(self.bare, _Silent)

    def answer(self, run: Run, model: int, words: Words) -> tuple[float, float] | None:
        """Seconds of a step and peak bytes; ``None`` where Calculon says that it cannot run."""
        try:
            stats = run(model, words)
        except (self.module.Llm.Error, self.bare.Error):
            return None
        return stats["total_time"], stats["proc_mem_tier1_cap_req"]

    def _run(self, llm: Any, logger: Callable[[], Any]) -> Run:
        applications = [llm.Application(config) for config in self.configs]

        def one(model: int, words: Words) -> dict[str, Any]:
            evaluated = llm(applications[model], logger())
            evaluated.compile(self.system, llm.Execution.from_json(words))
            evaluated.run(self.system)
            stats: dict[str, Any] = evaluated.get_stats_json(False)
            return stats

        return one
