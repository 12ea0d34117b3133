"""Seconds of kernels by the constants of a device."""

import json

import pytest

from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.expert_blocks import expert_block
from meshwave.engine.costs.kernels import END_OPERATORS, LAST_OPERATORS, work_seconds
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.operators import Kernels, Work
from meshwave.engine.costs.transformer_layers import (
    end_operators,
    feed_forward,
    layer_operators,
    multi_token_input_operators,
)
from meshwave.engine.document import Cluster, Device, Link, parse_design
from meshwave.engine.document.devices import GRAPH_KERNEL_S, device_kinds
from meshwave.engine.document.expert_layers import device_rates, mesh_links, price_expert_layer
from meshwave.engine.experts import StepOp, price_expert_schedule
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict

SHEET = {"peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12}
PLAIN, NAMED = Device(name="my device", **SHEET), Device(name="A100-SXM4-80GB", **SHEET)
CONSTANTS = device_kinds()["A100-SXM4-80GB"].constants


def test_a_device_without_constants_has_one_efficiency():
    assert work_seconds(Work(312e12, 1.0, "product"), PLAIN) == pytest.approx(2.0)
    assert work_seconds(Work(0.0, 2e12), PLAIN) == pytest.approx(1.0)
    assert work_seconds(Work(312e12, 1.0, "fp8"), PLAIN) == pytest.approx(1.0)


def test_a_product_takes_a_fixed_time_and_that_of_its_flops():
    seconds = work_seconds(Work(312e12, 1.0, "product"), NAMED)

    assert seconds == pytest.approx(CONSTANTS.kernel_s + 1 / CONSTANTS.product_efficiency)


def test_fused_attention_skips_masked_pairs():
    whole, half = (work_seconds(Work(312e12, 1.0, "attention", share), NAMED) for share in (1.0, 0.5))

    assert whole - half == pytest.approx(0.5 / CONSTANTS.eager_attention_efficiency)


def test_attention_kernels_of_a_generation_differ_and_others_are_the_usual_one():
    def seconds(device, kernel):
        sheet = device_kinds()[device].model_dump(include={"name", *SHEET})
        return work_seconds(Work(1e15, 1.0, "attention"), Device(**sheet), Kernels(kernel, fuses_elementwise=True))

    hopper = [seconds("H200-SXM5-141GB", kernel) for kernel in ("flash_3", "cudnn", "flash_2")]
    assert hopper == sorted(set(hopper))
    assert seconds("H200-SXM5-141GB", "flash_2") > 1.5 * seconds("H200-SXM5-141GB", "default")
    assert seconds("A100-SXM4-80GB", "flash_2") == seconds("A100-SXM4-80GB", "default")


def test_unfused_attention_adds_the_time_of_its_scores():
    without, with_scores = (work_seconds(Work(312e12, size, "unfused-attention"), NAMED) for size in (0.0, 2e12))

    assert with_scores - without == pytest.approx(1 / CONSTANTS.memory_efficiency)


def test_elementwise_work_takes_a_fixed_time_and_that_of_its_bytes():
    eager, fused = (work_seconds(Work(0.0, 2e12), NAMED, Kernels(fuses_elementwise=each)) for each in (False, True))

    assert eager == pytest.approx(CONSTANTS.kernel_s + 1 / CONSTANTS.eager_memory_efficiency)
    assert fused == pytest.approx(CONSTANTS.kernel_s + 1 / CONSTANTS.memory_efficiency)
    assert work_seconds(Work(), NAMED) == 0.0


def test_launches_that_block_add_a_fixed_time_to_each_kernel():
    blocking = Kernels(blocks_launches=True)
    for work in (Work(0.0, 2e12), Work(312e12, 1.0, "product"), Work(312e12, 1.0, "unfused-attention")):
        assert work_seconds(work, NAMED, blocking) - work_seconds(work, NAMED) == pytest.approx(
            device_kinds()[NAMED.name].blocking_launch_s
        )
    assert work_seconds(Work(), NAMED, blocking) == 0.0


def test_a_graph_launches_kernels_faster_than_a_host():
    work = Work(312e12, 1.0, "product")
    saved = work_seconds(work, NAMED) - work_seconds(work, NAMED, Kernels(graphs="step"))

    assert saved == pytest.approx(CONSTANTS.kernel_s - GRAPH_KERNEL_S)


def test_a_graph_also_launches_the_kernels_of_experts():
    document = json.loads(example("16-gpt2-moe").read_text())
    document["cluster"]["device"] = NAMED.model_dump()
    host = device_rates(parse_design(document)).kernel_s
    document["training"]["cuda_graphs"] = "step"

    assert device_rates(parse_design(document)).kernel_s == GRAPH_KERNEL_S < host


@pytest.mark.parametrize(("graphs", "parts"), [("router", {"router"}), ("attention", {"router", "attention"})])
def test_graphs_of_parts_launch_the_kernels_of_these_parts_only(graphs, parts):
    document = json.loads(example("16-gpt2-moe").read_text())
    document["cluster"]["device"] = NAMED.model_dump()
    document["training"]["cuda_graphs"] = graphs
    design = parse_design(document)
    load, rates = device_workload(design, design.meshes[0]), device_rates(design)
    operators = expert_block(design, design.meshes[0], load).operators
    fixed = {
        each.name: work_seconds(each.forward, NAMED, load.kernels, each.part)
        - work_seconds(each.forward, NAMED, Kernels(graphs="step"))
        for each in operators
        if each.forward.bytes
    }

    assert {each.part for each in operators} == {"attention", "router", None}
    slower = CONSTANTS.kernel_s - GRAPH_KERNEL_S
    assert fixed == pytest.approx(
        {each.name: 0 if each.part in parts else slower for each in operators if each.name in fixed}
    )
    assert (rates.router_kernel_s, rates.kernel_s) == (GRAPH_KERNEL_S, CONSTANTS.kernel_s)


def test_the_inputs_and_gradients_of_8_bit_products_are_cast_at_the_memory_bandwidth():
    document = json.loads(example("16-gpt2-moe").read_text())
    document["cluster"]["device"] = NAMED.model_dump()
    document["training"]["linear_precision"] = "fp8"
    design = parse_design(document)
    load, hidden = device_workload(design, design.meshes[0]), design.model.hidden
    (product,) = (each for each in layer_operators(load) if each.name == "feed-forward in")
    wide, moved = load.ffn_hidden / load.tp, NAMED.memory_bandwidth * CONSTANTS.memory_efficiency

    for work, width in ((product.forward, hidden), (product.input_gradient, wide), (product.weight_gradient, 0)):
        casts = work_seconds(work, NAMED) - work_seconds(work._replace(cast_bytes=0.0), NAMED)
        assert casts == pytest.approx((2 + 1 + 1) * load.tokens * width / moved)
    priced = price_expert_layer(design, design.meshes[0])
    (experts,) = (each for each in priced.forward if each.step.op == StepOp.EXPERTS)
    rates = device_rates(design)._replace(cast_bytes=0.0)
    plain = price_expert_schedule(priced.name, priced.layer, mesh_links(design, design.meshes[0]), rates)
    (without,) = (each for each in plain.forward if each.step.op == StepOp.EXPERTS)
    assert experts.compute_s - without.compute_s == pytest.approx(
        priced.rows_per_device * 4 * (hidden + priced.layer.ffn_hidden) / moved
    )


def test_products_of_unfused_attention_use_tensor_cores_only_if_the_size_of_a_head_is_aligned():
    def slowdown(heads):
        document = json.loads(example("03-gpt-on-two-cores").read_text())
        document["model"] |= {"hidden": 192, "heads": heads}
        document["training"]["attention_kernel"] = "unfused"
        design = parse_design(document)
        (attention,) = (
            each for each in layer_operators(device_workload(design, design.meshes[0])) if each.name == "attention"
        )
        return {attention.forward.slowdown, attention.input_gradient.slowdown}

    assert slowdown(heads=12) == {1.0}
    assert slowdown(heads=16) == {16.0}


def test_links_of_a_known_device_sustain_a_share_of_the_drawn_bandwidth():
    link = Link(latency_s=1.0, bandwidth=100.0)
    plain, named = (
        Cluster(nodes=1, devices_per_node=2, device=device, intra_node=link, inter_node=link)
        for device in (PLAIN, NAMED)
    )

    assert (plain.link_inside_node, plain.link_between_nodes) == (link, link)
    assert named.link_inside_node.bandwidth == pytest.approx(100 * CONSTANTS.intra_node_efficiency)
    assert named.link_between_nodes.latency_s == CONSTANTS.inter_node_latency_s


def test_partial_recomputation_adds_a_part_of_the_forward_to_the_backward():
    def backward(recompute):
        document = json.loads(example("03-gpt-on-two-cores").read_text())
        document["pipeline"]["recompute"] = recompute
        document["cost"] = {"kind": "roofline"}
        (price, *_) = mesh_prices(parse_design(document))
        return price.layer.backward - price.layer.forward

    none, attention, operators, early, layers = map(
        backward, ("none", "attention", "operators", "layers-early-stop", "layers")
    )

    assert none < attention < operators < early < layers


def test_context_parallel_devices_share_the_tokens_of_a_sequence():
    def step(axes):
        document = json.loads(example("06-data-parallel").read_text())
        document["cost"] = {"kind": "roofline"}
        for mesh in document["meshes"]:
            mesh["axes"] = axes
        design = parse_design(document)
        return design.sequences_per_step, predict(design).numbers["makespan_s"]

    with_dp, with_cp = step({"dp": 2}), step({"cp": 2})

    assert with_cp[0] == with_dp[0] / 2
    assert with_cp[1] < with_dp[1]


def test_operators_that_recomputation_leaves_out_are_named_as_in_the_model():
    document = json.loads(example("14-tensor-parallel").read_text())
    sizes = {key: document["model"][key] for key in ("layers", "hidden", "heads", "sequence", "vocab")}
    document["model"] = {
        **sizes,
        "kind": "transformer",
        "embedding_norm": True,
        "logit_soft_cap": 30.0,
        "mtp_layers": 1,
    }
    design = parse_design(document)
    load = device_workload(design, design.meshes[0])
    layers = [*layer_operators(load), *feed_forward("shared experts", load, load.hidden)]

    ends = {each.name for each in end_operators(load, first=True, last=True)}
    images = parse_design(json.loads(example("21-u-net").read_text())).model
    ends |= {each.name for each in images.end_operators(images.workload(1), first=True, last=True)} - {"SiLU"}
    assert ends - {each.name for each in multi_token_input_operators(load)} == END_OPERATORS
    assert {each.name for each in layers} >= LAST_OPERATORS
