"""Messages of benchmarks."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "no_matching_case": "no design of this benchmark has {word!r} in its name or group; the groups are {groups:list}",
    "no_accuracy_results": "there are no results to draw; measure some with meshwave bench accuracy",
    "unreadable_results": "cannot read {path}: {reason}",
    "invalid_results": "{path} is not a results file of this benchmark ({problem}); use another file",
    "unreadable_runs": "cannot read the published runs in {path}: {reason}",
    "option_of_other_parts": (
        "{options:list} {options:plural|applies|apply} only to {parts:list}; name the part to measure"
    ),
    "benchmark_process_failed": "process {process} of the benchmark failed: {reason}",
    "page_bench_without_chromium": "the benchmark of the page needs Chromium; {remedy}",
    "page_bench_without_playwright": "the benchmark of the page needs playwright: pip install playwright",
    "page_without_session": "the page at {link} has no session; see the log of the server",
    "refused_gesture": "the page refused the gesture {gesture}: {reason}",
    "connection_closed": "the server closed the connection: {reason}",
    "no_process_memory": "the server reports no memory: it is read from /proc, which exists on Linux only",
    "benchmark_run_failed": "{name}: {reason}",
    "no_first_step": "run {run} did not reach its first step: {reason}",
    "nothing_in_time": "no {what} within {seconds:.0f} seconds",
    "launch_option": "this option applies only to the part 'launch'; run meshwave bench launch",
    "runs_option": "--runs applies only to the part 'published'; run meshwave bench published --runs FILE",
    "run_unpriced": "the step time of the run could not be predicted: {reason}",
    "run_not_a_step": "the row is a measurement of kind {kind}, not a training step",
    "run_incomplete": "the source does not state {keys:list}",
    "run_unreadable": "the row has unusable values: {problems:list}",
    "run_device": "unknown device {device}; known devices: {known:list}",
    "run_mlp": "unsupported MLP {mlp} (supported: {known:list})",
    "run_recompute": "unsupported recomputation {recompute} (supported: {known:list})",
    "run_degrees": "tp x cp x pp x dp = {product}, but the run has {devices} devices",
    "run_batch": "a batch of {gbs} sequences cannot be divided into microbatches of {mbs} on {dp} replicas",
}
