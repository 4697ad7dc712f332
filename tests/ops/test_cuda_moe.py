"""CUDA routing and experts: few rows and many, both formats, rows apart, pairs sorted."""

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from flare.ops.formats.nvfp4 import Nvfp4, dequantise_nvfp4, quantise_nvfp4
from flare.ops.moe import DenseMatrices, Experts, Routing, cpu
from tests.goldens import golden
from tests.ops.test_moe import golden_experts
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

cuda = pytest.importorskip("flare.ops.moe.cuda")
formats = pytest.importorskip("flare.ops.formats.cuda")

EXPERTS, HIDDEN, FFN, CHOICES = 6, 48, 32, 2
REAL = (64, 2560, 640, 10)  # an eighth of the experts, at their real size
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def matrices(experts: int, hidden: int, ffn: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(experts, ffn, hidden), (experts, ffn, hidden), (experts, hidden, ffn)]
    return [draw(*shape, dtype=dtype, seed=seed) / shape[2] ** 0.5 for seed, shape in enumerate(shapes, 1)]


def stored(plain: list[Tensor], packed: bool) -> Experts:
    return Experts(*(quantise_nvfp4(matrix) if packed else DenseMatrices(matrix) for matrix in plain))


def on_cpu(weights: Experts) -> Experts:
    """Float64 copies of all matrices."""

    def widened(matrix: DenseMatrices | Nvfp4) -> DenseMatrices:
        if isinstance(matrix, DenseMatrices):
            return DenseMatrices(matrix.weight.cpu().double())
        return DenseMatrices(dequantise_nvfp4(Nvfp4(*(x.cpu() for x in vars(matrix).values()))).double())

    return Experts(*(widened(matrix) for matrix in (weights.gate, weights.up, weights.down)))


def expected(x: Tensor, routing: Routing, weights: Experts) -> Tensor:
    beside = Routing(routing.experts.cpu(), routing.weights.cpu().double())
    return cpu.experts(x.cpu().double(), beside, on_cpu(weights))


@every_dtype
def test_routing_equals_the_cpu(dtype: torch.dtype, tolerance: float) -> None:
    for experts, top_k in ((12, 3), (6, 6), (100, 10)):
        fused = draw(7, experts + 4, dtype=dtype, seed=experts)
        logits = fused[:, :experts]
        made, wanted = cuda.route(logits, top_k), cpu.route(logits.cpu(), top_k)
        assert torch.equal(made.experts.cpu(), wanted.experts)
        assert made.weights.dtype == torch.float32
        assert error(made.weights, wanted.weights) < 1e-6


def test_the_lower_id_wins_a_tie() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [0.0] * 6, [-1e30, 5.0, -1e30, -1e30, -1e30, -1e30]])
    assert cuda.route(logits.to(DEVICE), 3).experts.tolist() == [[1, 3, 2], [0, 1, 2], [1, 0, 2]]


@every_dtype
@pytest.mark.parametrize("packed", [False, True])
def test_any_number_of_rows_equals_the_cpu(packed: bool, dtype: torch.dtype, tolerance: float) -> None:
    weights = stored(matrices(EXPERTS, HIDDEN, FFN, dtype), packed)
    for rows in (1, 6, 17, 33):
        x = draw(rows, HIDDEN, dtype=dtype, seed=rows)
        routing = cuda.route(draw(rows, EXPERTS, seed=7), CHOICES)
        made = cuda.experts(x, routing, weights)
        assert made.dtype == dtype
        assert error(made, expected(x, routing, weights)) < tolerance, rows


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_has_the_same_bits_alone_among_few_and_among_many(packed: bool) -> None:
    weights, x = stored(matrices(EXPERTS, HIDDEN, FFN), packed), draw(40, HIDDEN)
    routing = cuda.route(draw(40, EXPERTS, seed=7), CHOICES)
    together = cuda.experts(x, routing, weights)
    for rows in (slice(0, 1), slice(3, 12), slice(7, 23)):
        part = cuda.experts(x[rows], Routing(routing.experts[rows], routing.weights[rows]), weights)
        assert torch.equal(part, together[rows])


SHAPE = cuda._Shape(64, 4, 2)
WAYS = {
    "few": (32, 128, ()),
    "seated": (0, 128, ()),
    "tiles of 16": (0, 0, (cuda._Many(1e9, 16, 2, SHAPE, SHAPE),)),
    "tiles of 32": (0, 0, (cuda._Many(1e9, 32, 1, SHAPE, SHAPE),)),
}


@pytest.fixture
def few_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for NVFP4, which serve bfloat16, in the type that the interpreter multiplies rightly."""
    monkeypatch.setattr(cuda, "_FEW_DTYPES", (torch.float32, torch.bfloat16))


def take(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Send any number of rows that one way."""
    for name, value in zip(("_FEW_ROWS", "_SEATED_ROWS", "_MANY"), WAYS[way], strict=True):
        monkeypatch.setattr(cuda, name, value)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, few_in_float32: None) -> str:
    take(monkeypatch, request.param)
    return request.param


