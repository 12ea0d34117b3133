"""Arguments of Megatron-LM: round trips, published launch scripts, and what is refused or listed."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest

from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.experts import Experts
from meshwave.engine.document.training import Training
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.imports import imports, load_import
from meshwave.engine.predict.prediction import predict
from meshwave.engine.trainers.jobs import find_omissions, job_design
from meshwave.engine.trainers.megatron import read_job, write_arguments
from tests.engine.trainers.drawn_designs import draw_design


def script(design: Design, layers: tuple[int, ...]) -> str:
    words = [f"--nnodes 1 --nproc-per-node {len(design.process_devices)}"]
    words += [" ".join([name, *map(shlex.quote, values)]) for name, values in write_arguments(design, layers).items()]
    return "\n".join(words)


def stages(design: Design) -> tuple[int, ...]:
    return design.pipeline.stages or (design.model.layers,)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_arguments_are_read_back_as_the_same_design(seed: int) -> None:
    design = draw_design(seed)
    plain = design.model_copy(update={"training": Training(), "experts": Experts()})

    job = read_job(script(design, stages(design)))

    assert job_design(job, "", plain, draft=True).to_json() == design.to_json()
    listed = {problem.code for problem in find_omissions(design, stages(design), job, "Megatron-LM")}
    assert listed <= {"padded_vocabulary", "counterpart_transfers"}


LLAMA3_8B = """
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
    --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
    --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu
    --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p
    --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 --global-batch-size 128
    --train-samples 1953125000 --lr-decay-samples 1949218748 --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001
    --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --bf16 --grad-reduce-in-bf16 --fp8-format hybrid
    --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather --mock-data --vocab-size 128256
"""
MIXTRAL_8X7B = """
    --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336 --num-attention-heads 32 --normalization RMSNorm --position-embedding-type rope --swiglu
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 --no-masked-softmax-fusion
    --no-position-embedding --rotary-base 1000000 --num-experts 8 --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000
    --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 0.1 --lr-warmup-iters 500 --bf16
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8
    --use-distributed-optimizer --sequence-parallel --vocab-size 32000
"""
QWEN3_30B = """
    --micro-batch-size 1 --bf16 --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope
    --normalization RMSNorm --swiglu --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32
    --group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm --num-experts 128
    --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-router-dtype fp32 --moe-aux-loss-coeff 1e-3
    --seq-length 4096 --max-position-embeddings 40960 --make-vocab-size-divisible-by 1187 --rotary-base 1000000
    --sequence-parallel --vocab-size 151936
"""
DEEPSEEK_V3 = """
    --micro-batch-size 1 --bf16 --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope
    --normalization RMSNorm --swiglu --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432
    --num-attention-heads 128 --kv-channels 128 --multi-latent-attention --kv-lora-rank 512 --v-head-dim 128
    --q-lora-rank 1536 --qk-head-dim 128 --qk-layernorm --qk-pos-emb-head-dim 64 --num-experts 256
    --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 --moe-router-score-function sigmoid
    --moe-router-bias-update-rate 1e-3 --moe-router-enable-expert-bias --moe-router-topk 8 --moe-router-num-groups 8
    --moe-router-group-topk 4 --moe-router-pre-softmax --moe-router-topk-scaling-factor 2.5
    --moe-shared-expert-intermediate-size 2048 --moe-aux-loss-coeff 1e-4 --moe-router-load-balancing-type seq_aux_loss
    --seq-length 4096 --max-position-embeddings 163840 --make-vocab-size-divisible-by 1280 --rotary-base 10000
    --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 --recompute-activations --vocab-size 129280
    --pipeline-model-parallel-size 16 --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 2
    --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 --use-distributed-optimizer --sequence-parallel
    --global-batch-size 1024
"""
GPT3_175B = """
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048
    --micro-batch-size 1 --global-batch-size 1536 --train-iters 500000 --weight-decay 0.1 --clip-grad 1.0 --fp16
    --lr 6.0e-5 --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --tensor-model-parallel-size 8
    --pipeline-model-parallel-size 16
