"""Laws of the source itself: who may import whom, where formulas live, what is never written.

Each law is a function from parsed source to faults, so that it is shown to find a fault in a
snippet before it is trusted with the packages.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "estimator": set(),
    "spaces": {"estimator"},
    "search": {"estimator", "spaces"},
}
"""The packages, and which of the others each may import; ``tests`` is nobody's to import."""
FACES = ("estimator", "estimator.catalog", "spaces", "search")
HEAVY = {"ray", "torch", "optuna", "plotly", "sklearn", "pandas", "scipy", "numba", "msgspec"}
EXTRAS = {"ray", "torch", "plotly", "sklearn", "numba"}

SHAPES = {
    *("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"),
    *("attention_width", "kv_width", "qkv_width", "up_width"),
    *("sequence", "micro_batch", "lora_rank"),
}
"""Attributes whose products are FLOPs or bytes."""
FORMULAS = {"estimator/lower/", "estimator/model.py", "estimator/amped.py"}
"""Where such products belong; elsewhere they would be a second source of truth. AMPeD counts for
itself, as the paper does."""
ALLOWED_PRODUCTS = {("estimator/workload.py", "self.global_batch * self.sequence")}

MOST_LINES = 500
LONG_FILES: dict[str, str] = {}
"""Files over the limit, each with its reason."""
BANNED_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib"}
BANNED_CALLS = {"eval", "exec", "__import__", "import_module"}
UNSAFE_YAML = {"load", "load_all", "full_load", "unsafe_load", "Loader", "FullLoader"}
ALLOWED_CALLS = {
    # A subclass of yaml's safe loader that also refuses aliases.
    ("estimator/catalog/reading.py", "yaml.load(text, Loader=_loader())"),
    # ``--module``: the user's own code, by the name that the user gives.
    ("search/module.py", "importlib.import_module(path)"),
}
CONTRACTS = "search/contracts/"
PARAMETERS = "estimator/cost/parameters.py"
"""Headers of parameter files are JSON too, which this project alone reads."""
CONTRACT_NAME = re.compile(r"trainplan\.\w+\.v\d+")
VAGUE_NAMES = re.compile(r"(utils?|common|helpers?|misc|base_.*|.*_v\d+)\.py")


@dataclass(frozen=True)
class Source:
    """One module: its path from the root, its dotted name and its syntax tree."""

    path: str
    module: str
    tree: ast.Module
    lines: int

    @classmethod
    def of(cls, text: str, path: str = "search/example.py") -> Source:
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return cls(path, module, ast.parse(text), text.count("\n"))

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


SOURCES = [
    Source.of(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())
    for package in MAY_IMPORT
    for path in sorted((ROOT / package).rglob("*.py"))
]


def in_packages(law: Iterable[str]) -> None:
    faults = list(law)
    assert not faults, "\n".join(faults)


# Imports


def imported(source: Source, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that import statements mention; ``from a import b`` gives ``a.b``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = source.module.split(".")
                kept = len(inside) - node.level + source.path.endswith("__init__.py")
                base = ".".join([*inside[:kept], *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def run_on_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that importing a module runs: no function bodies, nothing for typing only."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from run_on_import(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from run_on_import(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from run_on_import(handler.body)


def wrong_arrows(sources: Iterable[Source]) -> Iterator[str]:
    """Imports, wherever they stand in a module, that go against the direction."""
    for source in sources:
        refused = {*MAY_IMPORT, "tests", "conftest"} - MAY_IMPORT[source.package]
        refused.discard(source.package)
        for name in imported(source, ast.walk(source.tree)):
            if name.partition(".")[0] in refused:
                yield f"{source.path} imports {name}"


def cycles(sources: Iterable[Source]) -> Iterator[str]:
    """A cycle of imports that run when modules are imported."""
    known = {source.module: source for source in sources}
    graph = {
        module: {
            name if name in known else name.rpartition(".")[0]
            for name in imported(source, run_on_import(source.tree.body))
        }
        & known.keys()
        for module, source in known.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield "import cycle: " + " <- ".join(error.args[1])


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("estimator/plan.py", "import numpy\nfrom estimator.model import Transformer", False),
        ("estimator/plan.py", "from spaces import Problem", True),
        ("estimator/plan.py", "def f():\n    import search.study", True),
        ("spaces/rules.py", "from estimator import Plan\nfrom .problem import Rule", False),
        ("spaces/rules.py", "if TYPE_CHECKING:\n    from search.study import recommend", True),
        ("search/study.py", "import estimator, spaces", False),
        ("search/study.py", "from tests.search import fakes", True),
        ("search/cli/main.py", "from ..study import recommend", False),
    ],
)
def test_a_wrong_arrow_is_found(path: str, text: str, found: bool) -> None:
    assert bool(list(wrong_arrows([Source.of(text, path)]))) is found


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("from estimator.b import B", "from estimator import a", True),
        ("from estimator import b", "from .a import A", True),
        ("try:\n    import estimator.b\nfinally:\n    pass", "import estimator.a", True),
        ("from estimator.b import B", "def f():\n    from estimator.a import A", False),
        ("import estimator.b", "if TYPE_CHECKING:\n    import estimator.a", False),
    ],
)
def test_a_cycle_is_found(first: str, second: str, found: bool) -> None:
    pair = [Source.of(first, "estimator/a.py"), Source.of(second, "estimator/b.py")]
    assert bool(list(cycles(pair))) is found