def crowded(rows: int, experts: int, choices: int) -> Routing:
    """Distinct choices in no order, one expert that all rows choose at different places."""
    draws = torch.Generator().manual_seed(rows)
    ids = torch.stack([torch.randperm(experts - 1, generator=draws)[:choices] for _ in range(rows)])
    ids[torch.arange(rows), torch.arange(rows) % choices] = experts - 1
    return Routing(ids.to(DEVICE), torch.rand(rows, choices, generator=draws).to(DEVICE))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("hidden", "ffn", "several"), [(32, 16, (1, 8, 9, 17, 32)), (256, 48, (3,)), (144, 144, (1,))])
def test_rows_equal_float64_however_many_share_an_expert(hidden: int, ffn: int, several: tuple[int, ...]) -> None:
    weights = stored(matrices(EXPERTS, hidden, ffn), packed=True)
    for rows in several:
        x, routing = draw(rows, hidden, seed=rows), crowded(rows, EXPERTS, 3)
        assert error(cuda.experts(x, routing, weights), expected(x, routing, weights)) < 1e-6, rows


@pytest.mark.usefixtures("way")
def test_a_row_of_a_batch_has_the_bits_it_has_alone() -> None:
    weights, x, routing = stored(matrices(EXPERTS, 32, 16), packed=True), draw(18, 32), crowded(18, EXPERTS, 3)
    together = cuda.experts(x, routing, weights)
    for rows in (slice(0, 1), slice(16, 18), slice(3, 12)):
        part = cuda.experts(x[rows], Routing(routing.experts[rows], routing.weights[rows]), weights)
        assert torch.equal(part, together[rows])


@pytest.mark.usefixtures("few_in_float32")
def test_sorted_pairs_have_the_bits_of_those_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, x, routing = stored(matrices(EXPERTS, 144, 16), packed=True), draw(11, 144), crowded(11, EXPERTS, 3)
    looked_through = cuda.experts(x, routing, weights)
    take(monkeypatch, "seated")
    assert torch.equal(cuda.experts(x, routing, weights), looked_through)


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_poisoned_row_reaches_no_row_that_shares_its_expert() -> None:
    weights, x, routing = stored(matrices(EXPERTS, 32, 16), packed=True), draw(11, 32), crowded(11, EXPERTS, 3)
    clean = cuda.experts(x, routing, weights)
    x[[0, 2]] = torch.nan
    made, others = cuda.experts(x, routing, weights), torch.tensor([row not in (0, 2) for row in range(11)])
    assert made[[0, 2]].isnan().all()
    assert torch.equal(made[others], clean[others])


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_no_expert_is_read_that_none_chose() -> None:
    weights, x = stored(matrices(EXPERTS, 32, 16), packed=True), draw(9, 32)
    routing = Routing(torch.tensor([[4, 0]], device=DEVICE).repeat(9, 1), torch.full((9, 2), 0.5, device=DEVICE))
    clean = cuda.experts(x, routing, weights)
    for matrix in (weights.gate, weights.up, weights.down):
        assert isinstance(matrix, Nvfp4)
        matrix.scale_2[[1, 2, 3, 5]] = torch.nan
        matrix.scale[[1, 2, 3, 5]] = torch.nan
    assert torch.equal(cuda.experts(x, routing, weights), clean)


