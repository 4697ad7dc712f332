"""From configuration to core: Config → Parts → Plan → Core. The only place where parts meet."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

from torch import Tensor

from flare import ops
from flare.checkpoint.configured import source_of, written
from flare.checkpoint.source import locate
from flare.checkpoint.tensors import Checkpoint
from flare.config.compose import compose
from flare.config.config import Config
from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph, Extent, Manifest
from flare.contract.vocabulary import Vocabulary
from flare.device.loading import allocated, read_weights
from flare.device.memory import available_bytes, cuda_usable
from flare.device.open import graph_bytes, open_device
from flare.device.replay import Program, Progress, ReplayDevice
from flare.drafting.contract import Drafter
from flare.layers.rows import RoundShape
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.catalog import CatalogRequest, catalog
from flare.plan.declarations import Declarations, Weight
from flare.plan.memory import Budget, CacheBudget, PackedBytes, memory_plan
from flare.plan.packing import packed_linear_bytes
from flare.plan.plan import (
    DeviceName,
    Plan,
    Selection,
    caches,
    law_dtype,
    only_pages,
    round_rows,
    scored_rows,
    selected_graphs,
    settled_graphs,
)
from flare.plan.shapes import batch_capacities, speculative_shapes
from flare.rounds.decode import decode
from flare.rounds.init import init
from flare.rounds.model import Model, declare_buffers
from flare.rounds.prefill import prefill, resume, scored_prefill
from flare.rounds.requests import RequestTable, declare_requests
from flare.rounds.snapshot import restore, snapshot
from flare.rounds.speculative import speculative_round
from flare.state.prefix import prefix_state

PROGRAMS = {
    "init": init,
    "prefill": prefill,
    "resume": resume,
    "scored_prefill": scored_prefill,
    "decode": decode,
    "speculative": speculative_round,
    "snapshot": snapshot,
    "restore": restore,
}


@dataclass(frozen=True)
class Parts:
    """Target and drafter with no storage, what they declare, and the plan made from it."""

    target: Target
    drafter: Drafter | None
    declared: tuple[tuple[str, Declarations], ...]
    plan: Plan


@dataclass(frozen=True)
class KnownMemory:
    """What a second planning knows: the memory there was at the first, and what graphs hold beside all items."""

    total_bytes: int
    graph_bytes: int


@dataclass(frozen=True)
class Core:
    """A prepared recipe: manifest, plan, storage and replayable graphs. Close it, or use it as a context manager.

    Attributes:
        origin: the file or folder the weights were read from.
        model: the bound parts, which the device's programs run over.
        storage: weights and state they are bound to.
        measured_costs: seconds of a round per (batch capacity, width), where the device rehearsed them; else empty.
    """

    recipe: str
    config: Config
    plan: Plan
    device: ReplayDevice
    vocabulary: Vocabulary
    origin: str
    model: Model
    storage: Storage
    measured_costs: Mapping[tuple[int, int], float]

    @property
    def manifest(self) -> Manifest:
        """The graphs this core replays."""
        return self.device.manifest

    def close(self) -> None:
        """Drain the device and free what it holds; an engine over this core must be closed first."""
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
    checkpoint = locate(source_of(config), progress)
    operators = ops.load(parts.plan.device)
    weights = _weights(parts, checkpoint, operators, config.preparation.linear_format, progress)
    if held := graph_bytes(parts.plan, lambda: trial(parts, weights, operators)):
        known = KnownMemory(parts.plan.memory.budget.total_bytes, held)
        parts = plan_parts(config, whole_catalog=whole_catalog, known=known)
        parts.plan.memory.check()
    storage = _with_state(parts, weights)
    model = bind(parts, storage, operators)
    device = replaying(parts.plan, model, storage.tensors(), progress)
    return Core(
        recipe=config.recipe.name,
        config=config,
        plan=parts.plan,
        device=device,
        vocabulary=checkpoint.vocabulary(),
        origin=checkpoint.origin,
        model=model,
        storage=storage,
        measured_costs=device.measure(model.requests),
    )


def replaying(plan: Plan, model: Model, owned: Iterable[Tensor] = (), progress: Progress | None = None) -> ReplayDevice:
    """A device that replays the plan's graphs over a bound model, or over one whose parts are being timed."""
    return open_device(plan, [bound_program(model, graph) for graph in plan.manifest.graphs], owned, progress)


def trial(parts: Parts, weights: Storage, operators: Operators) -> tuple[list[Program], list[Tensor]]:
    """Programs over as little state as one request needs, and that state: what a trial capture works on."""
    manifest = parts.plan.manifest
    least = replace(
        manifest.extent, pages=manifest.extent.pages_per_request, snapshots=min(manifest.extent.snapshots, 1)
    )
    small = replace(parts, plan=replace(parts.plan, manifest=replace(manifest, extent=least)))
    storage = _with_state(small, weights)
    model = bind(small, storage, operators)
    return [bound_program(model, graph) for graph in manifest.graphs], list(storage.state.values())


