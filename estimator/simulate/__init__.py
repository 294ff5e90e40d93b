"""One plan on its critical path: tasks of ranks and streams, and what waits for what."""

from estimator.simulate.engine import Timing, critical_path, idle_seconds, naive_seconds, run
from estimator.simulate.graph import Tasks, build_tasks
from estimator.simulate.simulation import Simulation, simulate, simulated_estimates

__all__ = [
    "Simulation",
    "Tasks",
    "Timing",
    "build_tasks",
    "critical_path",
    "idle_seconds",
    "naive_seconds",
    "run",
    "simulate",
    "simulated_estimates",
]
