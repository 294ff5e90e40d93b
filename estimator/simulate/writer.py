"""A pass template while its tasks are added."""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.simulate.graph import KINDS
from estimator.simulate.passes import Template
from estimator.simulate.rows import (
    ALONE,
    COMPUTE,
    CP,
    EP,
    HOST,
    LAYER_GROUP,
    REPLICAS,
    TP,
    WEIGHTS,
)

STREAMS = {"compute": COMPUTE, "tp": TP, "cp": CP, "ep": EP, "dp": WEIGHTS}
SCOPES = {"compute": ALONE, "tp": LAYER_GROUP, "cp": LAYER_GROUP, "ep": REPLICAS, "dp": REPLICAS}


@dataclass(slots=True, kw_only=True)
class Writer:
    """A template while its tasks are added; ``chain`` is what the next one waits for."""

    template: Template = field(default_factory=Template)
    chain: list[int] = field(default_factory=list)
    layer_starts: list[int] = field(default_factory=list)
    kept_ep: float = 1.0
    """Share of exchanges of experts that the chain waits for."""

    def add(
        self,
        seconds: float,
        stream: str,
        name: int,
        after: list[int],
        *,
        kind: str | None = None,
        resource: int | None = None,
    ) -> int:
        """A task behind others of the template."""
        t = self.template
        number = len(t.seconds)
        t.seconds.append(seconds)
        t.resource.append(STREAMS[stream] if resource is None else resource)
        t.kind.append(KINDS.index(kind or stream))
        t.mix.append(KINDS.index(kind or stream))
        t.name.append(name)
        t.scope.append(SCOPES.get(stream, ALONE))
        t.sources += after
        t.targets += [number] * len(after)
        return number

    def edge(self, source: int, target: int) -> None:
        """The target waits for the source."""
        self.template.sources.append(source)
        self.template.targets.append(target)

    def main(self, seconds: float, stream: str, name: int) -> int:
        """A task that what follows reads."""
        number = self.add(seconds, stream, name, self.chain)
        self.chain = [number]
        return number

    def finished(self, forward: bool, buckets: int) -> Template:
        """The template with entry, exit and marks: buckets are due at boundaries of layers."""
        template = self.template
        chained = set(template.targets)
        computes = [i for i, r in enumerate(template.resource) if r == COMPUTE]
        entry = next(
            i
            for i, resource in enumerate(template.resource)
            if resource not in (HOST, WEIGHTS, CP) and (i not in chained or i == computes[0])
        )
        template.first = entry
        template.last = self.chain[-1]
        count = len(self.layer_starts)
        for bucket in range(buckets):
            if forward:
                start = self.layer_starts[bucket * count // buckets]
                template.marks.append(next(i for i in computes if i >= start))
            else:
                end = -(-(bucket + 1) * count // buckets) - 1
                until = self.layer_starts[end + 1] if end + 1 < count else len(template.seconds)
                template.marks.append(max(i for i in computes if i < until))
        return template
