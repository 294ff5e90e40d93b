"""JSON documents: fields, types, finite numbers, and files that are whole or not there."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from estimator import Plan, Plans
from estimator.catalog import load_cluster, load_device, load_model, load_stack
from search import contracts
from search.objective import limited_by
from search.study import recommend
from tests.search.fakes import PRICING, problem, small


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    of = small(problem(token_budget=1e12))
    p = of.problem
    result = recommend(p.model, p.workload, p.cluster, stack=p.stack, space=of, pricing=PRICING)
    return contracts.recommendation(result)


def test_a_recommendation_has_its_schema_after_a_trip_through_json(document: Any) -> None:
    read = json.loads(json.dumps(document, allow_nan=False))
    assert contracts.faults(read, contracts.SCHEMAS[contracts.RECOMMENDATION]) == []
    assert read == document, "nothing but plain JSON values"
    assert read["schema"] == "trainplan.recommendation.v1"
    assert read["legal"] == read["considered"] - sum(read["left_out"].values())


def test_totals_are_the_sums_of_their_parts(document: Any) -> None:
    for row in document["ranked"]:
        assert sum(row["time"].values()) == pytest.approx(row["step_seconds"], rel=1e-12)
        assert sum(row["memory"].values()) == pytest.approx(row["peak_bytes"], rel=1e-12)
        outside = row["memory"]["reserved"] + row["memory"]["context"]
        assert row["allocated_bytes"] + outside == pytest.approx(row["peak_bytes"], rel=1e-12)
        assert row["low_seconds"] <= row["step_seconds"] <= row["high_seconds"]


def test_a_budget_is_days_and_dollars(document: Any) -> None:
    row = document["ranked"][0]
    seconds = 1e12 / row["tokens_per_second"]
    price = document["problem"]["cluster"]["device"]["dollars_per_hour"]
    gpus = document["problem"]["cluster"]["gpus"]
    assert row["budget"]["seconds"] == pytest.approx(seconds)
    assert row["budget"]["dollars"] == pytest.approx(price * gpus * seconds / 3600)


def test_plans_can_be_read_back(document: Any) -> None:
    for row in document["ranked"]:
        assert Plan(**row["plan"]).to_dict() == row["plan"]


def test_an_estimate_and_a_catalogue_have_their_schemas() -> None:
    given = problem()
    value = PRICING.estimates(given, Plans.of([Plan(dp=2, tp=8)]))[0]
    one = contracts.estimate(given, "analytic", value, limited_by(value))
    assert contracts.faults(one, contracts.SCHEMAS[contracts.ESTIMATE]) == []
    both = contracts.explanation([one, one])
    assert contracts.faults(both, contracts.SCHEMAS[contracts.EXPLANATION]) == []
    known = contracts.catalog(
        [load_model("gpt2-xl")],
        [load_device("h100-sxm")],
        [load_cluster("h100-sxm:16")],
        [load_stack("megatron")],
    )
    assert contracts.faults(known, contracts.SCHEMAS[contracts.CATALOG]) == []
    assert json.loads(json.dumps(known, allow_nan=False)) == known
    assert known["models"][0]["parameters"] == load_model("gpt2-xl").parameters


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda d: d.pop("legal"), "document.legal is missing"),
        (lambda d: d["ranked"][0].pop("mfu"), "document.ranked[0].mfu is missing"),
        (lambda d: d.update(legal="many"), "document.legal is a str"),
        (lambda d: d.update(legal=True), "document.legal is a bool"),
        (lambda d: d["ranked"][0]["time"].update(tp=float("nan")), "document.ranked[0].time.tp is"),
        (lambda d: d.update(ranked={}), "document.ranked must be a list"),
        (lambda d: d.update(problem=[]), "document.problem must be an object"),
    ],
)
def test_the_schema_sees_what_is_wrong(document: Any, change: Any, fault: str) -> None:
    spoilt = deepcopy(document)
    change(spoilt)
    found = contracts.faults(spoilt, contracts.SCHEMAS[contracts.RECOMMENDATION])
    assert any(line.startswith(fault) for line in found)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("before")
    with pytest.raises(ValueError):
        contracts.write({"bad": float("nan")}, str(target))
    assert target.read_text() == "before"
    contracts.write({"a": 1}, str(target))
    assert json.loads(target.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [target], "no temporary file stays behind"


def test_a_link_or_a_pipe_is_written_through_not_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("before")
    link.symlink_to(real)
    contracts.write({"a": 1}, str(link))
    assert link.is_symlink() and json.loads(real.read_text()) == {"a": 1}
    contracts.write({"a": 1}, os.devnull)
    assert not Path(os.devnull).is_file()


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "none" / "result.json"):
        with pytest.raises(ValueError, match="cannot write") as error:
            contracts.write({"a": 1}, str(target))
        assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_standard_output_is_the_document_alone(capsys: pytest.CaptureFixture[str]) -> None:
    contracts.write({"a": 1}, "-")
    assert json.loads(capsys.readouterr().out) == {"a": 1}
