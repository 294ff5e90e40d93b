"""Topologies: what a node's matrix says, the clusters made of it, and what is refused."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.catalog import load_cluster
from estimator.topology import MOST_GPUS, NVLINK, PATHS, Topology, parse_topology

SAMPLES = Path(__file__).parents[1] / "data" / "topology"
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
QUADS = ((0, 1, 2, 3), (4, 5, 6, 7))
EIGHT = (tuple(range(8)),)
SINGLE = tuple((gpu,) for gpu in range(8))


def sample(name):
    return (SAMPLES / f"{name}.txt").read_text("utf-8")


def cluster_file(folder, topology, fields):
    """A cluster file beside its topology; ``topology`` is the name of a sample or a text."""
    text = topology if "\n" in topology or not topology else sample(topology)
    (folder / "topo.txt").write_text(text, encoding="utf-8")
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\ntopology: topo.txt\n{fields}", encoding="utf-8")
    return str(path)


# What a matrix says.


@pytest.mark.parametrize(
    ("name", "islands", "links", "nics", "network", "near"),
    [
        ("dgx-a100", EIGHT, 12, 10, 8, ("mlx5_0", "mlx5_1")),
        ("dgx-h100", EIGHT, 18, 10, 8, ("mlx5_0",)),
        ("dgx-1v", QUADS, 4, 4, 4, ("mlx5_0",)),
        ("pcie", SINGLE, 0, 2, 2, ("mlx5_0",)),
        ("bridged", PAIRS, 12, 2, 2, ("mlx5_0",)),
    ],
)
def test_samples(name, islands, links, nics, network, near):
    found = parse_topology(sample(name))
    assert found.gpus == 8
    assert found.islands() == islands
    assert (len(found.nics), len(found.network), found.near(0)) == (nics, network, near)
    architecture = {"dgx-h100": "hopper", "dgx-1v": "volta"}.get(name, "ampere")
    assert found.links(architecture) == links


def test_hybrid_cube_mesh_has_six_links_a_gpu():
    found = parse_topology(sample("dgx-1v"))
    assert [sum(row) for row in found.nvlinks] == [6] * 8
    assert found.nvlinks[0] == (0, 1, 1, 2, 2, 0, 0, 0)


def test_last_gpu_is_near_the_last_network_card():
    assert parse_topology(sample("dgx-h100")).near(7) == ("mlx5_9",)
    assert parse_topology(sample("dgx-a100")).near(7) == ("mlx5_6", "mlx5_7")


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "pcie", "bridged"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\t", "\x1b[0m\t\x1b[1;4m"),
        lambda text: text.replace("\t", "   "),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "$ nvidia-smi topo -m\n\n" + text + "\n$ exit\n",
        lambda text: text[: text.index("Legend")] + text[text.index("NIC Legend") :],
    ],
    ids=["coloured", "spaces", "windows", "prompts", "no-legend"],
)
def test_what_surrounds_the_matrix_does_not_matter(name, change):
    assert parse_topology(change(sample(name))) == parse_topology(sample(name))


def test_a_single_gpu():
    found = parse_topology("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\tN/A\n")
    assert found == Topology(nvlinks=((0,),), nics=(), paths=((),))
    assert found.islands() == ((0,),)
    assert found.network == found.near(0) == ()


def matrix(nvlinks, nics=()):
    """The text of a topology; the inverse of :func:`parse_topology`."""
    gpus = [f"GPU{i}" for i in range(len(nvlinks))]
    cards = [f"NIC{i}" for i in range(len(nics[0]) if nics else 0)]
    lines = ["\t" + "\t".join([*gpus, *cards, "CPU Affinity"])]
    for i, row in enumerate(nvlinks):
        cells = [" X " if i == k else f"NV{n}" if n else "SYS" for k, n in enumerate(row)]
        lines.append("\t".join([gpus[i], *cells, *(nics[i] if nics else ()), "0-7"]))
    return "\n".join(lines) + "\n"


@st.composite
def topologies(draw):
    gpus, cards = draw(st.integers(1, 8)), draw(st.integers(0, 4))
    wires = {pair: draw(st.integers(0, 3)) for pair in itertools.combinations(range(gpus), 2)}
    nvlinks = tuple(
        tuple(wires.get((min(i, k), max(i, k)), 0) for k in range(gpus)) for i in range(gpus)
    )
    paths = tuple(tuple(draw(st.sampled_from(PATHS)) for _ in range(cards)) for _ in range(gpus))
    return Topology(nvlinks=nvlinks, nics=tuple(f"NIC{i}" for i in range(cards)), paths=paths)


@given(topologies())
def test_written_topologies_read_back_equal(topology):
    assert parse_topology(matrix(topology.nvlinks, topology.paths)) == topology


@given(topologies())
def test_islands_are_equal_joined_and_the_largest(topology):
    try:
        islands = topology.islands()
    except ValueError:
        islands = tuple((gpu,) for gpu in range(topology.gpus))
        assert any(any(row) for row in topology.nvlinks)
    size = len(islands[0])
    assert sorted(gpu for island in islands for gpu in island) == list(range(topology.gpus))
    for island in islands:
        assert len(island) == size
        assert all(topology.nvlinks[a][b] for a, b in itertools.combinations(island, 2))

    def splits(free, size):
        """Whether ``free`` splits into joined groups, tried over every group of the first GPU."""
        return not free or any(
            all(topology.nvlinks[a][b] for a, b in itertools.combinations(group, 2))
            and splits(free - set(group), size)
            for group in itertools.combinations(sorted(free), size)
            if min(free) in group
        )

    everyone = frozenset(range(topology.gpus))
    larger = [n for n in range(size + 1, topology.gpus + 1) if topology.gpus % n == 0]
    assert not any(splits(everyone, n) for n in larger)


@given(st.text(alphabet="GPU01 XNVSYIC\t\n:#"))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        assert parse_topology(text).gpus >= 1
    except ValueError as error:
        assert "\n" not in str(error)


def test_switches_show_every_link_to_every_peer_and_wires_share_them():
    def uniform(gpus, links):
        return parse_topology(
            matrix([[links * (i != k) for k in range(gpus)] for i in range(gpus)])
        )

    assert uniform(16, 6).links("volta") == 6
    wired = uniform(4, 4)
    assert wired.links("ampere") == 12
    uneven = ((0, 3, 4, 5), (3, 0, 5, 4), (4, 5, 0, 3), (5, 4, 3, 0))
    with pytest.raises(ValueError, match="GPU0 has 12 NVLinks, more than the 6"):
        replace(wired, nvlinks=uneven).links("volta")
    with pytest.raises(ValueError, match="which no turing device has"):
        wired.links("turing")


# Clusters.


@pytest.mark.parametrize(
    ("name", "fields", "gpus", "domain", "up", "out"),
    [
        (
            "dgx-a100",
            "device: a100-sxm-80gb\nnic_bandwidth: 200 Gb/s\nnodes: 4\n",
            32,
            8,
            300e9,
            25e9,
        ),
        ("dgx-h100", "device: h100-sxm\nnic_bandwidth: 400 Gb/s\nnodes: 2\n", 16, 8, 450e9, 50e9),
        ("dgx-1v", "device: v100-sxm-16gb\nnic_bandwidth: 100 Gb/s\n", 8, 4, 100e9, 6.25e9),
        ("pcie", "device: l40s\nnic_bandwidth: 200 Gb/s\n", 8, 8, 32e9, 6.25e9),
        ("bridged", "device: a100-pcie-80gb\nnic_bandwidth: 100 Gb/s\n", 8, 2, 300e9, 3.125e9),
    ],
)
def test_clusters_of_samples(tmp_path, name, fields, gpus, domain, up, out):
    path = cluster_file(tmp_path, name, fields)
    cluster = load_cluster(path)
    assert (cluster.gpus, cluster.gpus_per_node, cluster.scale_up_domain) == (gpus, 8, domain)
    assert cluster.scale_up.bandwidth == pytest.approx(up, rel=1e-9)
    assert cluster.scale_out is not None
    assert cluster.scale_out.bandwidth == pytest.approx(out, rel=1e-9)
    assert load_cluster(f"{path}:64").gpus == 64


def test_a_topology_of_a_usual_node_gives_the_usual_cluster(tmp_path):
    for sxm, name, speed in (("a100-sxm-80gb", "dgx-a100", 200), ("h100-sxm", "dgx-h100", 400)):
        path = cluster_file(tmp_path, name, f"device: {sxm}\nnic_bandwidth: {speed} Gb/s\n")
        mine, usual = load_cluster(path), load_cluster(name)
        strip = {"source": "", "nic_bandwidth": None}
        assert replace(mine.scale_up, **strip) == replace(usual.scale_up, **strip)
        assert usual.scale_out is not None
        assert mine.scale_out is not None
        assert replace(mine.scale_out, **strip) == replace(usual.scale_out, **strip)
        assert mine.scale_up_domain == usual.scale_up_domain


def test_a_topology_with_everything_stated_leaves_it_alone(tmp_path):
    path = cluster_file(
        tmp_path,
        "dgx-1v",
        "device: v100-sxm-32gb\nscale_up: nvlink2\nscale_up_domain: 8\nscale_out: null\n",
    )
    cluster = load_cluster(path)
    assert (cluster.scale_up_domain, cluster.scale_up.bandwidth, cluster.scale_out) == (
        8,
        150e9,
        None,
    )


def test_a_rack_stays_one_island(tmp_path):
    tray = matrix([[18 * (i != k) for k in range(4)] for i in range(4)], [["NODE"] * 4] * 4)
    path = cluster_file(tmp_path, tray, "device: gb200\nnic_bandwidth: 400 Gb/s\nnodes: 18\n")
    cluster = load_cluster(path)
    assert (cluster.gpus, cluster.scale_up_domain) == (72, 72)
    assert cluster.scale_up.bandwidth == 900e9


def test_nvlink_generations_are_the_catalogue_links():
    from estimator.catalog import load_link

    for generation in NVLINK.values():
        link = load_link(generation.name)
        assert link.bandwidth == pytest.approx(generation.most * generation.bandwidth, rel=1e-9)


# What is refused.


def lines(name, change):
    return "\n".join(change(sample(name).split("\n")))


def uneven(*linked):
    nvlinks = [[0] * 4 for _ in range(4)]
    for a, b in linked:
        nvlinks[a][b] = nvlinks[b][a] = 2
    return matrix(nvlinks)


A100, V100 = "device: a100-sxm-80gb\n", "device: v100-sxm-16gb\n"
BAD = [
    ("", A100, "holds no matrix of GPUs; save the whole output"),
    ("no devices were found\n", A100, "holds no matrix of GPUs"),
    (sample("cut"), "device: h100-sxm\n", "row of GPU5 has 4 cells for 18 columns"),
    (lines("dgx-a100", lambda rows: rows[:6]), A100, "row of GPU5 is there 0 times"),
    (lines("dgx-a100", lambda rows: rows[1:]), A100, "holds no matrix of GPUs"),
    (lines("dgx-a100", lambda rows: [*rows, rows[3]]), A100, "row of GPU2 is there 2 times"),
    (sample("dgx-a100").replace("NV12", "NV", 1), A100, "GPU0 to GPU1 is 'NV', which is none of"),
    (sample("dgx-a100").replace("PXB", "OK", 1), A100, "GPU0 to NIC0 is 'OK', which is none of"),
    (sample("dgx-a100").replace("PXB", "NV4", 1), A100, "GPU0 to NIC0 is 'NV4'"),
    (sample("dgx-a100").replace(" X ", "SYS", 1), A100, "GPU0 to GPU0 is 'SYS'"),
    (sample("dgx-a100").replace("NV12", "NV1", 1), A100, "GPU1 is NV1, but back it is NV12"),
    (sample("dgx-a100").replace("GPU3", "GPU4", 1), A100, "columns must be GPU0, GPU1"),
    (sample("dgx-a100").replace("NIC3", "NIC4", 1), A100, "each once"),
    (matrix([[0] * 17] * 17), A100, f"17 GPUs are more than the {MOST_GPUS} of a node"),
    (uneven((0, 1)), V100, "2 of 4 GPUs have NVLinks (GPU0, GPU1), but no equal groups"),
    (uneven((0, 1), (0, 2), (0, 3)), V100, "4 of 4 GPUs have NVLinks"),
    (sample("dgx-h100"), A100, "GPU0 has 18 NVLinks, more than the 12 of a GPU of architecture"),
    (sample("dgx-h100"), "device: mi300x\n", "which no cdna3 device has; check the device"),
    (sample("pcie"), A100, "topology shows no NVLink, and the usual node of a100-sxm-80gb has no"),
    (sample("dgx-a100"), A100, "8 NICs near GPUs, but not how fast they are; add for example"),
    (sample("dgx-a100"), A100 + "gpus_per_node: 4\n", "gpus_per_node=4, but its topology has 8"),
    (uneven((0, 1), (2, 3)), V100 + "nic_bandwidth: 1 GB/s\n", "but topology shows no NIC"),
    (uneven((0, 1), (2, 3)), V100, "4 GPUs in domains of 2 but no scale_out link"),
    (
        sample("dgx-a100"),
        A100 + "nic_bandwidth: 1 GB/s\nscale_out: infiniband-hdr\n",
        "scale_out is given too",
    ),
    (sample("dgx-a100"), A100 + "nic_bandwidth: 200\n", "200 has no unit"),
    ("x" * 1_000_001 + "\n", A100, "larger than 1 MB; name what nvidia-smi topo -m printed"),
]  # fmt: skip


def refused(path):
    with pytest.raises(ValueError) as error:
        load_cluster(path)
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 600
    return line


@pytest.mark.parametrize(("text", "fields", "rule"), BAD, ids=range(len(BAD)))
def test_bad_topologies(tmp_path, text, fields, rule):
    assert rule in refused(cluster_file(tmp_path, text, fields))


def test_bad_topology_files(tmp_path):
    path = Path(cluster_file(tmp_path, "dgx-a100", A100))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for topology, rule in [
        ("missing.txt", "no such file"),
        ("../topo.txt", "leads out of"),
        (".", "is not a regular file; name what nvidia-smi topo -m printed"),
        ("binary.txt", "is not UTF-8 text"),
    ]:
        path.write_text(f"name: mine\ntopology: {topology}\n{A100}", encoding="utf-8")
        assert rule in refused(str(path))


def test_a_topology_alone_is_not_a_cluster(tmp_path):
    path = cluster_file(tmp_path, "dgx-a100", A100)
    for text in (str(tmp_path / "topo.txt"), f"{tmp_path / 'topo.txt'}:64"):
        assert "does not say which GPU it is; write a cluster file with" in refused(text)
    Path(path).write_text("name: mine\ndevice: h200\nnic_bandwidth: 1 GB/s\n", encoding="utf-8")
    assert "nic_bandwidth is that of the NICs in a topology" in refused(path)
