"""Who sends which slice, and when: one file an ordering."""

from meshwave.engine.resharding.orderings._base import Answer, Ordering, orderings

__all__ = ["Answer", "Ordering", "orderings"]