def plan_parts(config: Config, *, whole_catalog: bool = False, known: KnownMemory | None = None) -> Parts:
    """Steps one to five: parts without storage, declarations, catalog, memory plan. `plan.memory.check` refuses."""
    name, dtype = config.device(cuda_usable()), config.dtype()
    prepared = catalog(_catalog_request(config, name))
    graphs = prepared if whole_catalog else selected_graphs(prepared, selection(config))
    extent = _extent(config, graphs)
    rounds = RoundShape(extent.lanes, extent.width, extent.chunk)
    target: Target = config.recipe.target.type(config.recipe.target.settings, dtype, rounds)
    drafter = _drafter(config, target)
    extent = replace(extent, vocab=target.vocab)
    declared = declarations(target, drafter, extent, round_rows(graphs), dtype)
    memory = memory_plan(declared, extent, _budget(config, name, graphs, extent, known), _packed_bytes(config, name))
    models = [declarations for part, declarations in declared if part in ("target", "drafter")]
    paged = only_pages(models, absorbs=drafter is not None and drafter.absorbs)
    extent = replace(extent, pages=memory.pages, snapshots=memory.snapshots, paged=paged)
    manifest = Manifest(settled_graphs(graphs, extent), extent)
    return Parts(target, drafter, declared, Plan(name, dtype, config.threads(), prepared, manifest, memory))


def declarations(
    target: Target, drafter: Drafter | None, extent: Extent, rows: int, dtype: str
) -> tuple[tuple[str, Declarations], ...]:
    """Every part's declarations, in allocation order."""
    return (
        ("target", target.declare()),
        ("drafter", drafter.declare() if drafter is not None else Declarations()),
        ("requests", declare_requests(extent, target.feedback_width, target.output_width, dtype)),
        ("rounds", declare_buffers(extent, rows, law_dtype(dtype), learned=drafter is not None and drafter.absorbs)),
    )


def load(
    parts: Parts, checkpoint: Checkpoint, operators: Operators, linear_format: str, progress: Progress | None = None
) -> Storage:
    """Check headers, allocate what was planned, read and pack the weights."""
    return _with_state(parts, _weights(parts, checkpoint, operators, linear_format, progress))


def _weights(
    parts: Parts, checkpoint: Checkpoint, operators: Operators, linear_format: str, progress: Progress | None
) -> Storage:
    # The drafter's reader knows both sides of a checkpoint, so its report comes first and is whole.
    readers = {"drafter": parts.drafter.stored(checkpoint)} if parts.drafter is not None else {}
    readers["target"] = parts.target.stored(checkpoint)
    stored = [(readers[part], weight) for part, declared in parts.declared for weight in declared.weights]
    return read_weights(stored, parts.plan.device, operators, linear_format, progress)


def _with_state(parts: Parts, weights: Storage) -> Storage:
    declared = (declared for _, declared in parts.declared)
    return allocated(weights, declared, parts.plan.manifest.extent, parts.plan.device)


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
        requests=RequestTable(storage.state, extent, operators.requests),
        logits=storage.state["round.logits"],
        laws=storage.state["round.laws"],
        proposals=storage.state.get("round.proposals"),
        prefix=prefix_state((declared for _, declared in parts.declared), storage.state),
        extent=extent,
    )


def bound_program(model: Model, graph: ExecutionGraph) -> Program:
    """The round function of a graph, with everything but its frame decided."""
    return partial(PROGRAMS[graph.kind], model, graph)


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
        prompt_logprobs=config.preparation.prompt_logprobs,
    )


def selection(config: Config) -> Selection:
    """What `serving.*` takes from the prepared catalog."""
    return Selection(
        concurrency=config.serving.concurrency,
        depth=config.depth(),
        fixed_width=config.serving.fixed_width,
        speculating=config.serving.mtp_draft_tokens > 0 or config.preparation.mtp_only,
        prefix_cache=config.serving.prefix_cache,
    )


def _extent(config: Config, graphs: Sequence[ExecutionGraph]) -> Extent:
    """Sizes of frames and tables; the target tells `vocab`, memory then settles pages and snapshots."""
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
        scored_chunk=scored_rows(graphs),
    )


def _packed_bytes(config: Config, device: DeviceName) -> PackedBytes:
    def packed_bytes(weight: Weight) -> int | None:
        rows, columns = weight.shape
        linear_format = weight.packed_format(config.preparation.linear_format)
        return packed_linear_bytes(rows, columns, weight.dtype, linear_format, device)

    return packed_bytes


def _budget(
    config: Config,
    device: DeviceName,
    graphs: Sequence[ExecutionGraph],
    extent: Extent,
    known: KnownMemory | None,
) -> Budget:
    """Memory and wishes; a prefix cache asks for as many pages again as live requests can fill."""
    preparation, live_pages = config.preparation, extent.slots * extent.pages_per_request
    snapshot_bytes = None if preparation.snapshot_bytes == "auto" else preparation.snapshot_bytes
    total = preparation.memory_bytes
    if total == "auto":
        total = available_bytes(device) if known is None else known.total_bytes
    return Budget(
        total_bytes=total,
        headroom_bytes=preparation.headroom_bytes,
        wanted_pages=live_pages,
        needed_pages=extent.pages_per_request,
        cache=CacheBudget(live_pages, snapshot_bytes) if caches(graphs) else None,
        graph_bytes=0 if known is None else known.graph_bytes,
    )


def synthesize(config: Config) -> Path:
    """The folder of the recipe's synthetic checkpoint, written first unless it is there; raises what `written` says."""
    return written(config)
