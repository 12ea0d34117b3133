"""Messages of benchmarks."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "no_matching_case": "no design of this benchmark has {word!r} in its name or group; the groups are {groups:list}",
    "no_accuracy_results": "there are no results to draw; measure some with meshwave bench accuracy",
    "unreadable_results": "cannot read {path}: {reason}",
    "invalid_results": "{path} is not a results file of this benchmark ({problem}); use another file",
}
