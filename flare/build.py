"""From configuration to core: Config → Parts → Plan → Core. The only place where parts meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from flare import ops
from flare.checkpoint.source import Source, locate
from flare.checkpoint.synthetic import Synthesis, synthesized
from flare.checkpoint.tensors import Checkpoint
from flare.config.compose import compose
from flare.config.config import Config
from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph, Extent, Manifest
from flare.contract.vocabulary import Vocabulary
from flare.device.cpu import CpuDevice, Program
from flare.device.memory import available_bytes
from flare.drafting.contract import Drafter
from flare.errors import ConfigError, PlanError
from flare.layers.rows import RoundShape
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.catalog import CatalogRequest, catalog
from flare.plan.declarations import Declarations, Weight
from flare.plan.memory import Budget, MemoryPlan, memory_plan
from flare.plan.packing import packed_linear_bytes
from flare.plan.plan import DeviceName, Plan, Selection, law_dtype, round_rows, selected_graphs
from flare.plan.shapes import batch_capacities, speculative_shapes
from flare.rounds.decode import decode
from flare.rounds.init import init
from flare.rounds.model import Model, declare_buffers
from flare.rounds.prefill import prefill, resume
from flare.rounds.requests import RequestTable, declare_requests
from flare.rounds.speculative import speculative_round
from flare.state.arena import Arena, torch_dtype

Progress = Callable[[str, int, int], None]
"""Called with a stage, what is done and what there is (bytes, or weights)."""

PROGRAMS = {
    "init": init,
    "prefill": prefill,
    "resume": resume,
    "decode": decode,
    "speculative": speculative_round,
}


@dataclass(frozen=True)
class Parts:
    """Target and drafter with no storage, what they declare, and the plan made from it."""

    target: Target
    drafter: Drafter | None
    declared: tuple[tuple[str, Declarations], ...]
    plan: Plan


@dataclass(frozen=True)
class Core:
    """A prepared recipe: manifest, plan, storage and replayable graphs. Close it, or use it as a context manager.

    Attributes:
        origin: the file or folder the weights were read from.
        model: the bound parts, which the device's programs run over.
    """

    recipe: str
    config: Config
    plan: Plan
    device: CpuDevice
    vocabulary: Vocabulary
    origin: str
    model: Model

    @property
    def manifest(self) -> Manifest:
        """The graphs this core replays."""
        return self.device.manifest

    def close(self) -> None:
        """Drain the device; an engine over this core must be closed first."""
        self.device.close()

    def __enter__(self) -> "Core":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def prepare(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    config_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Core:
    """Compose, plan, load and bind a recipe.

    Args:
        recipe: a name `flare --help` lists, or one in `config_dir`.
        overrides: `key=value` as on the command line.

    Raises:
        ConfigError, CheckpointError, PlanError: one sentence each.
    """
    return build(compose(recipe, overrides, config_dir), progress)


def build(config: Config, progress: Progress | None = None, *, whole_catalog: bool = False) -> Core:
    """The core of a validated configuration; with the whole catalog it can be served in any way it was prepared for."""
    parts = plan_parts(config, whole_catalog=whole_catalog)
    parts.plan.memory.check()
    checkpoint = locate(_source(config), progress)
    operators = ops.load(parts.plan.device)
    storage = load(parts, checkpoint, operators, config.preparation.linear_format, progress)
    model = bind(parts, storage, operators)
    device = replaying(parts.plan, model)
    return Core(config.recipe.name, config, parts.plan, device, checkpoint.vocabulary(), checkpoint.origin, model)


def replaying(plan: Plan, model: Model) -> CpuDevice:
    """A device that replays the plan's graphs over a bound model, or over one whose parts are being timed."""
    programs = [bound_program(model, graph) for graph in plan.manifest.graphs]
    return CpuDevice(plan.manifest, programs, plan.threads or torch.get_num_threads())


