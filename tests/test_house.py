"""The house stands: imports point down, the wall holds, torch stays in its rooms, files stay readable."""

import ast
from collections.abc import Iterator
from pathlib import Path

import flare

ROOT = Path(flare.__file__).resolve().parent.parent
ROOMS = (  # from the roof down; an import points at a room further down, or at its own
    "cli",
    "actions",
    "report",
    "bench",
    "server",
    "build",
    "runtime",  # the wall is below this room
    "device",
    "rounds",
    "drafting",
    "sampling",
    "layers",
    "ops",
    "state",
    "checkpoint",
    "config",
    "plan",
    "contract",
    "errors",
)
# build joins the two halves, bench measures each of them
ABOVE_THE_WALL = set(ROOMS[: ROOMS.index("runtime") + 1]) - {"build", "bench"}
THROUGH_THE_WALL = {"config", "plan", "contract", "errors"}
TORCHLESS = {"cli", "config", "plan", "contract", "runtime", "errors"}
CLOSED_TO_RECIPES = {"build", "runtime", "device", "server", "bench", "report", "actions", "cli"}
# flare/__init__.py shows the library's names, __main__.py starts the command line
PUBLIC_DOORS = {"__init__", "__main__"}


def sources(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in the file it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


def flare_rooms(tree: ast.Module) -> set[str]:
    return {name.split(".")[1] for name in imports(tree) if name.startswith("flare.")} & set(ROOMS)


def test_every_room_has_its_place_in_the_order():
    assert {room(path) for path, _ in sources("flare")} - PUBLIC_DOORS <= set(ROOMS)


def test_imports_point_down():
    wrong = [
        f"{path} imports {target}"
        for path, tree in sources("flare")
        if room(path) not in PUBLIC_DOORS
        for target in flare_rooms(tree)
        if ROOMS.index(target) < ROOMS.index(room(path))
    ]
    assert wrong == []


def test_nothing_above_the_wall_imports_what_is_below():
    wrong = [
        f"{path} imports {target}"
        for path, tree in sources("flare")
        if room(path) in ABOVE_THE_WALL
        for target in flare_rooms(tree) - ABOVE_THE_WALL - THROUGH_THE_WALL - {"build", "bench"}
    ]
    assert wrong == []


def test_flare_does_not_know_its_recipes():
    wrong = [
        f"{path} imports {name}"
        for path, tree in sources("flare")
        for name in imports(tree)
        if name.split(".")[0] == "recipes"
    ]
    assert wrong == []


def test_recipes_stay_below_the_builder():
    wrong = [
        f"{path} imports {target}"
        for path, tree in sources("recipes")
        for target in flare_rooms(tree) & CLOSED_TO_RECIPES
    ]
    assert wrong == []


def test_what_is_decided_on_the_host_needs_no_torch():
    wrong = [
        f"{path} imports {name}"
        for path, tree in sources("flare")
        if room(path) in TORCHLESS
        for name in imports(tree)
        if name.split(".")[0] == "torch"
    ]
    assert wrong == []


def test_cuda_is_named_in_device_and_cuda_kernels_only():
    wrong = [
        str(path)
        for path, tree in sources("flare")
        if room(path) != "device" and not (room(path) == "ops" and path.name.startswith("cuda"))
        if any(name.startswith("torch.cuda") for name in imports(tree)) or _says_torch_cuda(tree)
    ]
    assert wrong == []


def _says_torch_cuda(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "cuda"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
        for node in ast.walk(tree)
    )


def test_every_file_says_its_subject_first():
    assert [
        str(path)
        for folder in ("flare", "recipes", "tests")
        for path, tree in sources(folder)
        if not ast.get_docstring(tree)
    ] == []


def test_no_file_is_longer_than_350_lines():
    wrong = [
        f"{path}: {lines}"
        for folder in ("flare", "recipes")
        for path, _ in sources(folder)
        if (lines := len((ROOT / path).read_text(encoding="utf-8").splitlines())) > 350
    ]
    assert wrong == []
