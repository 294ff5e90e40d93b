"""The inside of a node, from the text of ``nvidia-smi topo -m``: its NVLink islands and NICs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile

from estimator.cluster import Architecture

MOST_GPUS = 16
"""Of one node; the largest that NVIDIA sells (DGX-2) has as many."""
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe paths from near to far: one switch, several, the host bridge, the socket, all sockets."""
WHOLE = "save the whole output of nvidia-smi topo -m"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NVLINK = re.compile(r"NV([1-9][0-9]?)")
_NIC_LEGEND = re.compile(r"\s*(NIC[0-9]+):\s*([\x21-\x7e]+)")


@dataclass(frozen=True, slots=True)
class NvLink:
    """One generation: the catalogue's link, bytes/s per link and direction, links per GPU."""

    name: str
    bandwidth: float
    most: int


NVLINK: dict[Architecture, NvLink] = {
    "pascal": NvLink("nvlink1", 20e9, 4),
    "volta": NvLink("nvlink2", 25e9, 6),
    "ampere": NvLink("nvlink3", 25e9, 12),
    "hopper": NvLink("nvlink4", 25e9, 18),
    "blackwell": NvLink("nvlink5", 50e9, 18),
}
"""From NVIDIA's data sheets of P100, V100, A100, H100 and B200, halved to one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What joins the GPUs of one node to each other and to its NICs."""

    nvlinks: tuple[tuple[int, ...], ...]
    """NVLinks between each two GPUs, shape (GPU, GPU); zero where their path is PCIe."""
    nics: tuple[str, ...]
    """Names, as the NIC legend has them."""
    paths: tuple[tuple[str, ...], ...]
    """One of ``PATHS`` from each GPU to each NIC, shape (GPU, NIC)."""

    @property
    def gpus(self) -> int:
        """GPUs of the node."""
        return len(self.nvlinks)

    def near(self, gpu: int) -> tuple[str, ...]:
        """The NICs nearest to a GPU: all those at its shortest path."""
        ranks = [PATHS.index(path) for path in self.paths[gpu]]
        return tuple(nic for nic, rank in zip(self.nics, ranks, strict=True) if rank == min(ranks))

    @property
    def network(self) -> tuple[str, ...]:
        """The NICs that are nearest to some GPU; the others are for storage and management."""
        used = {nic for gpu in range(self.gpus) for nic in self.near(gpu)}
        return tuple(nic for nic in self.nics if nic in used)

    def islands(self) -> tuple[tuple[int, ...], ...]:
        """The largest equal groups of GPUs that are fully joined by NVLink; single ones, if none.

        Raises:
            ValueError: where some GPUs have NVLinks, but no equal groups hold them all.
        """
        everyone = tuple(range(self.gpus))
        sizes = [size for size in range(self.gpus, 1, -1) if self.gpus % size == 0]
        for size in sizes:
            if found := self._groups(everyone, size):
                return found
        linked = [f"GPU{gpu}" for gpu, row in enumerate(self.nvlinks) if any(row)]
        if linked:
            raise ValueError(
                f"{len(linked)} of {self.gpus} GPUs have NVLinks ({', '.join(linked)}), but no "
                "equal groups hold every GPU; write scale_up and scale_up_domain yourself"
            )
        return tuple((gpu,) for gpu in everyone)

    def _groups(self, free: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
        """``free`` in groups of ``size`` that NVLink joins fully; empty where there are none."""
        first, rest = free[0], free[1:]
        joined = [gpu for gpu in rest if self.nvlinks[first][gpu]]
        for others in combinations(joined, size - 1):
            if not all(self.nvlinks[a][b] for a, b in combinations(others, 2)):
                continue
            group = (first, *others)
            left = tuple(gpu for gpu in free if gpu not in group)
            if not left:
                return (group,)
            if below := self._groups(left, size):
                return (group, *below)
        return ()

    def links(self, architecture: Architecture) -> int:
        """NVLinks that each GPU has into its island: what the GPU with the fewest has.

        Wires to each peer add up; behind a switch every peer shows all links of the GPU.

        Raises:
            ValueError: where the architecture has no NVLink, or fewer links than are shown.
        """
        if architecture not in NVLINK:
            raise ValueError(
                f"GPUs are joined by NVLink, which no {architecture} device has; check the device"
            )
        most = NVLINK[architecture].most
        found = []
        for island in self.islands():
            for gpu in island:
                counts = [self.nvlinks[gpu][peer] for peer in island if peer != gpu]
                total = counts[0] if sum(counts) > most and len({*counts}) == 1 else sum(counts)
                if total > most:
                    raise ValueError(
                        f"GPU{gpu} has {total} NVLinks, more than the {most} of a GPU of "
                        f"architecture {architecture}; check the device"
                    )
                found.append(total)
        return min(found)


def parse_topology(text: str) -> Topology:
    """Read what ``nvidia-smi topo -m`` printed; colours, prompts and affinities are passed over.

    Raises:
        ValueError: one line, where there is no matrix, a row is missing or cut, a word is unknown,
            or the two halves of the matrix differ.
    """
    plain = _ANSI.sub("", text).splitlines()
    lines = [line.split() for line in plain]
    names, start = _header(lines)
    gpus = [name for name in names if re.fullmatch(r"GPU[0-9]+", name)]
    if names[: len(gpus)] != [f"GPU{i}" for i in range(len(gpus))] or len({*names}) < len(names):
        raise ValueError(f"columns must be GPU0, GPU1, ..., then NICs, each once; {WHOLE}")
    if len(gpus) > MOST_GPUS:
        raise ValueError(
            f"{len(gpus)} GPUs are more than the {MOST_GPUS} of a node; leave topology out and "
            "write gpus_per_node"
        )
    rows = [_row(name, names, lines[start:]) for name in gpus]
    for (i, a), (j, b) in combinations(enumerate(gpus), 2):
        if rows[i][j] != rows[j][i]:
            raise ValueError(f"{a} to {b} is {rows[i][j]}, but back it is {rows[j][i]}; {WHOLE}")
    legend = {m[1]: m[2] for line in plain if (m := _NIC_LEGEND.match(line))}
    return Topology(
        nvlinks=tuple(tuple(_nvlinks(cell) for cell in row[: len(gpus)]) for row in rows),
        nics=tuple(legend.get(name, name) for name in names[len(gpus) :]),
        paths=tuple(row[len(gpus) :] for row in rows),
    )


def _header(lines: Sequence[Sequence[str]]) -> tuple[list[str], int]:
    """The names of the columns, and the line below them."""
    for number, words in enumerate(lines):
        if words[:1] == ["GPU0"] and words[1:2] != ["X"]:
            # The affinities that follow have names of two words: CPU, NUMA and GPU NUMA.
            names = takewhile(lambda word: word not in ("CPU", "NUMA", "GPU"), words)
            return list(names), number + 1
    raise ValueError(f"holds no matrix of GPUs; {WHOLE}")


def _row(name: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The cells of one GPU, checked."""
    found = [words[1:] for words in lines if words[:1] == [name]]
    if len(found) != 1:
        raise ValueError(f"row of {name} is there {len(found)} times, not once; {WHOLE}")
    cells = tuple(found[0][: len(names)])
    if len(cells) < len(names):
        raise ValueError(f"row of {name} has {len(cells)} cells for {len(names)} columns; {WHOLE}")
    for other, cell in zip(names, cells, strict=True):
        if other == name:
            known = cell == "X"
        else:
            known = cell in PATHS or (other.startswith("GPU") and bool(_NVLINK.fullmatch(cell)))
        if not known:
            raise ValueError(
                f"{name} to {other} is {cell[:20]!r}, which is none of X (itself), NV#, "
                f"{', '.join(PATHS)}; {WHOLE}"
            )
    return cells


def _nvlinks(cell: str) -> int:
    match = _NVLINK.fullmatch(cell)
    return int(match[1]) if match else 0
