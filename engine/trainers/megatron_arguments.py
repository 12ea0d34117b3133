"""Arguments of Megatron-LM's ``pretrain_gpt.py``, and the keys of a design that they set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Value(NamedTuple):
    """Argument with one value that is also the value of a key."""

    name: str
    path: str
    """Key in its section, such as ``attention.head_dim``."""
    kind: type[int] | type[float]
    default: float | None = None
    """Value that Megatron-LM uses without the argument; None if the key is then null, or if the argument is required."""


class Flag(NamedTuple):
    """Argument without a value that sets a key to one value, and its absence to another."""

    name: str
    path: str
    present: object = True
    absent: object = False


MODEL = (
    Value("--num-layers", "layers", int),
    Value("--hidden-size", "hidden", int),
    Value("--ffn-hidden-size", "ffn", int),
    Value("--num-attention-heads", "heads", int),
    Value("--kv-channels", "attention.head_dim", int),
    Value("--seq-length", "sequence", int),
    Value("--vocab-size", "vocab", int),
    Value("--norm-epsilon", "norm.eps", float, 1e-5),
)
REQUIRED = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length")
ROPE = (
    Value("--rotary-base", "positions.theta", int, 10_000),
    Value("--rotary-percent", "positions.fraction", float, 1.0),
)
LATENT = (
    Value("--q-lora-rank", "attention.latent.q_rank", int),
    Value("--kv-lora-rank", "attention.latent.kv_rank", int, 32),
    Value("--qk-head-dim", "attention.latent.nope_dim", int, 128),
    Value("--qk-pos-emb-head-dim", "attention.latent.rope_dim", int, 64),
    Value("--v-head-dim", "attention.latent.value_dim", int, 128),
)
EXPERTS = (
    Value("--num-experts", "moe.experts", int),
    Value("--moe-ffn-hidden-size", "moe.ffn", int),
    Value("--moe-router-topk", "moe.top_k", int, 2),
    Value("--moe-router-topk-scaling-factor", "moe.scale", float, 1.0),
    Value("--moe-z-loss-coeff", "moe.z_loss", float, 0.0),
    Value("--moe-expert-capacity-factor", "moe.capacity_factor", float),
)
EXPERT_FLAGS = (Flag("--moe-shared-expert-gate", "moe.shared_gate"),)
TRAINING = (
    Value("--micro-batch-size", "micro_batch_size", int, 1),
    Value("--weight-decay", "weight_decay", float, 0.01),
    Value("--seed", "seed", int, 1234),
)
TRAINING_FLAGS = (
    Flag("--grad-reduce-in-bf16", "bf16_gradients"),
    Flag("--sequence-parallel", "sequence_parallel"),
    Flag("--tp-comm-overlap", "tensor_parallel_overlap"),
)
ACTIVATIONS = {
    "--swiglu": (True, "silu"),
    "--squared-relu": (False, "relu2"),
    "--openai-gelu": (False, "gelu_tanh"),
}
"""Arguments that choose the MLP: whether it is gated, and its activation function; by default a plain GELU."""
POSITIONS = {"learned_absolute": "learned", "rope": "rope", "none": "none"}
NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd"}
LLAMA3_SCALING = {
    "kind": "llama3",
    "original_context": 8192,
    "low_frequency_factor": 1.0,
    "high_frequency_factor": 4.0,
}
"""Scaling of rotary positions by --use-rope-scaling; only its factor can be chosen."""
YARN_CONTEXT = 4096
"""Original context length of the rotary positions of multi-latent attention, which has no argument."""
CONTEXT_EXCHANGES = {"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather"}
LR_STYLES = ("constant", "linear", "cosine")
STABLE_THEN_DECAY = "WSD"
"""Style of ``--lr-decay-style`` in which the learning rate decays in the last steps only."""
FINAL_DECAYS = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "sqrt"}
"""Learning-rate schedules by the values of ``--lr-wsd-decay-style``."""

OTHER_FLAGS = {
    "--bf16", "--fp16", "--add-qkv-bias", "--disable-bias-linear", "--group-query-attention", "--mock-data",
    "--moe-router-enable-expert-bias", "--moe-router-pre-softmax", "--multi-latent-attention", "--no-position-embedding",
    "--overlap-grad-reduce", "--overlap-moe-expert-parallel-comm", "--overlap-param-gather", "--qk-layernorm", "--recompute-activations",
    "--untie-embeddings-and-output-weights", "--use-distributed-optimizer", "--use-megatron-fsdp", "--use-torch-fsdp2",
    "--use-rope-scaling", "--use-rotary-position-embeddings", "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split", "--torch-fsdp2-no-reshard-after-forward",
}  # fmt: skip
OTHER_VALUES = {
    "--attention-backend", "--clip-grad", "--context-parallel-size", "--cp-comm-type", "--data-parallel-sharding-strategy", "--data-path",
    "--ddp-bucket-size", "--ddp-num-buckets",
    "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers", "--eval-interval", "--eval-iters",
    "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--fp4-format", "--fp8-format", "--global-batch-size",
    "--lr", "--lr-decay-iters", "--lr-decay-samples", "--lr-decay-style", "--lr-warmup-fraction", "--lr-warmup-iters", "--lr-warmup-samples",
    "--lr-wsd-decay-iters", "--lr-wsd-decay-samples", "--lr-wsd-decay-style",
    "--make-vocab-size-divisible-by", "--max-position-embeddings", "--microbatch-group-size-per-virtual-pipeline-stage",
    "--min-lr", "--mscale", "--mscale-all-dim", "--mtp-loss-scaling-factor",
    "--mtp-num-layers", "--moe-aux-loss-coeff", "--moe-layer-freq", "--moe-router-bias-update-rate", "--moe-router-group-topk",
    "--moe-router-load-balancing-type", "--moe-router-num-groups", "--moe-router-score-function", "--moe-shared-expert-intermediate-size",
    "--normalization",
    "--num-layers-per-virtual-pipeline-stage", "--num-query-groups", "--num-virtual-stages-per-pipeline-rank", "--padded-vocab-size",
    "--optimizer", "--pipeline-model-parallel-layout", "--pipeline-model-parallel-size", "--position-embedding-type",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--rope-scaling-factor", "--rope-type",
    "--rotary-scaling-factor", "--rotary-seq-len-interpolation-factor", "--sgd-momentum", "--softmax-type", "--split",
    "--tensor-model-parallel-size", "--train-iters", "--train-samples",
    "--window-attn-skip-freq", "--window-size", "--nnodes", "--nproc-per-node",
}  # fmt: skip
_TABLES: Sequence[Value] = (*MODEL, *ROPE, *LATENT, *EXPERTS, *TRAINING)
FLAGS = OTHER_FLAGS | {flag.name for flag in (*EXPERT_FLAGS, *TRAINING_FLAGS)} | set(ACTIVATIONS)
"""Arguments without a value that are read."""
SINGLE_VALUES = OTHER_VALUES | {value.name for value in _TABLES}
"""Arguments with one value that are read."""

NO_EFFECT = {
    "--accumulate-allreduce-grads-in-fp32", "--adam-eps", "--adam-beta1", "--adam-beta2", "--adlr-autoresume",
    "--apply-layernorm-1p", "--attention-dropout", "--attention-softmax-in-fp32", "--auto-detect-ckpt-format",
    "--calculate-per-token-loss", "--cross-entropy-fusion-impl", "--cross-entropy-loss-fusion",
    "--data-cache-path", "--dataloader-type",
    "--distributed-backend", "--empty-unused-memory-level", "--enable-experimental", "--exit-duration-in-mins",
    "--exit-interval", "--fp16-lm-cross-entropy", "--fp8-amax-compute-algo", "--fp8-amax-history-len",
    "--fp8-param-gather", "--fp8-recipe", "--hidden-dropout", "--hysteresis", "--init-method-std",
    "--initial-loss-scale", "--loss-scale", "--loss-scale-window", "--lr-warmup-init", "--manual-gc", "--manual-gc-interval",
    "--merge-file", "--min-loss-scale", "--moe-grouped-gemm", "--moe-pad-expert-input-to-capacity", "--moe-permute-fusion",
    "--moe-router-dtype", "--moe-router-fusion", "--moe-shared-expert-overlap", "--moe-token-dispatcher-type",
    "--moe-token-drop-policy", "--num-workers", "--result-rejected-tracker-filename", "--tiktoken-pattern",
    "--transformer-impl", "--use-flash-attn", "--use-mcore-models", "--vocab-file",
    "--master-addr", "--master-port", "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--standalone",
    "--max-restarts", "--ckpt-format", "--load", "--save", "--finetune", "--spec", "--profile",
}  # fmt: skip
"""Arguments that change neither the schedule of a design nor its predicted cost."""
NO_EFFECT_PREFIXES = (
    "--async-save", "--ckpt-", "--ddp-", "--dist-ckpt", "--distributed-timeout", "--exit-", "--log-", "--logging-",
    "--no-align", "--no-async", "--no-barrier", "--no-bias", "--no-check", "--no-ckpt", "--no-create", "--no-gradient",
    "--no-load", "--no-log", "--no-masked", "--no-mmap", "--no-persist", "--no-rope", "--no-save", "--profile-", "--save-",
    "--tensorboard-", "--timing-", "--use-checkpoint", "--use-dist-ckpt", "--wandb-", "--override-opt", "--load-",
    "--non-persistent", "--nvtx", "--record-memory", "--memory-snapshot", "--straggler", "--tokenizer-",
)  # fmt: skip
"""First letters of the names of further such arguments."""


def has_no_effect(name: str) -> bool:
    """Return True if an argument changes neither the schedule of a design nor its predicted cost."""
    return name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES)