def plan_parts(config: Config, *, whole_catalog: bool = False) -> Parts:
    """Steps one to five: parts without storage, declarations, catalog, memory plan. `plan.memory.check` refuses."""
    name, dtype = _device(config), config.dtype()
    prepared = catalog(_catalog_request(config, name))
    graphs = prepared if whole_catalog else selected_graphs(prepared, selection(config))
    extent = _extent(config, graphs)
    rounds = RoundShape(extent.lanes, extent.width, extent.chunk)
    target: Target = config.recipe.target.type(config.recipe.target.settings, dtype, rounds)
    drafter = _drafter(config, target)
    extent = replace(extent, vocab=target.vocab)
    declared = declarations(target, drafter, extent, round_rows(graphs), dtype)
    memory = _memory(config, name, declared, extent)
    manifest = Manifest(graphs, replace(extent, pages=memory.pages))
    return Parts(target, drafter, declared, Plan(name, dtype, config.threads(), prepared, manifest, memory))


def declarations(
    target: Target, drafter: Drafter | None, extent: Extent, rows: int, dtype: str
) -> tuple[tuple[str, Declarations], ...]:
    """Every part's declarations, in allocation order."""
    return (
        ("target", target.declare()),
        ("drafter", drafter.declare() if drafter is not None else Declarations()),
        ("requests", declare_requests(extent, target.feedback_width, dtype)),
        ("rounds", declare_buffers(extent, rows, law_dtype(dtype), learned=drafter is not None and drafter.absorbs)),
    )


def load(
    parts: Parts, checkpoint: Checkpoint, operators: Operators, linear_format: str, progress: Progress | None = None
) -> Storage:
    """Check headers, allocate what was planned, read and pack the weights."""
    # The drafter's reader knows both sides of a checkpoint, so its report comes first and is whole.
    readers = {"drafter": parts.drafter.stored(checkpoint)} if parts.drafter is not None else {}
    readers["target"] = parts.target.stored(checkpoint)
    weights: dict[str, Tensor] = {}
    linears = {}
    declared = [(readers[part], weight) for part, declared in parts.declared for weight in declared.weights]
    for done, (read, weight) in enumerate(declared, 1):
        tensor = read(weight.name).to(torch_dtype(weight.dtype))
        assert tuple(tensor.shape) == weight.shape, (weight.name, tensor.shape, weight.shape)
        if weight.linear:
            linears[weight.name] = operators.pack_linear(tensor, weight.packed_format(linear_format))
        else:
            weights[weight.name] = tensor
        if progress is not None:
            progress("load", done, len(declared))
    extent = parts.plan.manifest.extent
    arena = Arena((declared for _, declared in parts.declared), extent, torch.device(parts.plan.device))
    return Storage(weights, linears, arena.tensors)


def bind(parts: Parts, storage: Storage, operators: Operators) -> Model:
    """Give every part its storage; from here on nothing moves."""
    parts.target.bind(storage, operators)
    if parts.drafter is not None:
        parts.drafter.bind(storage, operators, parts.target)
    extent = parts.plan.manifest.extent
    return Model(
        target=parts.target,
        drafter=parts.drafter,
        ops=operators,
        requests=RequestTable(storage.state, extent),
        logits=storage.state["round.logits"],
        laws=storage.state["round.laws"],
        proposals=storage.state.get("round.proposals"),
        extent=extent,
    )


def bound_program(model: Model, graph: ExecutionGraph) -> Program:
    """The round function of a graph, with everything but its frame decided."""
    return partial(PROGRAMS[graph.kind], model, graph)


def _device(config: Config) -> DeviceName:
    name = config.device(cuda_available=False)
    if name != "cpu":
        raise PlanError("preparation.device=cuda is not built yet; this version runs on preparation.device=cpu.")
    return name


def _drafter(config: Config, target: Target) -> Drafter | None:
    if config.recipe.drafter is None or not config.preparation.mtp:
        return None
    return config.recipe.drafter.type(config.recipe.drafter.settings, target)


