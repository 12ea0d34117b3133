"""Transfer orderings: methods to choose the senders and the order of unit tasks, one file each."""

from meshwave.engine.resharding.orderings._base import Answer, Ordering, orderings
