"""AMPeD beside memory of zero: its times need nothing of the lowering."""

from __future__ import annotations

import numpy as np

from estimator import Cluster, Estimates, Plans, Transformer, Workload
from estimator.amped import Amped, estimate_amped
from estimator.catalog import load_stack
from estimator.estimate import MEMORY_PARTS, StageCosts

STACK = load_stack("megatron")


def amped(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plans: Plans,
    parameters: Amped | None = None,
) -> Estimates:
    nothing = np.zeros(len(plans))
    count = np.stack([plans.pp > 0, 0 * plans.pp, 0 * plans.pp, plans.pp > 1], axis=1)
    stages = np.zeros((len(plans), 4))
    return estimate_amped(
        model,
        workload,
        cluster,
        plans,
        stack=STACK,
        memory=dict.fromkeys(MEMORY_PARTS, nothing),
        stages=StageCosts(
            count=count.astype(np.int64),
            layers=count.astype(np.int64),
            seconds=stages,
            allocated_bytes=stages,
        ),
        model_flops=1e18,
        parameters=parameters,
    )