@pytest.mark.parametrize(
    ("rows", "seats"), [(1, 0), (32, 0), (33, 8), (128, 8), (129, 16), (512, 16), (513, 32), (1025, 64), (2049, 128)]
)
def test_the_number_of_rows_chooses_the_way(rows: int, seats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    sorted_of = cuda._sorted

    def noted(ids: Tensor, experts: int, seats: int) -> object:
        cut.append(seats)
        return sorted_of(ids, experts, seats)

    class Launch:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **options: None

    monkeypatch.setattr(cuda, "_sorted", noted)
    for module, names in (
        (cuda.cuda_few, ("gate_up_few", "down_few")),
        (cuda.cuda_many, ("arranged", "gate_up_many", "down_many")),
        (cuda.cuda_kernels, ("count_choices", "sort_pairs")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Launch())
    weights, ids = stored(matrices(EXPERTS, 32, 16), packed=True), torch.zeros(rows, 1, dtype=torch.int64)
    cuda._products(torch.zeros(rows, 32, dtype=torch.bfloat16), ids, weights)
    assert cut == [seats] * bool(seats)


def choices(rows: int, experts: int, chosen: int) -> Tensor:
    draws = torch.Generator().manual_seed(rows)
    return torch.stack([torch.randperm(experts, generator=draws)[:chosen] for _ in range(rows)]).to(DEVICE)


def wanted_tiles(ids: Tensor, experts: int, seats: int) -> list[tuple[int, ...]]:
    counts = ids.flatten().bincount(minlength=experts).tolist()
    made, start = [], 0
    for expert, count in enumerate(counts):
        made += [(expert, start + first, start + count) for first in range(0, count, seats)]
        start += count
    return made


SORTED = {
    "one pair": (choices(1, 1, 1), 1, 8),
    "one expert takes all": (torch.tensor([[3, 5]], device=DEVICE).repeat(70, 1), 6, 16),
    "every tile holds one pair more than whole tiles": (choices(17, 6, 6), 6, 16),
    "more experts than pairs": (choices(5, 100, 10), 100, 8),
    "many blocks": (choices(450, 40, 10), 40, 32),
}


@pytest.mark.parametrize("case", SORTED)
def test_pairs_are_sorted_by_expert_and_cut_into_tiles(case: str) -> None:
    ids, experts, seats = SORTED[case]
    made, wanted = cuda._sorted(ids, experts, seats), wanted_tiles(*SORTED[case])
    assert torch.equal(made.order.long(), ids.flatten().sort(stable=True).indices)
    tiles = [tuple(tile) for tile in made.tiles.T.tolist()]
    assert tiles[: len(wanted)] == wanted
    assert set(tiles[len(wanted) :]) <= {(0, 0, 0)}
    # A captured launch holds any choice: its size knows numbers only.
    other = torch.arange(ids.numel(), device=DEVICE).reshape(ids.shape) % experts
    assert cuda._sorted(other, experts, seats).number == made.number


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("rows", [4, 40])
def test_a_poisoned_row_names_experts_and_reaches_no_other_row(rows: int) -> None:
    weights, x, logits = stored(matrices(EXPERTS, HIDDEN, FFN), packed=True), draw(rows, HIDDEN), draw(rows, EXPERTS)
    clean = cuda.experts(x, cuda.route(logits, CHOICES), weights)
    x[2], logits[2] = torch.nan, torch.nan
    routing = cuda.route(logits, CHOICES)
    assert routing.experts[2].tolist() == [0, 1]
    others = torch.arange(rows, device=DEVICE) != 2
    assert torch.equal(cuda.experts(x, routing, weights)[others], clean[others])


@pytest.mark.parametrize("rows", [4, 40])
def test_unchosen_experts_are_not_read(rows: int) -> None:
    plain, x = matrices(EXPERTS, HIDDEN, FFN), draw(rows, HIDDEN)
    ids = torch.tensor([[0, 4]], device=DEVICE).repeat(rows, 1)
    routing = Routing(ids, torch.full((rows, 2), 0.5, device=DEVICE))
    clean = cuda.experts(x, routing, stored(plain, packed=False))
    for matrix in plain:
        matrix[[1, 2, 3, 5]] = torch.nan
    assert torch.equal(cuda.experts(x, routing, stored(plain, packed=False)), clean)


@every_dtype
def test_the_gated_sum_equals_the_cpu(dtype: torch.dtype, tolerance: float) -> None:
    routed, shared, gate = (draw(5, n, dtype=dtype, seed=n) for n in (1100, 1100, 1))
    wanted = cpu.add_gated(routed.cpu(), shared.cpu(), gate.cpu())
    assert error(cuda.add_gated(routed, shared, gate), wanted) < tolerance


def test_golden_nvfp4_experts_agree() -> None:
    tensors, params = golden("qwen38/moe_nvfp4_w4a16")
    weights = golden_experts(tensors)
    placed = Experts(
        *(Nvfp4(*(x.to(DEVICE) for x in vars(m).values())) for m in (weights.gate, weights.up, weights.down))
    )
    x = tensors["x"].float().to(DEVICE)
    routing = cuda.route(tensors["router_logits"].to(DEVICE), params["top_k"])
    assert torch.equal(routing.experts.cpu(), tensors["topk_ids"])
    assert error(cuda.experts(x, routing, placed), expected(x, routing, weights)) < 1e-6


@lru_cache
def real_weights() -> tuple[Experts, Experts]:
    """NVFP4 experts on the device, and what they mean in float64."""
    weights = stored([matrix.bfloat16() for matrix in matrices(*REAL[:3])], packed=True)
    return weights, on_cpu(weights)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 6, 24, 40, 128, 129, 512, 600, 1100, 4096])
def test_real_geometry_equals_float64(rows: int) -> None:
    experts, hidden, _, choices = REAL
    (weights, wide), dtype = real_weights(), torch.bfloat16
    x = draw(rows, hidden, dtype=dtype)
    routing = cuda.route(draw(rows, experts, dtype=dtype, seed=7), choices)
    made = cuda.experts(x, routing, weights)
    checked = torch.arange(0, rows, max(1, rows // 4))
    part = Routing(routing.experts.cpu()[checked], routing.weights.cpu()[checked].double())
    # Inputs and weights are exact; what is left is the last rounding, at most 2^−9.
    assert error(made.cpu()[checked], cpu.experts(x.cpu()[checked].double(), part, wide)) < 2**-8
    if rows <= cuda._SEATED_ROWS:
        alone = cuda.experts(x[:1], Routing(routing.experts[:1], routing.weights[:1]), weights)
        assert torch.equal(alone, made[:1])
    else:
        fewer = slice(0, 1 + max((int(kind.rows) for kind in cuda._MANY if kind.rows < rows), default=128))
        part = cuda.experts(x[fewer], Routing(routing.experts[fewer], routing.weights[fewer]), weights)
        assert torch.equal(part, made[fewer])
