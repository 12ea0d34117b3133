"""Communication between the processes of a run: messages between stages, groups, collectives."""
