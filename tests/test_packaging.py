"""The shape of the project: what is shipped, who imports whom, what imports cost, what test runs leave."""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINKED = ("backends", "cluster", "recorders")
PLACES = {"jaz_actors": Path("jaz_actors"), **{name: Path("jaz_actors", name) for name in LINKED}}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# DESIGN §10. A module of jaz_actors/ that is in no set belongs to the hosts.
RECORDS = {
    *(
        "ids",
        "messages",
        "events",
        "effects",
        "errors",
        "http_urls",
        "outcomes",
        "payload",
        "protocols",
        "spec",
        "stamps",
        "toplevel",
    ),
}
CORE = {
    *("loop", "hooks", "frames", "code_protocol", "render", "refs"),
    *("descriptions", "inputs", "shared", "templates", "transfer"),  # values: copied, lent, described
    *("capture", "hook_home"),  # what surrounds a call, in drivers and in frames
    *("library", "tools"),  # for agents
    "garbage",
    "teardown",
    "threads",  # leaves that know nothing of ours
}
OUTSIDE = {"__main__", "cli", "console", "demo", "jaz", "progress", "rollouts", "trace_cli"}
MAY_IMPORT = {
    "records": {"records"},
    "backends": {"records", "backends"},
    "recorders": {"records", "recorders"},
    "core": {"records", "core"},
    "hosts": {"records", "recorders", "core", "hosts"},
    "cluster": {"records", "backends", "recorders", "core", "hosts", "cluster"},
    "outside": {"records", "backends", "recorders", "core", "hosts", "cluster", "outside"},
}