"""


@pytest.mark.parametrize(
    ("arguments", "parameters", "devices"),
    [
        (LLAMA3_8B, 8_030_261_248, 1),
        (MIXTRAL_8X7B, 46_702_792_704, 32),
        (QWEN3_30B, 30_532_122_624, 1),
        (DEEPSEEK_V3, 671_026_419_200, 1024),
        (GPT3_175B, 174_604_259_328, 128),
    ],
    ids=["llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt3-175b"],
)
def test_published_launch_scripts_have_the_published_number_of_parameters(
    arguments: str, parameters: int, devices: int
) -> None:
    design = imports["megatron"].read(arguments, "published").design

    assert parameter_counts(design.model)[0] == parameters
    assert len(design.process_devices) == devices


def test_the_exported_script_of_an_example_is_imported_as_the_same_job(tmp_path: Path) -> None:
    design = load_design(example("06-data-parallel"))
    path = tmp_path / "job.sh"
    path.write_bytes(exports["megatron"].to_bytes(predict(design)))

    found, notes = load_import(path, into=design)

    assert [(mesh.devices, mesh.axes) for mesh in found.meshes] == [(mesh.devices, mesh.axes) for mesh in design.meshes]
    assert (found.pipeline.microbatches, found.cluster) == (design.pipeline.microbatches, design.cluster)
    assert parameter_counts(found.model) == parameter_counts(design.model)
    assert {note.code for note in notes} <= {"arguments_without_effect"}


SCRIPT = """
# launches a small model
NNODES=${NNODES:-2}
TP=2  # tensor parallel
MODEL_ARGS=(
    --num-layers 8
    --hidden-size=64 --num-attention-heads 4  # one per line
    --seq-length 32
    --vocab-size 512
)
TRAINING_ARGS="
    --micro-batch-size 1 \\
    --global-batch-size 16 \\
    --bf16
"
if [ "$FAST" = 1 ]; then
    TRAINING_ARGS="$TRAINING_ARGS --use-distributed-optimizer"
fi
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS \\
    --tensor-model-parallel-size $TP --data-path $DATA --save "$OUT/checkpoints" --renamed-later 3
