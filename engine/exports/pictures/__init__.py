"""Pictures of timelines: their shapes and colours."""