# Costly or optional: at module import, only where it is the subject of the package or module.
EMBEDDED = "jaz_actors.backends.embedded"
TENSORS = ("jaz_actors.recorders.token_batch", "jaz_actors.recorders.rollout_dataset")
LATE: dict[str, tuple[str, ...]] = {
    "ray": ("jaz_actors.cluster",),
    "torch": (EMBEDDED, *TENSORS),
    **dict.fromkeys(("transformers", "tokenizers", "safetensors", "numpy", "starlette", "uvicorn"), (EMBEDDED,)),
    **dict.fromkeys(("litellm", "opentelemetry", "pyarrow", "sglang"), ()),
}
HEAVY = {"ray", "torch", "transformers"}
CUDA = ("cuda-", "nvidia-", "triton")  # what a CUDA build of torch brings in, at versions of its own choice


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path

    @property
    def layer(self) -> str:
        first = self.name.partition(".")[2].partition(".")[0]
        if first in LINKED:
            return first
        layers = {"records": RECORDS, "core": CORE, "outside": OUTSIDE}
        return next((layer for layer, names in layers.items() if first in names), "hosts")

    def imports(self) -> Iterator[str]:
        """Every dotted name imported when the module is."""
        return _imports(ast.parse(self.path.read_text()).body)

    def ours(self) -> set[str]:
        """The modules on disk that it imports."""
        return {found for target in self.imports() if (found := _on_disk(target))}


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                source = "." * node.level + (node.module or "")
                yield from (f"{source}.{alias.name}" for alias in node.names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _imports(node.orelse)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.Match():
                yield from (name for arm in node.cases for name in _imports(arm.body))
            case _:
                for field in ("body", "orelse", "handlers", "finalbody"):
                    yield from _imports(getattr(node, field, []))


def _modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for folder, place in PLACES.items():
        for path in (ROOT / folder).rglob("*.py"):  # does not follow the links
            parts = (place / path.relative_to(ROOT / folder)).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
    return dict(sorted(found.items()))


MODULES = _modules()
PACKAGES = sorted(name for name, module in MODULES.items() if module.path.name == "__init__.py")


def _on_disk(name: str) -> str | None:
    """The module on disk that holds the dotted name."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def _in_package(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _run(code: str, *arguments: str, cwd: Path = ROOT, path: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_package_list_equals_packages_on_disk() -> None:
    assert PYPROJECT["tool"]["setuptools"]["packages"] == PACKAGES


def test_every_folder_with_code_is_a_package() -> None:
    assert sorted({_folder(module) for module in MODULES.values()}) == PACKAGES


def _folder(module: Module) -> str:
    return module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]


@pytest.mark.parametrize("name", LINKED)
def test_link_resolves_to_its_root_folder(name: str) -> None:
    link = ROOT / "jaz_actors" / name
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name
    assert PYPROJECT["tool"]["setuptools"]["package-dir"][f"jaz_actors.{name}"] == name


def test_modules_import_only_layers_below_them() -> None:
    wrong = [
        f"{module.name} ({module.layer}) imports {target} ({MODULES[target].layer})"
        for module in MODULES.values()
        for target in module.ours() - {"jaz_actors"}
        if MODULES[target].layer not in MAY_IMPORT[module.layer]
    ]
    assert wrong == []


def test_modules_import_ours_by_absolute_name_only() -> None:
    wrong = [
        f"{module.name} imports {target}"
        for module in MODULES.values()
        for target in module.imports()
        if target.split(".")[0] in {"", *LINKED}
    ]
    assert wrong == []


def test_costly_dependencies_are_imported_late() -> None:
    wrong = [
        f"{module.name} imports {target}"
        for module in MODULES.values()
        for target in module.imports()
        if (top := target.split(".")[0]) in LATE and not any(_in_package(module.name, place) for place in LATE[top])
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = {name: module.ours() - {name} for name, module in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_import_is_light() -> None:
    code = """
import json, sys, time
before, start = set(sys.modules), time.perf_counter()
import jaz_actors
print(json.dumps([time.perf_counter() - start, sorted(set(sys.modules) - before)]))
"""
    runs = [json.loads(_run(code)) for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.3
    loaded = runs[0][1]
    foreign = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names - {"jaz_actors"}
    assert not foreign
    assert len(loaded) < 60


def test_using_the_whole_interface_loads_nothing_heavy() -> None:
    loaded = _run("import sys; from jaz_actors import *; print(*sys.modules)").split()
    assert "jaz_actors.loop" in loaded or "jaz_actors.frontdoor" in loaded
    assert not HEAVY & set(loaded)


def test_rollouts_are_read_without_torch() -> None:
    assert "torch" not in _run("import sys; from jaz_actors.rollouts import to_tree; print(*sys.modules)").split()


INTERFACES = [*PACKAGES, "jaz_actors.rollouts"]


@pytest.mark.parametrize("name", [name for name in INTERFACES if "__all__" in MODULES[name].path.read_text()])
def test_interface_is_sorted_and_every_name_resolves(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__ == sorted(package.__all__, key=_as_ruff_sorts)
    assert len(set(package.__all__)) == len(package.__all__)
    assert not [public for public in package.__all__ if not hasattr(package, public)]


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_every_dependency_is_pinned_in_the_constraints_file() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert [str(pin) for pin in pins if not re.fullmatch(r"==[\w.]+", str(pin.specifier))] == []
    project = PYPROJECT["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *optional["embedded"], *optional["dev"], *optional["sglang"]]
    assert _closure(wanted) - {canonicalize_name(pin.name) for pin in pins} == set()


def _closure(requirements: list[str]) -> set[str]:
    """The distributions that these bring in, by what the installed ones declare."""
    seen: set[str] = set()
    queue = [Requirement(line) for line in requirements]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or name.startswith(CUDA):
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        seen.add(name)
        queue += map(Requirement, importlib.metadata.requires(name) or ())
    return seen


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked. Built from a copy, since a build writes beside its sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in PLACES:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=unwanted)
    for file in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(file, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    _run(build, str(built), cwd=source)
    (archive,) = built.glob("*.whl")
    unpacked = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(archive) as file:
        file.extractall(unpacked)
    return unpacked


def test_wheel_claims_one_name_and_carries_the_license(wheel: Path) -> None:
    (info,) = wheel.glob("*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"jaz_actors", info.name}
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "jaz-actors = jaz_actors.cli:main" in (info / "entry_points.txt").read_text()


def test_wheel_carries_every_file_of_the_packages(wheel: Path) -> None:
    expected = {
        (root / file.relative_to(ROOT / folder)).as_posix()
        for folder, root in PLACES.items()
        for file in _files(ROOT / folder)
    }
    shipped = {file.relative_to(wheel).as_posix() for file in _files(wheel / "jaz_actors")}
    assert shipped == expected


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def test_every_module_of_the_wheel_imports_from_anywhere(wheel: Path) -> None:
    names = [
        name
        for name in MODULES
        if not name.startswith("jaz_actors.backends.embedded.") and not name.endswith("__main__")
    ]
    code = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""
    files = _run(code, *names, cwd=Path("/"), path=str(wheel)).splitlines()
    assert [file for file in files if not file.startswith(str(wheel))] == []
    assert len(files) == len(names)


def test_a_test_run_that_leaves_a_process_behind_fails(tmp_path: Path) -> None:
    guard = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(guard.replace("SHUTDOWN_SECONDS = 5.0", "SHUTDOWN_SECONDS = 0.2"))
    (tmp_path / "test_leak.py").write_text(
        "import subprocess\nkept = []\ndef test_it():\n    kept.append(subprocess.Popen(['sleep', '61.5']))\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "1 passed" in done.stdout
    assert "sleep 61.5" in done.stdout
