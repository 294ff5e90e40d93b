"""What a user may ask of every plan."""

from __future__ import annotations

import numpy as np
import pytest

from spaces import Constraints, TransformerSpace
from tests.spaces.problems import problem


def build(**asked: list[str]) -> TransformerSpace:
    given = problem()
    return TransformerSpace.build(
        given.model, given.workload, given.cluster, given.stack, Constraints.parse(**asked)
    )


def column(space: TransformerSpace, name: str) -> set[int]:
    return {int(value) for block in space.blocks() for value in getattr(block, name)}


def test_fix_max_and_forbid_narrow_the_declared_grid() -> None:
    everything, fixed = build(), build(fix=["tp=8"])
    assert column(fixed, "tp") == {8}
    assert fixed.considered == everything.considered // len(everything.grid.axes["tp"])
    assert column(build(most=["mbs=2"]), "micro_batch") == {1, 2}
    assert 1 not in column(build(forbid=["pp=1", "pp=2"]), "pp")
    assert column(build(forbid=["recompute=full,recompute=selective"]), "recompute") == {0}


def test_fields_without_an_axis_are_charged_as_constraints() -> None:
    space = build(fix=["dp=4"])
    assert column(space, "dp") == {4}
    assert space.considered == build().considered
    assert space.left_out["constraint"] > 0


def test_a_fixed_value_need_not_be_on_the_axis() -> None:
    assert column(build(fix=["schedule=gpipe"]), "schedule") == {0}
    assert column(build(fix=["recompute=selective"]), "recompute") == {1}
    assert column(build(fix=["recompute_layers=3"]), "recompute_layers") == {3}
    assert column(build(fix=["micro_batch=64"]), "micro_batch") == {64}
    ends = build(fix=["first_stage_layers=17", "last_stage_layers=21", "pp=4"])
    assert column(ends, "first_stage_layers") == {17}
    assert column(ends, "last_stage_layers") == {21}


def test_an_empty_space_says_what_its_closest_plans_break() -> None:
    space = build(fix=["zero=2"])
    assert space.legal == 0
    assert "zero=2 is not offered by stack megatron; use one of 0, 1" in space.why_empty()
    assert "\n" not in space.why_empty()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"fix": ["tpp=8"]}, "'tpp' is not a field of a plan"),
        ({"fix": ["tp"]}, "must be written field=value"),
        ({"fix": ["tp=banana"]}, "tp=banana must be a whole number"),
        ({"fix": ["tp=2", "tp=4"]}, "tp is given twice"),
        ({"fix": ["tp=10000000000"]}, "too large"),
        ({"most": ["recompute=full"]}, "max recompute has no meaning"),
        ({"most": ["shard_size=none"]}, "max shard_size"),
        ({"forbid": ["recompute=some"]}, "recompute=some must be one of"),
        ({"most": ["micro_batch=0"]}, "leave no value of micro_batch"),
        ({"fix": ["zero=1"], "forbid": ["zero=1"]}, "leave no value of zero"),
        ({"fix": ["recompute=none", "recompute_layers=4"]}, "leave no value of recompute"),
    ],
)
def test_bad_constraints_are_one_line(asked: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        build(**asked)
    assert "\n" not in str(error.value)


def test_duplicates_are_left_out_once_per_way_of_running() -> None:
    space = build()
    for block in space.blocks():
        alone = (block.pp == 1) | (block.dp == 1) | (block.tp * block.cp % 8 == 0)
        assert np.all(block.order[alone] == 0)
        everything = block.recompute_layers == -1
        layers = np.where(everything, 10**9, block.recompute_layers)
        assert np.all(layers[block.recompute == 2] >= 1)
    assert space.left_out["duplicate"] > 0
    assert space.left_out["redundant"] > 0
