"""Pipeline schedules by brute force: every task of every stage, started as early as it may."""

from __future__ import annotations

Task = tuple[str, int, int]  # "F" or "B", micro-batch, chunk


def order_gpipe(p: int, m: int, s: int) -> list[Task]:
    return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in range(m)]


def order_1f1b(p: int, m: int, s: int) -> list[Task]:
    warm = min(p - s, m)
    tasks: list[Task] = [("F", i, 0) for i in range(warm)]
    for i in range(m):
        tasks.append(("B", i, 0))
        if warm + i < m:
            tasks.append(("F", warm + i, 0))
    return tasks


def order_interleaved(p: int, m: int, v: int, s: int, group: int) -> list[Task]:
    """Groups of micro-batches go through chunk after chunk (the last group may be short)."""
    forward: list[tuple[int, int]] = []
    backward: list[tuple[int, int]] = []
    for start in range(0, m, group):
        members = range(start, min(start + group, m))
        forward += [(i, c) for c in range(v) for i in members]
        backward += [(i, c) for c in reversed(range(v)) for i in members]
    warm = min(2 * (p - s - 1) + (v - 1) * group + 1, m * v)
    tasks: list[Task] = [("F", i, c) for i, c in forward[:warm]]
    for k, (i, c) in enumerate(backward):
        tasks.append(("B", i, c))
        if warm + k < m * v:
            j, d = forward[warm + k]
            tasks.append(("F", j, d))
    return tasks


def makespan(orders: list[list[Task]], f: list[float], b: list[float], v: int = 1) -> float:
    """Longest path: a stage runs its list in order, a task waits for the one it reads."""
    p = len(orders)
    done: dict[tuple[int, Task], float] = {}
    clock = [0.0] * p
    position = [0] * p
    while any(position[s] < len(orders[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while position[s] < len(orders[s]):
                kind, i, c = task = orders[s][position[s]]
                need = _needs(kind, i, c, s, p, v)
                if need is not None and need not in done:
                    break
                start = max(clock[s], done[need] if need is not None else 0.0)
                clock[s] = start + (f[s] if kind == "F" else b[s]) / v
                done[s, task] = clock[s]
                position[s] += 1
                moved = True
        if not moved:
            raise AssertionError("schedule deadlocks")
    return max(clock)


def _needs(kind: str, i: int, c: int, s: int, p: int, v: int) -> tuple[int, Task] | None:
    if kind == "F":
        if s:
            return s - 1, ("F", i, c)
        return (p - 1, ("F", i, c - 1)) if c else None
    if s < p - 1:
        return s + 1, ("B", i, c)
    return (0, ("B", i, c + 1)) if c < v - 1 else (s, ("F", i, c))
