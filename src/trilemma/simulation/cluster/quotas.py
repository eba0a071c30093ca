"""Who may have how much: queues with a nominal quota, cohorts in which they lend and borrow what is not used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trilemma.errors import InputError, UnknownName, shorten

Reclaim = Literal["never", "lower-priority", "any"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueQuota:
    """A queue, or a cohort of queues: ``nominal`` units are its own (None: no bound), ``borrowing`` more it may borrow and
    ``lending`` of its own it lends (None: no bound). ``weight`` is its share of what nobody owns.

    ``reclaim`` says whose jobs of borrowers it may take back, ``within`` whether a job of its own yields to a higher priority;
    ``where`` is the place in its file, for messages; ``alias`` is the queue that this is only another name of (a LocalQueue).
    """

    name: str
    parent: str = ""
    nominal: int | None = None
    borrowing: int | None = None
    lending: int | None = None
    weight: float = 1.0
    reclaim: Reclaim = "never"
    within: Literal["never", "lower-priority"] = "never"
    is_cohort: bool = False
    where: str = ""
    alias: str = ""

    def __post_init__(self) -> None:
        for name in ("nominal", "borrowing", "lending", "weight"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(
                    f"{self.where}queue {shorten(self.name)}: {name} {value:g} is negative; give 0 or more"
                )


class QuotaNode:
    """One queue or cohort as it fills: quota of its whole subtree, what is used of it, in units of the cluster."""

    __slots__ = ("children", "parent", "quota", "subtree", "used")

    def __init__(self, quota: QueueQuota) -> None:
        self.quota = quota
        self.parent: QuotaNode | None = None
        self.children: list[QuotaNode] = []
        self.used = 0
        self.subtree = quota.nominal or 0

    @property
    def own(self) -> int:
        """What is never lent."""
        lending = self.quota.lending
        return 0 if lending is None else max(0, self.subtree - lending)

    @property
    def borrows(self) -> int:
        """Units beyond its nominal quota."""
        return max(0, self.used - self.subtree)

    def available(self) -> int:
        """Units that it could take now, its own and borrowed (Kueue, pkg/cache/scheduler/resource_node.go)."""
        if self.parent is None:
            return self.subtree - self.used
        above = self.parent.available()
        if self.quota.borrowing is not None:
            stored = self.subtree - self.own
            above = min(stored - max(0, self.used - self.own) + self.quota.borrowing, above)
        return max(0, self.own - self.used) + above

    def could_take(self) -> int:
        """Units that it could take were nothing used."""
        if self.parent is None:
            return self.subtree
        most = self.own + self.parent.could_take()
        return most if self.quota.borrowing is None else min(self.subtree + self.quota.borrowing, most)

    def add(self, units: int) -> None:
        local = max(0, self.own - self.used)
        self.used += units
        if self.parent is not None and units > local:
            self.parent.add(units - local)

    def remove(self, units: int) -> None:
        lent = self.used - self.own
        self.used -= units
        if self.parent is not None and lent > 0:
            self.parent.remove(min(units, lent))


class QuotaTree:
    """All queues by name. A queue without a nominal quota takes what there is."""

    def __init__(self, quotas: Iterable[QueueQuota], capacity_units: int) -> None:
        self.nodes: dict[str, QuotaNode] = {}
        self.capacity = capacity_units
        self._aliases: dict[str, str] = {}
        for one in quotas:
            if one.alias:
                self._aliases[one.name] = one.alias
                continue
            if one.name in self.nodes:
                raise InputError(f"{one.where}queue {shorten(one.name)} is stated twice; give each name once")
            self.nodes[one.name] = QuotaNode(one)
        self._join()

    def _join(self) -> None:
        for node in list(self.nodes.values()):
            above = node.quota.parent
            if above and above not in self.nodes:
                self.nodes[above] = QuotaNode(QueueQuota(name=above, is_cohort=True))
        for node in self.nodes.values():
            if node.quota.parent:
                node.parent = self.nodes[node.quota.parent]
                node.parent.children.append(node)
        for node in self.nodes.values():
            self._refuse_cycle(node)
        for node in self.nodes.values():
            if node.parent is None:
                _sum_subtree(node)

    def _refuse_cycle(self, node: QuotaNode) -> None:
        seen, at = [node.quota.name], node.parent
        while at is not None:
            if at.quota.name in seen:
                way = " → ".join([*seen[seen.index(at.quota.name) :], at.quota.name])
                raise InputError(f"{node.quota.where}cohorts go in a circle ({way}); let one of them have no parent")
            seen.append(at.quota.name)
            at = at.parent

    def queue(self, name: str) -> QuotaNode | None:
        """The node of a job's queue; None where no queue is stated at all. Raises `InputError` where it is not known."""
        if not self.nodes:
            return None
        name = self._aliases.get(name, name)
        if name not in self.nodes or self.nodes[name].quota.is_cohort:
            raise UnknownName("queue", name, self.queues(), hint=f"there are {', '.join(self.queues()[:6])}")
        return self.nodes[name]

    def queues(self) -> list[str]:
        return [name for name, node in self.nodes.items() if not node.quota.is_cohort]


def allows(node: QuotaNode | None, units: int) -> bool:
    """Whether the quota of a queue has room for ``units`` more."""
    if node is None or (node.quota.nominal is None and node.parent is None):
        return True
    return node.available() >= units


def _sum_subtree(node: QuotaNode) -> None:
    node.subtree = node.quota.nominal or 0
    for child in node.children:
        _sum_subtree(child)
        node.subtree += child.subtree - child.own
