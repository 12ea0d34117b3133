"""Training section: optimizer, precision, steps and data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from meshwave.engine.document.devices import AttentionKernel, Graphs
from meshwave.engine.frozen import FileName, Part, Printable, nullable, option_labels

MAX_STEPS = 10_000_000
"""Maximum number of optimizer steps of a run."""
MAX_BUCKETS = 1_000
"""Maximum number of buckets of gradients of a stage."""
MAX_DOCUMENTS = 100_000
"""Maximum number of lengths of documents in a design."""
Sharding = Annotated[
    Literal["none", "optimizer", "gradients", "parameters"],
    option_labels(
        {
            "none": "None",
            "optimizer": "Optimizer states (ZeRO-1)",
            "gradients": "Gradients too (ZeRO-2)",
            "parameters": "Parameters too (ZeRO-3, FSDP)",
        }
    ),
]
ContextExchange = Annotated[Literal["ring", "all_gather"], option_labels({"ring": "Ring", "all_gather": "All-gather"})]
_DECAYS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "sqrt": lambda progress: 1 - math.sqrt(progress),
}
"""Learning rate relative to its maximum, by the part of the decay that has passed."""
DocumentLength = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Training(Part):
    """Settings of a training run."""

    micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Number of sequences in one microbatch of one data-parallel replica."""
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 20
    """Number of optimizer steps."""
    optimizer: Annotated[Literal["adamw", "sgd"], option_labels({"adamw": "AdamW", "sgd": "SGD"})] = "adamw"
    """Optimizer of the weights."""
    lr: PositiveFloat = 3e-4
    """Learning rate; its maximum if there is a learning-rate schedule."""
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine", "sqrt"],
        option_labels(
            {
                "constant": "Constant",
                "linear": "Linear decay",
                "cosine": "Cosine decay",
                "sqrt": "Square-root decay",
            }
        ),
    ] = "constant"
    """Learning rate after the warm-up; a decay ends at the last step. cosine: half a cosine (Loshchilov and Hutter,
    arXiv:1608.03983). sqrt: one minus the square root of the progress (Hägele et al., arXiv:2405.18392)."""
    warmup_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    """Number of steps in which the learning rate grows linearly to its largest value."""
    decay_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = nullable("all steps after the warm-up")
    """Number of last steps in which the learning rate decays; before them, it keeps its largest value (warmup-stable-decay,
    arXiv:2404.06395)."""
    min_lr_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Smallest learning rate of a learning-rate schedule, as a fraction of the largest one."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    clip_norm: PositiveFloat | None = nullable("no clipping")
    """Maximum gradient norm; larger gradients are scaled down."""
    precision: Annotated[
        Literal["fp32", "bf16", "pure_bf16", "fp64"],
        option_labels(
            {"fp32": "fp32", "bf16": "bf16 mixed precision", "pure_bf16": "bf16 without fp32 weights", "fp64": "fp64"}
        ),
    ] = "fp32"
    """Compute precision. bf16: the optimizer updates master weights in fp32. pure_bf16: weights, gradients and moments
    of the optimizer are in bf16 too, so that an update of less than about 0.4% of a weight can be lost."""
    bf16_gradients: bool = False
    """With bf16, accumulate and reduce gradients in bf16 instead of fp32. The rounding errors of gradients grow with
    the number of microbatches and of data-parallel replicas."""
    sharding: Sharding = "none"
    """Training state that is sharded over the data-parallel replicas of a mesh instead of replicated. Sharded parameters are
    gathered when they are needed."""
    unsharded_stages: Annotated[int, Field(ge=0, le=1_000)] | None = nullable(
        "3 if the model has several stages, otherwise 0"
    )
    """With sharded parameters, the number of stages whose weights a mesh holds unsharded at once. The weights of the stages
    that the mesh computes next are gathered ahead of time (UNSHARD), and those of other stages are freed (RESHARD). With 0,
    computations gather their weights block by block."""
    gradient_reduction: Annotated[
        Literal["microbatch", "step"], option_labels({"microbatch": "After each microbatch", "step": "Once per step"})
    ] = "microbatch"
    """Reduce-scatter of sharded gradients. microbatch: each block reduces its gradients in the backward of every
    microbatch. step: the gradients of a stage are reduced once, after its last backward, as in
    torch.distributed.pipelining; until then, each device holds all gradients of the stage."""
    gradient_buckets: Annotated[int, Field(ge=1, le=MAX_BUCKETS)] = 1
    """Largest number of parts (buckets) in which the gradients of a stage are reduced once per step. The layers of a stage are
    divided by their parameters, from the last to the first, and a bucket is reduced while the last backward of the stage
    computes the gradients of the next one. With 1, the reduction begins after that backward and can hide only behind other
    stages."""
    sequence_parallel: bool = False
    """Shard the tokens of norms, residual sums and messages over the tensor-parallel devices, which reduces the
    activations stored there (Korthikanti et al., arXiv:2205.05198)."""
    context_parallel: ContextExchange = "ring"
    """Exchange of keys and values between context-parallel devices, which divide the tokens of each sequence. ring:
    each device passes keys and values on to the next one while it computes attention to them (Liu et al.,
    arXiv:2310.01889). all_gather: the devices gather all keys and values before attention (Llama 3, arXiv:2407.21783,
    section 3.3.2)."""
    activation_offload: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the activations of each stage that are in host memory between the forward and the backward (Rhu et al.,
    arXiv:1602.08124). Activations are copied while the device computes; a stage waits for copies that take longer than
    its computation. Inputs and outputs of stages stay on the device, and so do recomputed activations."""
    linear_precision: Annotated[
        Literal["same", "fp8", "fp4"],
        option_labels({"same": "Compute precision", "fp8": "fp8", "fp4": "fp4 (predictions only)"}),
    ] = "same"
    """Number format of the matrix products of linear layers and experts; the router keeps its own. fp8: runs scale each
    tensor by its largest value, and need devices that multiply in fp8 (NVIDIA: compute capability 8.9 or higher) or
    CPUs."""
    tensor_parallel_overlap: bool = False
    """Split the gathers and scatters of sequence parallelism into chunks and overlap them with the adjacent matrix
    products."""
    blocking_launches: bool = False
    """The host waits for each kernel before it launches the next one, as with CUDA_LAUNCH_BLOCKING=1. For devices with
    built-in performance constants, predictions add the time between kernels to each operator."""
    blocking_gathers: bool = False
    """With sharded parameters, the device waits for the collective of each weight matrix before it continues, so that
    computation hides none of them, as in ZeRO-3 of DeepSpeed 0.3. For devices with built-in performance constants,
    predictions add the time of the kernels that copy each device's part."""
    cuda_graphs: Graphs = "none"
    """Kernels that CUDA graphs launch instead of the host. router: those of the router and of shared experts. attention: those
    of attention, too. step: all kernels of a step. For devices with built-in performance constants, predictions assume 2 µs
    instead of the usual fixed time of each of these kernels."""
    attention_kernel: AttentionKernel = "default"
    """Attention kernel. default: the usual fused kernel, which keeps the scores on chip; runs let torch choose.
    FlashAttention-2 (arXiv:2307.08691), FlashAttention-3 (arXiv:2407.08608) and the attention of cuDNN differ in speed on
    Hopper devices. unfused: several kernels, which move the scores through memory. Runs refuse a kernel that torch does not
    have for their device and precision."""
    compile: bool = False
    """Compile each block with torch.compile before its first step, which takes about a minute. Blocks with experts
    or sharded state, tensor-parallel blocks and stages with a split backward are not compiled. For devices with
    built-in performance constants, the prediction assumes fused elementwise operators; for others, it does not change."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initial weights and of the order of the data."""
    data: FileName | None = nullable("the built-in sample text")
    """File name of the data to train on: a text, JSON lines with texts under the key text (.jsonl), parquet files with
    texts in the column text (.parquet), or tokens of nanoGPT (.bin) or Megatron (.bin with an .idx beside it)."""
    tokenizer: FileName | None = nullable("the bytes of the text are its tokens")
    """File name of the tokenizer of a text, in the format of Hugging Face (tokenizer.json), beside the data."""
    end_of_text: Annotated[str, Field(min_length=1, max_length=60), Printable] | None = nullable("a newline")
    """Token of the tokenizer that ends each document of JSON lines or parquet, such as <|endoftext|>. Documents follow each
    other, so that a sequence can contain several of them."""
    document_end: (
        Annotated[int, Field(ge=0)]
        | Annotated[Literal["end_of_text"], option_labels({"end_of_text": "End-of-text token"})]
        | None
    ) = nullable("attention crosses the boundaries of documents")
    """ID of the token that ends each document, such as 50256 for GPT-2, or 10 (the newline) if each line of a text is a
    document. end_of_text: the token given as end of text, or the newline character for a text without a tokenizer; its ID
    is looked up at launch. Tokens attend to tokens of their own document only, and positions restart with each
    document."""
    document_lengths: Annotated[tuple[DocumentLength, ...], Field(min_length=1, max_length=MAX_DOCUMENTS)] | None = (
        nullable("each sequence is one document")
    )
    """Lengths of consecutive documents in tokens, for predictions of designs in which a token ends each document.
    Documents fill the sequences in order, and the list is repeated; a document that does not fit at the end of a
    sequence continues in the next one. The attention of each microbatch takes the time of its own documents. If
    documents are padded, each sequence has the length of the next document."""
    pad_documents: bool = False
    """Train on one document per sequence instead of packing documents into sequences of equal length. A document is
    truncated to the sequence length of the model, and the sequences of a microbatch are padded to its longest one, so
    that microbatches differ in time and in the size of their messages. Padding has no loss; the loss of a step is the
    mean over its microbatches."""
    eval_every: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = nullable("no evaluation")
    """Number of steps between evaluations of the loss on held-out data; one more evaluation follows the last step."""
    eval_batches: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Number of batches of an evaluation, each as large as that of a step; they are the same in every evaluation."""
    eval_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of the text, taken from its end, that is held out for evaluations."""

    @property
    def product_precision(self) -> Literal["fp32", "bf16", "fp64"]:
        """Number format of matrix products, unless ``linear_precision`` says otherwise."""
        return "bf16" if self.precision == "pure_bf16" else self.precision

    @property
    def document_end_id(self) -> int | None:
        """ID of the token that ends each document; a launch has looked it up."""
        assert self.document_end != "end_of_text", "a launch replaces it"
        return self.document_end

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step; steps are counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.lr
        start = max(self.warmup_steps, 0 if self.decay_steps is None else self.steps - self.decay_steps)
        progress = min(max(step - start, 0) / max(self.steps - start, 1), 1.0)
        share = _DECAYS[self.lr_schedule](progress)
        return self.lr * (self.min_lr_factor + (1 - self.min_lr_factor) * share)

    def is_evaluated_after(self, step: int) -> bool:
        """Return True if an evaluation follows a step; steps are counted from 0."""
        return self.eval_every is not None and ((step + 1) % self.eval_every == 0 or step + 1 == self.steps)

    @property
    def shards_gradients(self) -> bool:
        """True if each device keeps only its share of reduced gradients."""
        return self.sharding in ("gradients", "parameters")

    @property
    def scatters_blocks(self) -> bool:
        """True if the backward of every microbatch reduce-scatters the gradients of each block."""
        return self.shards_gradients and self.gradient_reduction == "microbatch"