def test_relative_imports_are_resolved() -> None:
    face = Source.of("from .tree import x", "search/report/__init__.py")
    room = Source.of("from ..study import x\nfrom . import units", "search/report/table.py")
    assert list(imported(face, face.tree.body)) == ["search.report.tree.x"]
    assert list(imported(room, room.tree.body)) == ["search.study.x", "search.report.units"]


def test_imports_point_one_way() -> None:
    assert {source.package for source in SOURCES} == set(MAY_IMPORT)
    in_packages(wrong_arrows(SOURCES))


def test_imports_have_no_cycle() -> None:
    in_packages(cycles(SOURCES))


def loaded(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``code``."""
    report = "\nimport sys\nprint('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    ran = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(ran.stdout.splitlines()[-1].split())


def command(*arguments: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, function = project["scripts"]["trainplan"].partition(":")
    return (
        f"import sys\nfrom {module} import {function}\nsys.argv = {['trainplan', *arguments]!r}\n"
        f"try:\n    {function}()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )


def test_a_loaded_module_is_seen() -> None:
    assert loaded("import msgspec") & HEAVY == {"msgspec"}


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        pytest.param(command("--help"), HEAVY, id="help"),
        pytest.param("import estimator, estimator.catalog", HEAVY, id="estimator"),
        pytest.param("import spaces", HEAVY, id="spaces"),
        pytest.param(command("search", "--json", "-"), EXTRAS, id="search"),
    ],
)
def test_only_what_is_needed_is_loaded(code: str, refused: set[str]) -> None:
    assert not loaded(code) & refused


# Formulas


def mentions_shape(node: ast.expr) -> bool:
    """Whether a shape is read in an expression; ``.hidden[...]`` is a mapping of seconds."""
    mappings = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Subscript)}
    return any(
        isinstance(n, ast.Attribute) and n.attr in SHAPES and id(n) not in mappings
        for n in ast.walk(node)
    )


def mentions_number(node: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in ast.walk(node)
    )


def formulas(source: Source) -> Iterator[str]:
    """Products and powers of shapes, with each other or with numbers, outside ``FORMULAS``."""
    if any(source.path.startswith(place) for place in FORMULAS):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
            left, right = node.left, node.right
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Pow):
            left, right = node.target, node.value
        else:
            continue
        shapes = mentions_shape(left), mentions_shape(right)
        numbers = mentions_number(left), mentions_number(right)
        product = all(shapes) or (shapes[0] and numbers[1]) or (numbers[0] and shapes[1])
        if product and (source.path, ast.unparse(node)) not in ALLOWED_PRODUCTS:
            yield f"{source.path}:{node.lineno}: formula outside lower/: {ast.unparse(node)}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flops = 2 * model.hidden", True),
        ("flops = model.hidden * n * model.ffn", True),
        ("size = plan.micro_batch * workload.sequence", True),
        ("size = model.hidden ** 2", True),
        ("size = (model.heads // tp) * (model.head_dim + 1)", True),
        ("size *= 4 * model.vocab", True),
        ("batches = dp * plans.micro_batch", False),
        ("legal = model.heads % tp == 0", False),
        ("rest = workload.sequence // (2 * cp)", False),
        ("seconds = 1e3 * estimate.hidden['tp']", False),
    ],
)
def test_a_formula_is_found(text: str, found: bool) -> None:
    assert bool(list(formulas(Source.of(text)))) is found
    assert not list(formulas(Source.of(text, "estimator/lower/example.py")))


def test_formulas_live_in_one_place() -> None:
    in_packages(fault for source in SOURCES for fault in formulas(source))


def test_shapes_are_fields_that_exist() -> None:
    from estimator import Plan, Transformer, Workload

    for name in SHAPES:
        assert any(hasattr(noun, name) for noun in (Transformer, Workload, Plan)), name


# What is never written


def banned(source: Source) -> Iterator[str]:
    """Unsafe readers, dynamic code and handlers that swallow everything."""
    for name in imported(source, ast.walk(source.tree)):
        if name.partition(".")[0] in BANNED_MODULES:
            yield f"{source.path}: imports {name}"
    for node in ast.walk(source.tree):
        text = ""
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            text = "bare except"
        elif isinstance(node, ast.Call):
            function = node.func
            called = function.id if isinstance(function, ast.Name) else ""
            called = function.attr if isinstance(function, ast.Attribute) else called
            yaml = ast.unparse(function).startswith("yaml.") and called in UNSAFE_YAML
            pickled = any(
                keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
                for keyword in node.keywords
            )
            if yaml or pickled or called in BANNED_CALLS:
                text = ast.unparse(node)
        if text and (source.path, text) not in ALLOWED_CALLS:
            yield f"{source.path}:{node.lineno}: {text}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import yaml\nyaml.load(text, Loader=yaml.Loader)", True),
        ("import yaml\nyaml.unsafe_load(text)", True),
        ("import yaml\nyaml.safe_load(text)", False),
        ("import json\njson.load(file)", False),
        ("import pickle", True),
        ("from joblib import load", True),
        ("np.load(file, allow_pickle=True)", True),
        ("np.load(file, allow_pickle=False)", False),
        ("eval('1')", True),
        ("importlib.import_module(name)", True),
        ("try:\n    f()\nexcept:\n    pass", True),
        ("try:\n    f()\nexcept ValueError:\n    pass", False),
    ],
)
def test_a_banned_word_is_found(text: str, found: bool) -> None:
    assert bool(list(banned(Source.of(text)))) is found


def test_nothing_banned_is_written() -> None:
    in_packages(fault for source in SOURCES for fault in banned(source))


def test_the_strict_loader_is_a_safe_one() -> None:
    import yaml

    from estimator.catalog import reading

    assert issubclass(reading._loader(), yaml.SafeLoader)


# Rooms and faces


def too_long(source: Source) -> Iterator[str]:
    if source.lines > MOST_LINES and source.path not in LONG_FILES:
        yield f"{source.path} has {source.lines} lines: split it, or give a reason in LONG_FILES"


def test_a_long_file_is_found() -> None:
    assert list(too_long(Source.of("x = 1\n" * 501)))
    assert not list(too_long(Source.of("x = 1\n" * 500)))


def test_rooms_are_small() -> None:
    in_packages(fault for source in SOURCES for fault in too_long(source))
    long = {source.path for source in SOURCES if source.lines > MOST_LINES}
    assert set(LONG_FILES) <= long, "a reason in LONG_FILES is no longer needed"


def test_file_names_say_what_is_inside() -> None:
    vague = [
        name for name in ("utils.py", "base_cost.py", "plan_v2.py") if VAGUE_NAMES.fullmatch(name)
    ]
    assert len(vague) == 3
    assert not [s.path for s in SOURCES if VAGUE_NAMES.fullmatch(Path(s.path).name)]


def export_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: the order that ruff keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def wrong_exports(source: Source) -> Iterator[str]:
    """Differences between ``__all__`` of a face and the public names it binds."""
    bound: set[str] = set()
    listed: list[str] = []
    lazy = [
        inner
        for node in source.tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in node.body
    ]
    for node in [*source.tree.body, *lazy]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom) and node.module in ("__future__", "typing"):
                continue
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names == ["__all__"]:
                listed = ast.literal_eval(node.value)
            bound |= set(names)
    public = sorted((name for name in bound if not name.startswith("_")), key=export_order)
    if listed != public:
        yield f"__all__ of {source.path} must be {public}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from a import LIMIT, Plan, fit\n__all__ = ['LIMIT', 'Plan', 'fit']", False),
        ("from a import Plan, fit\n__all__ = ['fit', 'Plan']", True),
        ("from a import Plan, fit\n__all__ = ['Plan']", True),
        ("from a import Plan\n__all__ = ['Plan', 'fit']", True),
        ("from a import Plan", True),
        ("if TYPE_CHECKING:\n    from a import Plan\n__all__ = ['Plan']", False),
        ("if TYPE_CHECKING:\n    from a import Plan\n__all__ = []", True),
        ('"""A face without names."""', False),
    ],
)
def test_a_wrong_export_is_found(text: str, found: bool) -> None:
    assert bool(list(wrong_exports(Source.of(text, "spaces/__init__.py")))) is found


def test_faces_list_what_they_export() -> None:
    faces = [source for source in SOURCES if source.module in FACES]
    assert len(faces) == len(FACES)
    in_packages(fault for source in faces for fault in wrong_exports(source))


def contracts_elsewhere(source: Source) -> Iterator[str]:
    """JSON written, or a contract named, outside the package of contracts."""
    if source.path.startswith(CONTRACTS) or source.path == PARAMETERS:
        return
    for node in ast.walk(source.tree):
        named = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if named and CONTRACT_NAME.fullmatch(node.value):
            yield f"{source.path}:{node.lineno}: names the contract {node.value}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dump", "json.dumps"):
            yield f"{source.path}:{node.lineno}: writes JSON"


def test_contracts_live_in_one_place() -> None:
    for text in ("schema = 'trainplan.catalog.v1'", "json.dumps(answer)"):
        assert list(contracts_elsewhere(Source.of(text)))
        assert not list(contracts_elsewhere(Source.of(text, f"{CONTRACTS}plans.py")))
    in_packages(fault for source in SOURCES for fault in contracts_elsewhere(source))
    named = [path.read_text("utf-8") for path in (ROOT / CONTRACTS).glob("*.py")]
    assert CONTRACT_NAME.search("".join(named)), (
        "the check looks for a spelling that contracts do not have"
    )


# What the README shows


def test_readme_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        ran = subprocess.run(
            [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout


def test_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    paths = re.findall(r"`((?:estimator|spaces|search|tests|notebooks|\.ci)/[\w./]*)`", text)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]
