"""Programs: the ordered actions of every rank as data, their verification, edits, simulation and timelines."""
