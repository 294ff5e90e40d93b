"""Time the simulator: the engine, one large plan, a finalist of search, a timeline.

Run as ``python tests/bench/simulator.py [--all-ranks]``; without numba the compiled rows are left
out. The plan is Llama-3-70B on 1,024 H100 (tp 8, pp 8, dp 16, 32 micro-batches). CPU seconds of
one thread, the best of ``ROUNDS`` but for ``--all-ranks``, which runs once (2.2 GiB).
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

from estimator import Estimate, Plan, Plans, Workload
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.compose import composition
from estimator.simulate import simulate, simulated_estimates
from estimator.simulate.engine import run
from estimator.simulate.simulation import Simulation
from estimator.simulate.timeline import trace_json

Value = TypeVar("Value")
ROUNDS = 5
EVENTS = 1_000_000
MODEL, STACK = load_model("llama-3-70b"), load_stack("megatron")
CLUSTER = load_cluster("h100-sxm:1024")
WORKLOAD = Workload(global_batch=16 * 32, sequence=8192)
PLAN = "tp=8,pp=8,dp=16,mbs=1,sp=true,zero=1"
PLANS = (PLAN, f"{PLAN},vpp=2", f"{PLAN},vpp=5")


def timed(work: Callable[[], Value], rounds: int = ROUNDS) -> tuple[float, Value]:
    """CPU seconds of the best round, and what it gave."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        value = work()
        best = min(best, time.process_time() - start)
    return best, value


def simulation(detail: str, text: str = PLAN, *, all_ranks: bool = False) -> Simulation:
    """One run of the plan."""
    plan = Plan.parse(text, world=CLUSTER.gpus)
    return simulate(MODEL, WORKLOAD, CLUSTER, plan, stack=STACK, detail=detail, all_ranks=all_ranks)


def finalist(text: str) -> Estimate:
    """What a search asks of one of its best."""
    plans = Plans.of([Plan.parse(text, world=CLUSTER.gpus)])
    composed = composition(MODEL, WORKLOAD, CLUSTER, plans, stack=STACK)
    return simulated_estimates(composed)[0]


def main() -> None:
    """Print one line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--all-ranks", action="store_true", help="every rank of the 1,024, once")
    arguments = parser.parse_args()
    for text in PLANS:
        seconds, _ = timed(lambda text=text: finalist(text))  # type: ignore[misc]
        print(f"finalist {text}: {1e3 * seconds:.1f} ms")
        seconds, value = timed(lambda text=text: simulation("stages", text))  # type: ignore[misc]
        print(f"the same with all of its tasks: {1e3 * seconds:.1f} ms, {len(value.tasks):,} tasks")
    seconds, value = timed(lambda: simulation("ops"))
    print(f"every operator, one rank a stage: {seconds:.2f} s, {len(value.tasks):,} tasks")
    for name, compiled in (("Python", False), ("numba", True)):
        try:
            run(value.tasks, compiled=compiled)  # compiles
        except (ImportError, TypeError):
            print(f"engine in {name}: not installed")
            continue
        seconds, _ = timed(lambda compiled=compiled: run(value.tasks, compiled=compiled))  # type: ignore[misc]
        print(f"engine in {name}: {len(value.tasks) / seconds / 1e6:.2f} M tasks/s")
    for text in PLANS if find_spec("numba") else ():
        seconds, _ = timed(lambda text=text: finalist(text))  # type: ignore[misc]
        print(f"finalist {text} with numba loaded: {1e3 * seconds:.1f} ms")
    seconds, written = timed(lambda: trace_json(value), 1)
    events = written.count(b'"ph":')
    million = EVENTS / events * seconds
    print(f"timeline: {events:,} events in {seconds:.2f} s, {million:.2f} s a million")
    if arguments.all_ranks:
        seconds, value = timed(lambda: simulation("ops", all_ranks=True), 1)
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        tasks = f"{len(value.tasks):,} tasks"
        print(f"every operator, every rank: {seconds:.1f} s, {tasks}, {gib:.1f} GiB")


if __name__ == "__main__":
    main()
