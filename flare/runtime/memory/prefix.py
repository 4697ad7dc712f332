"""Prefix index: what is cached of earlier requests, found by tokens, dropped least recently used first.

It learns only what a settled launch reported as consumed. It holds a reference to every page and snapshot it names, so
what a running request shares outlives its eviction.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flare.contract.manifest import PAGE_TOKENS
from flare.runtime.memory.pages import Pages
from flare.runtime.memory.radix import NONE, Endpoint, Node, longest_endpoint, page_run, root, whole_pages
from flare.runtime.memory.snapshots import Snapshots


class Hit(NamedTuple):
    """A cached prefix to begin from.

    Attributes:
        consumed: its tokens; snapshot: whose row is restored, NONE where pages alone are the state.
        shared: its pages, read only; copied: the page after them, of which the reader needs a copy of its own, or NONE.
    """

    consumed: int
    snapshot: int
    shared: tuple[int, ...]
    copied: int


class Match(NamedTuple):
    """What the index knows about a prompt.

    Attributes:
        hit: the deepest point to begin from, None where there is none.
        branch: tokens of the whole pages it has in common with cached prefixes, where that is beyond the hit; else 0.
    """

    hit: Hit | None
    branch: int


class Run(NamedTuple):
    """What a request has consumed, to be kept.

    Attributes:
        tokens, pages: of the request, in order; near: a node its tokens lead to, to begin from.
    """

    salt: str
    tokens: Sequence[int]
    pages: Sequence[int]
    near: Node | None


class Prefixes:
    """A tree per salt, over references to pages and snapshots.

    Attributes:
        held: [pages] references the index holds of each page.
    """

    def __init__(self, pages: Pages, snapshots: Snapshots, paged: bool, absorbing: bool) -> None:
        """Args: paged: pages alone are the state at a page's end; absorbing: the drafter keeps pairs in pages."""
        self.held = np.zeros(pages.total, np.int32)
        self._pages, self._snapshots = pages, snapshots
        self._paged, self._absorbing = paged, absorbing
        self._roots: dict[str, Node] = {}
        self._endpoints: OrderedDict[Endpoint, None] = OrderedDict()
        self._leaves: OrderedDict[Node, None] = OrderedDict()  # without endpoints; kept only where pages are enough
        self._clock = 0

    def __len__(self) -> int:
        """Prefixes that can be begun from and are nobody's beginning."""
        return len(self._endpoints) + len(self._leaves)

    def find(self, tokens: Sequence[int], salt: str, limit: int, samples: bool) -> Match:
        """The deepest point of at most `limit` tokens to begin from.

        Args:
            samples: the first token is sampled after `limit` tokens, which needs a snapshot there or a token to run.
        """
        node = self._roots.get(salt)
        endpoint: Endpoint | None = None
        boundary: Node | None = None
        deepest = 0
        while node is not None:
            deepest = node.depth
            endpoint = longest_endpoint(node, tokens, limit) or endpoint
            if self._paged and deepest * PAGE_TOKENS <= limit - samples:
                boundary = node
            begin = deepest * PAGE_TOKENS
            node = node.children.get(page_run(tokens, deepest + 1)) if begin + PAGE_TOKENS <= limit else None
        hit = self._hit(endpoint, boundary)
        shared = deepest * PAGE_TOKENS
        reached = hit.consumed if hit is not None else 0
        return Match(hit, shared if reached < shared < limit and not self._paged else 0)

    def publish(self, run: Run, consumed: int, snapshot: int) -> tuple[Node, Endpoint | None]:
        """Keep the whole pages below `consumed`, and the snapshot of exactly that prefix.

        Args:
            snapshot: the reference to its row is taken over; where that prefix is kept already, the row is given back.
                NONE keeps pages only, and these only where pages alone can be begun from.

        Returns:
            The node of the last whole page, and the endpoint that keeps the prefix.
        """
        node = run.near if run.near is not None and run.near.alive else self._root(run.salt)
        depth = consumed // PAGE_TOKENS
        assert node.depth <= depth, "a request never goes back behind what it published"
        while node.depth < depth:
            tokens = page_run(run.tokens, node.depth + 1)
            node = node.children.get(tokens) or self._grow(node, tokens, run.pages)
        if snapshot == NONE:
            self._touch(node)
            self._prune(node)
            return node, None
        tail = tuple(run.tokens[depth * PAGE_TOKENS : consumed])
        endpoint = node.endpoints.get(tail)
        if endpoint is None:
            endpoint = self._keep(node, tail, snapshot, run.pages)
        else:
            self._snapshots.release(snapshot)
        self._touch(endpoint)
        return node, endpoint

    def drop(self, endpoint: Endpoint) -> None:
        """Forget one kept prefix, and the pages nothing else in the tree needs."""
        if endpoint not in self._endpoints:
            return  # it was evicted before
        del self._endpoints[endpoint]
        del endpoint.node.endpoints[endpoint.tail]
        self._snapshots.release(endpoint.snapshot)
        self._let_go(endpoint.pages())
        self._prune(endpoint.node)

    def demote(self, endpoint: Endpoint) -> None:
        """Let a kept prefix be the next to give way, unless somebody began from it."""
        if endpoint in self._endpoints and not endpoint.hits:
            endpoint.used = 0
            self._endpoints.move_to_end(endpoint, last=False)

    def evict(self) -> bool:
        """Drop what was used least recently; False where nothing is left."""
        endpoint, leaf = next(iter(self._endpoints), None), next(iter(self._leaves), None)
        if leaf is not None and (endpoint is None or leaf.used < endpoint.used):
            self._remove(leaf)
        elif endpoint is not None:
            self.drop(endpoint)
        return endpoint is not None or leaf is not None

    def evict_snapshot(self) -> bool:
        """Drop the least recently used prefix whose row becomes free by it."""
        for endpoint in self._endpoints:
            if self._snapshots.references(endpoint.snapshot) == 1:
                self.drop(endpoint)
                return True
        return False

    def references(self) -> tuple[list[int], list[int]]:
        """Every page and every snapshot the index refers to, as often as it does; walks all of it."""
        pages: list[int] = []
        snapshots: list[int] = []
        for node in self._nodes():
            pages += node.pages()
            for endpoint in node.endpoints.values():
                pages += endpoint.pages()
                snapshots.append(endpoint.snapshot)
        return pages, snapshots

    def check(self) -> None:
        """Raise AssertionError unless tree, lists and counts agree."""
        pages, snapshots = self.references()
        assert (np.bincount(pages, minlength=len(self.held)) == self.held).all(), "the index miscounts its pages"
        assert sorted(snapshots) == sorted(endpoint.snapshot for endpoint in self._endpoints)
        assert all(endpoint.node.alive for endpoint in self._endpoints)
        for node in self._nodes():
            assert node.alive
            assert node.depth == 0 or not node.leaf or node in self._leaves, "a useless node is kept"
            assert node not in self._leaves or (node.leaf and self._paged), "a node in use is listed as a leaf"

    def _hit(self, endpoint: Endpoint | None, boundary: Node | None) -> Hit | None:
        if endpoint is not None and (boundary is None or endpoint.consumed >= boundary.depth * PAGE_TOKENS):
            endpoint.hits += 1
            self._touch(endpoint)
            shared, copied = whole_pages(endpoint.node, endpoint.before), endpoint.page
            if not endpoint.tail and self._absorbing and shared:
                copied = shared.pop()  # its last pair will follow the reader's next token
            return Hit(endpoint.consumed, endpoint.snapshot, tuple(shared), copied)
        if boundary is not None and boundary.depth:
            self._touch(boundary)
            return Hit(boundary.depth * PAGE_TOKENS, NONE, tuple(whole_pages(boundary)), NONE)
        return None

    def _grow(self, parent: Node, run: tuple[int, ...], pages: Sequence[int]) -> Node:
        depth = parent.depth + 1
        before = pages[depth - 2] if self._absorbing and depth > 1 else NONE
        node = parent.children[run] = Node(parent, run, depth, pages[depth - 1], before)
        self._hold(node.pages())
        self._leaves.pop(parent, None)
        return node

    def _keep(self, node: Node, tail: tuple[int, ...], snapshot: int, pages: Sequence[int]) -> Endpoint:
        page = pages[node.depth] if tail else NONE
        before = pages[node.depth - 1] if tail and self._absorbing and node.depth else NONE
        endpoint = node.endpoints[tail] = Endpoint(node, tail, snapshot, page, before)
        self._hold(endpoint.pages())
        self._leaves.pop(node, None)
        return endpoint

    def _touch(self, entry: Node | Endpoint) -> None:
        self._clock += 1
        entry.used = self._clock
        if isinstance(entry, Endpoint):
            self._endpoints[entry] = None
            self._endpoints.move_to_end(entry)
        elif entry.leaf and entry.depth and self._paged:
            self._leaves[entry] = None
            self._leaves.move_to_end(entry)

    def _prune(self, node: Node) -> None:
        """Remove nodes that nothing needs, or list them as leaves where pages alone can be begun from."""
        while node.leaf and node.parent is not None:
            if self._paged:
                if node not in self._leaves:
                    self._leaves[node] = None
                    self._leaves.move_to_end(node, last=False)
                return
            node = self._unlink(node)
        if node.leaf:
            self._forget_root(node)

    def _remove(self, leaf: Node) -> None:
        del self._leaves[leaf]
        self._prune(self._unlink(leaf))

    def _unlink(self, node: Node) -> Node:
        assert node.parent is not None
        del node.parent.children[node.tokens]
        node.alive = False
        self._let_go(node.pages())
        return node.parent

    def _root(self, salt: str) -> Node:
        found = self._roots.get(salt)
        if found is None:
            found = self._roots[salt] = root()
        return found

    def _forget_root(self, node: Node) -> None:
        node.alive = False
        for salt in [salt for salt, known in self._roots.items() if known is node]:
            del self._roots[salt]

    def _hold(self, pages: list[int]) -> None:
        self._pages.share(pages)
        np.add.at(self.held, pages, 1)

    def _let_go(self, pages: list[int]) -> None:
        self._pages.release(pages)
        np.subtract.at(self.held, pages, 1)

    def _nodes(self) -> Iterable[Node]:
        found = list(self._roots.values())
        while found:
            node = found.pop()
            yield node
            found.extend(node.children.values())
