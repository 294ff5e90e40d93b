"""Fitted collectives in a cluster: which a file carries, and what they change in a price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pytest import approx

from estimator import Cluster, Plan, Workload, estimate
from estimator.catalog import collectives_yaml, load_cluster, load_model, load_stack
from estimator.cost.collectives import collective_seconds, linear_seconds
from estimator.cost.fitted import FittedCollective, FittedKind
from estimator.cost.sigmoid import Line
from estimator.lower.slots import Collective


def measured(kind: FittedKind, group: int) -> FittedCollective:
    """A line of 1 ms and 1 GB/s over one domain, far from what any link here does."""
    return FittedCollective(
        kind=kind,
        group=group,
        inside=group,
        parameters=Line(latency=1e-3, bandwidth=1e9),
        peak=1e9,
        low_bytes=1e3,
        high_bytes=1e9,
        source="made up",
    )


def fitted_cluster(*kinds: FittedKind) -> Cluster:
    """Two nodes of eight whose groups of 2 and 8 were measured."""
    table = tuple(measured(kind, group) for kind in kinds for group in (2, 8))
    return replace(load_cluster("h100-sxm:16"), collectives=table)


def priced(kind: Collective, size: float, group: int, inside: int, cluster: Cluster) -> float:
    """Seconds of one collective."""
    ranks, near = np.array([float(group)]), np.array([float(inside)])
    return float(collective_seconds(kind, np.array([size]), ranks, near, cluster)[0])


def linear(kind: Collective, size: float, group: int, inside: int, cluster: Cluster) -> float:
    """Likewise by the links' nominal numbers."""
    ranks, near = np.array([float(group)]), np.array([float(inside)])
    return float(linear_seconds(kind, np.array([size]), ranks, near, cluster)[0])


def test_a_measured_group_is_priced_by_its_fit() -> None:
    cluster = fitted_cluster("all_reduce", "all_to_all")
    # Bus traffic of an all-reduce over 8: 2 x 7/8 of the buffer, at 1 GB/s after 1 ms.
    assert priced("all_reduce", 1e6, 8, 8, cluster) == approx(1e-3 + 2 * 7 / 8 * 1e-3)
    # An all-to-all row counts what leaves a rank: 7/8 of the buffer that was measured.
    assert priced("all_to_all", 7e6, 8, 8, cluster) == approx(1e-3 + 7e-3)


def test_an_unmeasured_half_of_a_ring_is_half_an_all_reduce() -> None:
    cluster = fitted_cluster("all_reduce")
    for kind in ("all_gather", "reduce_scatter"):
        assert priced(kind, 1e6, 8, 8, cluster) == approx(0.5e-3 + 7 / 8 * 1e-3)
    both = fitted_cluster("all_reduce", "all_gather")
    assert priced("all_gather", 1e6, 8, 8, both) == approx(1e-3 + 7 / 8 * 1e-3)


@pytest.mark.parametrize(
    ("kind", "size", "group", "inside"),
    [
        ("all_reduce", 1e6, 16, 8),  # no group over nodes was measured
        ("all_reduce", 10.0, 8, 8),  # smaller than any measured size
        ("all_to_all", 1e6, 8, 8),  # of another kind
    ],
)
def test_what_no_fit_covers_is_linear(
    kind: Collective, size: float, group: int, inside: int
) -> None:
    cluster = fitted_cluster("all_reduce")
    assert priced(kind, size, group, inside, cluster) == linear(kind, size, group, inside, cluster)


def test_a_fit_changes_the_price_of_a_whole_step() -> None:
    cluster, nominal = fitted_cluster("all_reduce"), load_cluster("h100-sxm:16")
    nominal = replace(nominal, collectives=())
    times = [
        estimate(
            load_model("llama-3-8b"),
            Workload(global_batch=8, sequence=4096),
            c,
            Plan(tp=8, dp=2),
            stack=load_stack("megatron"),
        ).step_seconds
        for c in (cluster, nominal)
    ]
    assert times[0] > 1.5 * times[1]


def test_catalogue_nodes_carry_their_measured_collectives() -> None:
    kinds = {f.kind for f in load_cluster("h100-sxm:64").collectives}
    assert kinds == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert load_cluster("jean-zay-v100").collectives == ()  # nodes of four, by another mesh
    pairs = [f for f in load_cluster("a3-mega").collectives if f.domains == 2]
    assert [(f.kind, f.group, f.inside) for f in pairs] == [("all_gather", 16, 8)]


def cluster_file(folder: Path, *lines: str) -> str:
    """A file of two H100 nodes, with further lines, beside a file of fitted collectives."""
    fits = collectives_yaml([measured("all_reduce", 8)], "made up")
    (folder / "fits.yaml").write_text(fits)
    path = folder / "cluster.yaml"
    path.write_text("\n".join(("name: mine", "device: h100-sxm", "nodes: 2", *lines)))
    return str(path)


def test_a_cluster_file_names_its_own_fits(tmp_path: Path) -> None:
    (fitted,) = load_cluster(cluster_file(tmp_path, "collectives: fits.yaml")).collectives
    assert (fitted.kind, fitted.group, fitted.source) == ("all_reduce", 8, "made up")


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ((), 12),
        (("collectives: a100-sxm",), 12),
        (("collectives: [fits.yaml, a100-sxm]",), 13),
        (("collectives: null",), 0),
        (("scale_up: pcie-gen5",), 0),
        (("gpus_per_node: 4",), 0),
    ],
)
def test_the_usual_fits_need_the_usual_node(
    tmp_path: Path, lines: tuple[str, ...], count: int
) -> None:
    assert len(load_cluster(cluster_file(tmp_path, *lines)).collectives) == count


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("collectives: h100", "unknown collective 'h100'; nearest: h100-sxm"),
        ("collectives: ../fits.yaml", "leads out of"),
        ("collectives: absent.yaml", "absent.yaml"),
        ("collectives: cluster.yaml", "cluster.yaml"),
        ("collectives: [fits.yaml, 3]", "collectives"),
    ],
)
def test_faults_of_a_reference_are_one_line(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_cluster(cluster_file(tmp_path, line))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
