"""What every round works on: the bound parts of one core, and the frame it answers.

Shapes: B lanes, W rows per lane, V vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor

from flare.contract.frames import Arguments, Completion
from flare.contract.manifest import Extent
from flare.drafting.contract import Drafter
from flare.layers.rows import PageTables, Rows
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.ops.requests import Lanes
from flare.ops.sampling import LawRows
from flare.plan.declarations import Declarations, RoundBuffer
from flare.rounds.requests import RequestTable
from flare.state.prefix import PrefixState


@dataclass(frozen=True)
class Frame:
    """One of the two frames, as tensors over its buffers."""

    arguments: Arguments[Tensor]
    completion: Completion[Tensor]


@dataclass(frozen=True)
class Model:
    """Target, optional drafter, operators, request table and round buffers.

    Attributes:
        logits, laws: [rows, V] and [rows, V + 1], shared by all shapes; a round uses a prefix of rows.
        proposals: [D, lanes, V + 1] laws of a learned drafter's tokens; None without one.
        prefix: what a snapshot is made of.
    """

    target: Target
    drafter: Drafter | None
    ops: Operators
    requests: RequestTable
    logits: Tensor
    laws: Tensor
    proposals: Tensor | None
    prefix: PrefixState
    extent: Extent

    def pages(self, arguments: Arguments[Tensor], lanes: Lanes) -> PageTables:
        """The page tables of the first lanes of a frame."""
        tables = arguments.page_tables[: len(lanes.slots)]
        return PageTables(tables, self.extent.null_page, self.extent.context, self.ops.requests.causal_rows)

    def logits_of(self, output: Tensor, lanes: int, width: int) -> Tensor:
        """Head of the verified rows [B × W, H] → [B, W, V], valid until the next round."""
        logits = self.logits[: lanes * width]
        logits.copy_(self.target.head(output))
        return logits.view(lanes, width, -1)

    def faults(self, output: Tensor, active: Tensor) -> Tensor:
        """[B] bool: lanes with an active row [B, W] whose output [B × W, H] is not finite."""
        return self.ops.requests.find_faults(output, active, self.logits.dtype)

    def law(self, logits: Tensor, tokens: Tensor, length: Tensor, lanes: Lanes, arguments: Arguments[Tensor]) -> Tensor:
        """The target law of every row [B, W, V + 1], valid until the next round.

        Args:
            tokens: [B, W] each row's input, the end marker beyond the valid length.
            length: [B] valid drafts.
        """
        count, width = tokens.shape
        rows = LawRows(
            tokens=tokens,
            length=length,
            live=lanes.live,
            slots=lanes.slots,
            masks=arguments.masks[:count, :width],
            masked=arguments.masked[:count],
        )
        out = self.laws[: count * width].view(count, width, -1)
        return self.ops.target_law(logits, rows, self.requests.policy, out=out)

    def report_logprobs(
        self, logits: Tensor, emitted: Tensor, kept: Tensor, lanes: Lanes, completion: Completion[Tensor]
    ) -> None:
        """Write the log-probabilities of the kept tokens [B, W] where a lane asked for them."""
        self.ops.report_logprobs(
            logits, emitted, kept, lanes.logprobs, lanes.slots, completion.logprobs, completion.logprob_ids
        )


def declare_buffers(extent: Extent, rows: int, law_dtype: str, *, learned: bool) -> Declarations:
    """Logits and laws for the largest round of `rows` rows, and proposal laws where a drafter draws its tokens."""
    proposals = (max(extent.width - 1, 1), extent.lanes, extent.vocab + 1)
    return Declarations(
        state=(
            RoundBuffer("round.logits", (rows, extent.vocab), law_dtype),
            RoundBuffer("round.laws", (rows, extent.vocab + 1), law_dtype),
            *((RoundBuffer("round.proposals", proposals, law_dtype),) if learned else ()),
        )
    )


def last_rows(rows: Rows) -> Tensor:
    """Index [B] into the B × W rows of each lane's last active row (its first where none is active)."""
    lanes, width = rows.tokens.shape
    first = width * rows.counts.new_ones(lanes).cumsum(0) - width
    return first + (rows.counts - 1).clamp_min(0)
