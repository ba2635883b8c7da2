"""A minimum cut between two nodes of a network: Dinic's algorithm (E. A. Dinic, 1970).

A network goes in, and the nodes on the sink's side come out. Capacities are whole numbers, so the
algorithm ends.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class Network:
    """A directed network of numbered nodes, whose edges have capacities."""

    def __init__(self) -> None:
        self.edges: list[list[int]] = []  # by node: positions of the edges that leave it
        # by edge: where it leads; the reverse edge has the same number but for the last bit
        self.heads: list[int] = []
        self.capacity_left: list[int] = []  # by edge

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: int = INFINITE) -> None:
        for start, end, left in ((tail, head, capacity), (head, tail, 0)):
            self.edges[start].append(len(self.heads))
            self.heads.append(end)
            self.capacity_left.append(left)

    def cut(self, source: int, sink: int) -> list[bool]:
        """Which nodes lie on the sink's side of a minimum cut: of all such cuts, the one nearest to
        the sink.

        Raises ValueError where no finite cut exists.
        """
        while True:
            levels = self._levels(source)
            if levels[sink] < 0:
                return self._leads_to(sink)
            unused = [0] * len(self.edges)
            while self._augment(source, sink, levels, unused):
                pass

    def _levels(self, source: int) -> list[int]:
        levels = [-1] * len(self.edges)
        levels[source] = 0
        queue = deque([source])
        while queue:
            tail = queue.popleft()
            for e in self.edges[tail]:
                if self.capacity_left[e] and levels[self.heads[e]] < 0:
                    levels[self.heads[e]] = levels[tail] + 1
                    queue.append(self.heads[e])
        return levels

    def _leads_to(self, sink: int) -> list[bool]:
        """Which nodes the sink can still be reached from."""
        leads = [False] * len(self.edges)
        leads[sink] = True
        stack = [sink]
        while stack:
            for e in self.edges[stack.pop()]:
                tail = self.heads[e]
                if self.capacity_left[e ^ 1] and not leads[tail]:
                    leads[tail] = True
                    stack.append(tail)
        return leads

    def _augment(self, source: int, sink: int, levels: list[int], unused: list[int]) -> bool:
        """Send flow along one more path that descends the levels; `unused` is each node's first
        edge not given up."""
        path: list[int] = []
        tail = source
        while tail != sink:
            edges = self.edges[tail]
            while unused[tail] < len(edges):
                e = edges[unused[tail]]
                if self.capacity_left[e] and levels[self.heads[e]] == levels[tail] + 1:
                    break
                unused[tail] += 1
            else:
                if not path:
                    return False
                e = path.pop()
                tail = self.heads[e ^ 1]
                unused[tail] += 1
                continue
            path.append(e)
            tail = self.heads[e]
        flow = min(self.capacity_left[e] for e in path)
        if flow >= INFINITE:
            raise ValueError("no finite cut")
        for e in path:
            self.capacity_left[e] -= flow
            self.capacity_left[e ^ 1] += flow
        return True
