"""What one plan costs: seconds and bytes, part by part, without a GPU."""

from estimator.cluster import Cluster, Device, Link
from estimator.compose import estimate, peak_memory
from estimator.estimate import Estimate, Estimates
from estimator.model import Transformer
from estimator.plan import Plan, Plans
from estimator.stack import Stack
from estimator.workload import Workload

__all__ = [
    "Cluster",
    "Device",
    "Estimate",
    "Estimates",
    "Link",
    "Plan",
    "Plans",
    "Stack",
    "Transformer",
    "Workload",
    "estimate",
    "peak_memory",
]
