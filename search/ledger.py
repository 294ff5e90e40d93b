"""One line per scoring of test rows, only from a commit: what was claimed, and of which code."""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import mean

from search.accuracy import Validation

HEADER = (
    "| date | commit | rows | mapped | configurations | median % | mean % | p90 % | bias % | "
    "concordance | regret % | covered |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
)


def commit() -> tuple[str, str]:
    """Date and hash of the commit that this code is, or ``ValueError`` if it is none exactly."""
    folder = Path(__file__).parents[1]

    def git(*words: str) -> str:
        answer = subprocess.run(
            ("git", "-C", str(folder), *words), capture_output=True, text=True, check=False
        )
        if answer.returncode:
            raise ValueError(
                "--log needs the code to be a git checkout; run from one, or leave --log out"
            )
        return answer.stdout.strip()

    dirty = [
        line for line in git("status", "--porcelain").splitlines() if "ACCURACY.md" not in line
    ]
    if dirty:
        raise ValueError(
            f"--log needs a clean commit, but {dirty[0].split()[-1]} has changes; commit them first"
        )
    date, name = git("log", "-1", "--format=%cs %h").split()
    return date, name


def line(report: Validation, date: str, name: str, cost: str = "analytic") -> str:
    """The row of the table for one scoring; a cost model other than the default is named."""
    every = report.overall
    ranked = [choice.concordance for choice in report.choices if choice.concordance is not None]
    regrets = [choice.regret for choice in report.choices]
    share = every.mapped / every.rows if every.rows else 0.0
    cells = [
        date,
        name if cost == "analytic" else f"{name}, {cost}",
        str(every.rows),
        f"{100 * share:.1f} %",
        str(every.configurations),
        *(_percent(value) for value in (every.median, every.mape, every.p90, every.bias)),
        f"{mean(ranked):.2f}" if ranked else "-",
        _percent(mean(regrets) if regrets else None),
        _percent(every.coverage) + " %",
    ]
    return "| " + " | ".join(cells) + " |\n"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def append(report: Validation, target: str, cost: str = "analytic") -> str:
    """Append a scoring to a file (made with its header if new) and return the line.

    Raises ``ValueError`` where the code is not exactly a commit or the file cannot be written.
    """
    date, name = commit()
    path = Path(target)
    text = line(report, date, name, cost)
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if "| date | commit |" not in before:
            before = (before.rstrip() + "\n\n" if before.strip() else "") + HEADER
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(before.rstrip("\n") + "\n" + text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write {target}: {error.strerror}; name another file") from None
    return text
