"""State of the pages, without any drawing: sessions, edits, undo, predictions and jobs."""
