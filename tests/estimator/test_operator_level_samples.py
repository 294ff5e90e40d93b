"""The published operator-level tables: hand-worked rows, and rows that a rule leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.lower.operators import moved_bytes
from estimator.samples import load_samples


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_a_step_of_adam(tmp_path: Path) -> None:
    found = load_samples(
        table(
            tmp_path,
            "device,op,mp,dim,encoders,dur(us)\n"
            "A100-SXM4-80GB,firstStage_optimizer,2,2048,11,17808.6\n"
            "A100-SXM4-80GB,firstStage_optimizer,1,2048,11,17808.6\n"
            "GH200,firstStage_optimizer,1,2048,11,54000000\n",
        )
    )
    # 12 d^2 / 2 and 13 d of 11 layers; half of 50,257 words padded to 256: 50,432 / 2 = 25,216.
    half = 11 * (6 * 2048**2 + 13 * 2048) + 25216 * 2048
    assert found.ops.m[0] == half == 328_759_296
    assert found.ops.m[1] == 11 * (12 * 2048**2 + 13 * 2048) + 50304 * 2048
    assert found.seconds[0] == pytest.approx(0.0178086, rel=1e-12)
    # Four fp32 numbers of a parameter are read, three are written.
    assert moved_bytes(found.ops)[0] == 28 * half
    assert found.ops.kind.tolist() == ["optimizer", "optimizer"]
    assert dict(found.excluded) == {"gh200-optimizer": 1}


def test_a_middle_stage_has_no_embedding(tmp_path: Path) -> None:
    found = load_samples(
        table(
            tmp_path,
            "device,op,mp,dim,encoders,dur(us)\n"
            "A100-SXM4-80GB,middleStage_optimizer,1,2048,4,5690.2\n",
        )
    )
    assert found.ops.m.tolist() == [4 * (12 * 2048**2 + 13 * 2048)]


def test_an_unknown_stage(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "device,op,mp,dim,encoders,dur(us)\nA100-SXM4-80GB,someStage_optimizer,1,2048,4,5690.2\n",
    )
    with pytest.raises(ValueError, match="unknown stage 'someStage'"):
        load_samples(path)


def test_one_of_several_kernels(tmp_path: Path) -> None:
    # 8 x 4096 x 32768 elements: 2 GiB in fp16, and a column more.
    head = "device,op,mp,b,l,dim,F_dur(us),B_dur(us)\n"
    rows = [
        f"{device},gelu,1,8,4096,{dim},{microseconds},{microseconds}\n"
        for device, microseconds in (("GH200-120GB", 2000), ("A100-SXM4-80GB", 4000))
        for dim in (8192, 8320)
    ]
    found = load_samples(table(tmp_path, head + "".join(rows)))
    assert dict(found.excluded) == {"gh200-one-of-several-kernels": 2}
    assert found.device.tolist() == ["gh200-96gb", *["a100-sxm-80gb"] * 2] * 2


def test_faster_than_light(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "device,op,mp,b,l,dim,F_dur(us),B_dur(us)\n"
        "A100-SXM4-80GB,linear3,1,4,2048,8192,2.0,30000\n",
    )
    found = load_samples(path)
    assert dict(found.excluded) == {"faster-than-light": 1}
    assert found.ops.phase.tolist() == ["backward"]