"""


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("", 1),
        ("--overlap-grad-reduce --ddp-num-buckets 6", 6),
        ("--overlap-grad-reduce --ddp-bucket-size 1000000000", 9),
        ("--overlap-grad-reduce", 201),
        ("--overlap-grad-reduce --use-megatron-fsdp", 1),
    ],
)
def test_buckets_of_gradients_have_their_number_or_the_size_of_megatron(arguments: str, count: int) -> None:
    """A Llama 3 of 8.0e9 parameters on 8 copies; without a size, a bucket has 40 million parameters."""
    job = LLAMA3_8B.replace("--use-distributed-optimizer", "").replace("--overlap-grad-reduce", "")

    assert read_job(f"{job} {arguments}", devices=8).training["gradient_buckets"] == count


def test_expert_parallelism_divides_experts_only_into_buckets() -> None:
    """Divide the 45.1e9 parameters of the experts of Mixtral 8x7B by ep 8 and pp 4, and the other 1.6e9 by pp 4 alone."""
    arguments = f"{MIXTRAL_8X7B} --overlap-grad-reduce"
    experts = 32 * 8 * 3 * 4096 * 14336
    held = (46_702_792_704 - experts + experts / 8) / 4

    found = read_job(arguments, devices=32).training["gradient_buckets"]

    assert found == math.ceil(held / 40e6) == 46


def test_a_launch_script_is_read_without_running_it() -> None:
    job = read_job(SCRIPT)

    assert (job.degrees.dp, job.degrees.tp, job.degrees.devices) == (8, 2, 16)
    assert (job.model["hidden"], job.pipeline["microbatches"]) == (64, 2)
    assert (job.training["precision"], job.training["sharding"]) == ("bf16", "optimizer")
    assert {note.code: dict(note.params) for note in job.notes} == {
        "unset_variable": {"argument": "--data-path", "value": "$DATA"},
        "all_branches": {},
        "unknown_arguments": {"arguments": ["--renamed-later"]},
        "arguments_without_effect": {"arguments": ["--save"]},
    }


def test_ignored_arguments_are_all_named() -> None:
    names = [f"--new-{number}" for number in range(12)]

    (note,) = read_job(f"{QWEN3_30B} {' '.join(names)}").notes[:1]

    assert note.message == f"not used, and may change the model or its cost: {', '.join(names)}"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("--num-layers many", "argument_value"),
        ("--position-embedding-type mrope", "unsupported_argument"),
        ("--num-experts 4 --moe-layer-freq 2", "unsupported_pattern"),
        ("--global-batch-size 3 --micro-batch-size 2", "indivisible_global_batch"),
        ("--pipeline-model-parallel-size 5", "indivisible_layers"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tL", "unreadable_layout"),
        ("--tensor-model-parallel-size 0", "parallel_sizes"),
    ],
)
def test_arguments_that_a_design_cannot_represent_are_refused(change: str, code: str) -> None:
    plain = "--num-layers 8\n--hidden-size 64\n--num-attention-heads 4\n--seq-length 32\n"

    with pytest.raises(DesignError) as refused:
        read_job(plain + change)

    assert [problem.code for problem in refused.value.problems] == [code]


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        ("--pipeline-model-parallel-size 2", [6, 6]),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", [3, 3, 3, 3]),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3", [2] * 6),
        ("--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2", [2, 5, 5]),
        ("--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 4", [8, 4]),
        ("--num-layers 10 --pipeline-model-parallel-size 3 --account-for-embedding-in-pipeline-split"
         " --account-for-loss-in-pipeline-split", [3, 4, 3]),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E,t*5|(t|)*2,t*5L", [5, 1, 1, 5]),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t*6|t*6|L", None),
        ("--pipeline-model-parallel-size 2 --mtp-num-layers 1", [6, 7]),
        ("--pipeline-model-parallel-size 2 --mtp-num-layers 2 --pipeline-model-parallel-layout Et*12|mmL", [12, 2]),
        ("--pipeline-model-parallel-size 2 --mtp-num-layers 1 --pipeline-model-parallel-layout E|t*6|t*6m|L", None),
    ],
)  # fmt: skip
def test_layers_are_divided_into_stages_as_megatron_does(arguments: str, stages: list[int] | None) -> None:
    plain = "--num-layers 12 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --global-batch-size 8 "

    assert read_job(plain + arguments).pipeline["stages"] == stages


def test_properties_without_an_argument_are_listed() -> None:
    document = load_design(example("06-data-parallel")).model_dump(mode="json")
    document["pipeline"] = {"schedule": "gpipe", "microbatches": 4, "recompute": [0]}
    document["training"] |= {"compile": True, "data": "a.txt"}
    document["model"] |= {"kind": "transformer", "embedding_norm": True}

    listed = exports["megatron"].omissions(predict(parse_design(document)))

    assert listed == [
        "model.embedding_norm: on (Megatron-LM: off)",
        "schedule: gpipe (Megatron-LM: 1f1b)",
        "recompute: 0 (Megatron-LM: none)",
        "training.compile: on (Megatron-LM: off)",
        "training.data: a.txt (Megatron-LM: the built-in sample text)",
    ]


@pytest.mark.parametrize(
    ("name", "code"), [("01-first-wave", "megatron_placement"), ("09-bert-masked", "megatron_model")]
)
def test_a_design_that_megatron_cannot_train_is_refused(name: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        exports["megatron"].to_bytes(predict(load_design(example(name))))

    assert refused.value.problem.code == code
