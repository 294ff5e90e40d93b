"""What a file of fitted collectives may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.catalog.schema import UNSAID, Bytes, Count, Entry, Rate, Seconds, Source
from estimator.cost.fitted import FittedCollective, FittedKind
from estimator.cost.sigmoid import Interval, Line, Sigmoid

Positive = Annotated[Bytes, Field(gt=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Pair = Annotated[list[Finite], Field(min_length=2, max_length=2)]


class ParametersEntry(Entry):
    """The eight parameters of a sigmoid, or the two of a line."""

    latency: Seconds
    bandwidth: Rate
    latency_bytes: Positive | None = None
    saturation_bytes: Positive | None = None
    height: Finite | None = None
    midpoint: Finite | None = None
    steepness: Finite | None = None
    floor: Finite | None = None

    def noun(self) -> Sigmoid | Line:
        """The curve; ``ValueError`` for a sigmoid that lacks a parameter."""
        given = self.model_dump()
        absent = [name for name, value in given.items() if value is None]
        if not absent:
            return Sigmoid(**given)
        if len(absent) < 6:
            raise ValueError(
                f"parameters lack {', '.join(absent)}; give all eight, or a line's two"
            )
        return Line(latency=self.latency, bandwidth=self.bandwidth)


class IntervalsEntry(Entry):
    """Both ends of each parameter's 90 % interval; ``null`` where nothing determines it."""

    latency: Annotated[list[Seconds], Field(min_length=2, max_length=2)] | None = None
    latency_bytes: Annotated[list[Bytes], Field(min_length=2, max_length=2)] | None = None
    saturation_bytes: Annotated[list[Bytes], Field(min_length=2, max_length=2)] | None = None
    bandwidth: Annotated[list[Rate], Field(min_length=2, max_length=2)] | None = None
    height: Pair | None = None
    midpoint: Pair | None = None
    steepness: Pair | None = None
    floor: Pair | None = None


class CollectiveEntry(Entry):
    """One collective over one group."""

    collective: FittedKind
    group: Annotated[Count, Field(ge=2)]
    inside: Count
    peak: Rate
    smallest: Positive
    largest: Positive
    parameters: ParametersEntry
    intervals: IntervalsEntry | None = None
    source: Source | None = None

    def noun(self, source: str) -> FittedCollective:
        """The fitted collective; ``ValueError`` where its curve breaks a law."""
        intervals: dict[str, Interval] = {}
        if self.intervals is not None:
            for name, ends in self.intervals.model_dump().items():
                intervals[name] = None if ends is None else (ends[0], ends[1])
        return FittedCollective(
            kind=self.collective,
            group=self.group,
            inside=self.inside,
            parameters=self.parameters.noun(),
            intervals=intervals,
            peak=self.peak,
            low_bytes=self.smallest,
            high_bytes=self.largest,
            source=self.source or source,
        )


class CollectivesEntry(Entry):
    """The file."""

    source: Source = UNSAID
    collectives: Annotated[list[CollectiveEntry], Field(min_length=1, max_length=10_000)]
