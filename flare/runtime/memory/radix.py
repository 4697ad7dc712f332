"""The tree of cached prefixes: a node is 64 tokens and the page that holds them, an endpoint a prefix kept exactly.

A learned drafter keeps one pair per token, made of that token and the next one. So the last pair of a page depends on
the first token of the following page, and the page as it was completed differs from branch to branch: a node names, in
`before`, the page before its own as *its* first token completed it. Without such a drafter the parent's page serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flare.contract.manifest import PAGE_TOKENS

NONE = -1
Tokens = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Node:
    """A prefix of whole pages: its parent's tokens, then 64 of its own.

    Attributes:
        depth: pages down to here; the root has none.
        page: holds `tokens`; before: see the module, or NONE.
        endpoints: by the tokens (fewer than 64) that follow this node.
        alive: still part of the tree, so that a request may go on from it.
        used: when it was last met.
    """

    parent: "Node | None"
    tokens: Tokens
    depth: int
    page: int
    before: int
    children: "dict[Tokens, Node]" = field(default_factory=dict)
    endpoints: "dict[Tokens, Endpoint]" = field(default_factory=dict)
    alive: bool = True
    used: int = 0

    @property
    def leaf(self) -> bool:
        """Nothing in the tree needs it."""
        return not self.children and not self.endpoints

    def pages(self) -> list[int]:
        """The pages this node and its endpoints may hold references to."""
        return [page for page in (self.page, self.before) if page != NONE]


@dataclass(eq=False, slots=True)
class Endpoint:
    """A prefix whose whole state a snapshot holds.

    Attributes:
        page: holds the tail, NONE where there is none; before: see the module.
        hits: requests that began from it.
    """

    node: Node
    tail: Tokens
    snapshot: int
    page: int
    before: int
    hits: int = 0
    used: int = 0

    @property
    def consumed(self) -> int:
        """Tokens of the prefix."""
        return self.node.depth * PAGE_TOKENS + len(self.tail)

    def pages(self) -> list[int]:
        """The pages it holds references to, beside its nodes'."""
        return [page for page in (self.page, self.before) if page != NONE]


def root() -> Node:
    """The empty prefix."""
    return Node(None, (), 0, NONE, NONE)


def page_run(tokens: Sequence[int], depth: int) -> Tokens:
    """The tokens of the page that leads to a depth."""
    return tuple(tokens[(depth - 1) * PAGE_TOKENS : depth * PAGE_TOKENS])


def longest_endpoint(node: Node, tokens: Sequence[int], limit: int) -> Endpoint | None:
    """The longest prefix of `tokens`, at most `limit` long, that was kept exactly in this node's page."""
    begin = node.depth * PAGE_TOKENS
    lengths = {len(tail) for tail in node.endpoints}
    for length in sorted(lengths, reverse=True):
        if begin + length <= limit:
            found = node.endpoints.get(tuple(tokens[begin : begin + length]))
            if found is not None:
                return found
    return None


def whole_pages(node: Node, completed: int = NONE) -> list[int]:
    """The pages of a node's prefix in order.

    Args:
        completed: the node's own page as the following token completed it, NONE where its own serves.
    """
    pages: list[int] = []
    while node.parent is not None:
        pages.append(node.page if completed == NONE else completed)
        completed, node = node.before, node.parent
    return pages[::-1]