def _catalog_request(config: Config, device: DeviceName) -> CatalogRequest:
    drafter: type[Drafter] | None = None
    if config.recipe.drafter is not None and config.preparation.mtp:
        drafter = config.recipe.drafter.type
    shapes = speculative_shapes(config.concurrency(), config.widths(), config.preparation.speculative_token_capacity)
    return CatalogRequest(
        concurrency=config.concurrency(),
        prefill_capacities=config.prefill_capacities(device),
        shapes=shapes if drafter is not None else (),
        ordinary=not config.preparation.mtp_only,
        draft_source=drafter.source if drafter is not None else "none",
        drafter_absorbs=drafter is not None and drafter.absorbs,
    )


def selection(config: Config) -> Selection:
    """What `serving.*` takes from the prepared catalog."""
    return Selection(
        concurrency=config.serving.concurrency,
        depth=config.depth(),
        fixed_width=config.serving.fixed_width,
        speculating=config.serving.mtp_draft_tokens > 0 or config.preparation.mtp_only,
    )


def _extent(config: Config, graphs: Sequence[ExecutionGraph]) -> Extent:
    """Sizes of frames and tables; the target tells `vocab`, and `pages` is settled from what memory is left."""
    context = config.context_length()
    return Extent(
        lanes=batch_capacities(config.serving.concurrency)[-1],
        slots=config.serving.concurrency,
        pages=0,
        pages_per_request=-(-context // PAGE_TOKENS),
        width=max((graph.token_capacity for graph in graphs if graph.kind in ("decode", "speculative")), default=1),
        chunk=max(graph.token_capacity for graph in graphs if graph.kind == "prefill"),
        context=context,
        vocab=0,
    )


def _memory(
    config: Config, device: DeviceName, declared: tuple[tuple[str, Declarations], ...], extent: Extent
) -> MemoryPlan:
    preparation = config.preparation

    def packed_bytes(weight: Weight) -> int | None:
        rows, columns = weight.shape
        linear_format = weight.packed_format(preparation.linear_format)
        return packed_linear_bytes(rows, columns, weight.dtype, linear_format)

    total = available_bytes(device) if preparation.memory_bytes == "auto" else preparation.memory_bytes
    budget = Budget(
        total_bytes=total,
        headroom_bytes=preparation.headroom_bytes,
        wanted_pages=extent.slots * extent.pages_per_request,
        needed_pages=extent.pages_per_request,
    )
    return memory_plan(declared, extent, budget, packed_bytes)


def _source(config: Config) -> Source:
    stored = config.checkpoint
    return Source(
        stored.source,
        stored.path,
        stored.id,
        stored.revision,
        stored.file,
        sha256=stored.sha256,
        bytes=stored.bytes,
        synthesis=_synthesis(config) if stored.source == "synthetic" else None,
    )


def synthesize(config: Config) -> Path:
    """The folder of the recipe's synthetic checkpoint, written first unless it is there.

    Raises:
        ConfigError: the recipe has none, or checkpoint.source says otherwise.
        CheckpointError: it cannot be written.
    """
    if config.checkpoint.source != "synthetic":
        raise ConfigError(
            f"action=synthesize writes checkpoint.source=synthetic, but it is {config.checkpoint.source}; "
            "add checkpoint.source=synthetic"
        )
    return synthesized(_synthesis(config))


def _synthesis(config: Config) -> Synthesis:
    target, stored = config.recipe.target, config.checkpoint
    if not hasattr(target.type, "synthesize"):
        raise ConfigError(f"{config.recipe.name} writes no synthetic checkpoint; set another checkpoint.source")
    return Synthesis(
        recipe=config.recipe.name,
        settings=target.settings.model_dump(mode="json"),
        seed=stored.seed,
        write=partial(target.type.synthesize, target.settings),
        path=Path(stored.path).expanduser() if stored.path is not None else None,
    )
