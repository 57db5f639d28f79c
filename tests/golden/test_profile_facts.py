"""Every figure that is known of the MegEngine profile of ResNet-50, from `tilegrad analyze --json`.

`FACTS` maps each known figure (its path in resnet50_megengine_facts.json) to where our JSON has it. Counts and bytes
are equal, times agree to 1e-6 of their size. A figure without an entry fails the last test.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from functools import cache
from math import fsum, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tilegrad.cli import main
from tilegrad.models import NETWORKS

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "resnet50_megengine.json"
KNOWN = json.loads((DATA / "resnet50_megengine_facts.json").read_text())["facts"]
Found = dict[str, Any]


@cache
def found() -> Found:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["analyze", str(FILE), "--json"]) == 0
    return json.loads(out.getvalue())


def device(found: Found) -> Found:
    return found["memory"]["gpu0:0"]


def rows(found: Found, kind: str | None = None) -> list[Found]:
    return [row for row in found["operators"] if kind in (None, row["type"])]


def row(found: Found, id: str) -> Found:
    return next(row for row in found["operators"] if row["id"] == id)


def us(seconds: float) -> float:
    return seconds * 1e6


def flops(found: Found, *kinds: str) -> int:
    return sum(row["flops"] or 0 for kind in kinds for row in rows(found, kind))


def weights(found: Found, keep: Callable[[list[int]], bool]) -> int:
    """Elements of the constants whose shape is like that."""
    return sum(prod(row["out_shapes"][0]) for row in rows(found, "ImmutableTensor") if keep(row["out_shapes"][0]))


def bias_like(shape: list[int]) -> bool:
    return len(shape) == 4 and shape[0] == 1 and shape[2:] == [1, 1]


def gaps_from(found: Found, first: int, stop: int) -> float:
    """Gaps before the operators in these places."""
    return us(fsum(row["gap_before_s"] or 0.0 for row in rows(found)[first:stop]))


def top_row(row: Found) -> Found:
    return {
        "id": row["id"], "seq": row["seq"], "type": row["type"], "name": row["name"], "kernel_us": us(row["kernel_s"]),
        "device_us": us(row["total_s"]), "in": row["in_shapes"], "out": row["out_shapes"],
        "gflops": round(row["flops_per_s"] / 1e9, 3), "gbps": round(row["bytes_per_s"] / 1e9, 3),
    }  # fmt: skip


def type_row(group: Found) -> Found:
    return {
        "count": group["count"], "device_us": us(group["total_s"]), "kernel_us": us(group["kernel_s"]),
        "kernel_share": round(group["share"], 6), "flop": group["flops"] or 0, "bytes": group["bytes"],
        "gflops": round((group["flops_per_s"] or 0) / 1e9, 3), "gbps": round(group["bytes_per_s"] / 1e9, 3),
    }  # fmt: skip


def stride2(row: Found) -> Found:
    return {"id": row["id"], "kernel": row["in_shapes"][1][2:], "out": row["out_shapes"][0]}


def peak_row(peak: Found) -> Found:
    alive = [{"var": b["name"], "bytes": b["bytes"], "name": b["maker_name"]} for b in peak["alive"]]
    head = {"seq": peak["tick"], "op": peak["operator"], "type": peak["type"], "name": peak["name"]}
    return {**head, "live": sorted(alive, key=lambda b: b["var"])}


def gap_row(gap: Found) -> Found:
    return {
        "us": us(gap["seconds"]), "after": gap["before"], "before": gap["after"], "after_type": gap["before_type"],
        "before_type": gap["after_type"],
    }  # fmt: skip


def recomputed_bytes(row: Found) -> int:
    """Four bytes for every element read or written; what is not known counts nothing."""
    return 4 * sum(prod(shape) for shape in (*row["in_shapes"], *row["out_shapes"]) if shape)


def recomputed_flops(row: Found) -> int | None:
    """Multiplications and additions from the shapes alone."""
    attrs, out = row["attrs"], prod(row["out_shapes"][0]) if row["out_shapes"] and row["out_shapes"][0] else 0
    match row["type"]:
        case "ConvolutionForward":
            return 2 * out * prod(row["in_shapes"][1][1:])
        case "MatrixMul":
            return 2 * out * row["in_shapes"][0][1]
        case "PoolingForward":
            return out * attrs["window_h"] * attrs["window_w"]
        case "Elemwise":
            return out * (len(row["in_shapes"]) - 1 or 1)
        case "Reduce":
            return prod(row["in_shapes"][0])
    return None


@cache
def textbook() -> tuple[int, int, list[int]]:
    """Our own ResNet-50: parameters, those of its norms, and channels out of every convolution."""
    with torch.device("meta"):
        net = NETWORKS["resnet50"]()
    norms = sum(p.numel() for m in net.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters())
    channels = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    return sum(p.numel() for p in net.parameters()), norms, channels


FACTS: dict[str, Callable[[Found], Any]] = {
    "file.bytes": lambda f: f["file"]["bytes"],
    "file.sha256": lambda f: f["file"]["sha256"],
    "file.newlines": lambda f: f["file"]["newlines"],
    "counts.operators": lambda f: f["source"]["counts"]["operators"],
    "counts.comp_seq": lambda f: f["counts"]["operators"],
    "counts.vars": lambda f: f["source"]["counts"]["vars"],
    "counts.mem_chunks": lambda f: f["source"]["counts"]["chunks"],
    "counts.host": lambda f: f["source"]["counts"]["host"],
    "counts.device": lambda f: f["source"]["counts"]["device"],
    "counts.opr_footprint": lambda f: f["source"]["counts"]["footprints"],
    "counts.opr_internal_pf": lambda f: f["source"]["counts"]["internal"],
    "counts.operator_plus_var_ids": lambda f: f["source"]["counts"]["ids"],
    "counts.max_id": lambda f: f["source"]["counts"]["largest_id"],
    "counts.ids_shared_between_op_and_var": lambda f: f["source"]["counts"]["ids_of_both"],
    "counts.ids_missing_in_0_to_max": lambda f: f["source"]["counts"]["ids_missing"],
    "threads_and_comp_nodes.host_threads": lambda f: f["time"]["host"]["lanes"],
    "threads_and_comp_nodes.device_comp_nodes": lambda f: f["time"]["device"]["lanes"],
    "threads_and_comp_nodes.var_comp_nodes": lambda f: f["source"]["comp_nodes"],
    "ops_by_type_all": lambda f: f["counts"]["types_with_idle"],
    "ops_by_type_in_comp_seq": lambda f: f["counts"]["types"],
    "elemwise_by_mode": lambda f: f["counts"]["modes"]["Elemwise"],
    "ops_not_executed": lambda f: sorted(f["idle"], key=lambda op: int(op["id"])),
    "set_equalities.host==comp_seq": lambda f: f["source"]["agreement"]["host_is_sequence"],
    "set_equalities.device==comp_seq": lambda f: f["source"]["agreement"]["device_is_sequence"],
    "set_equalities.footprint==comp_seq": lambda f: f["source"]["agreement"]["footprints_are_sequence"],
    "set_equalities.host_start_order==comp_seq": lambda f: f["source"]["agreement"]["host_in_order"],
    "set_equalities.device_start_order==comp_seq": lambda f: f["source"]["agreement"]["device_in_order"],
    "set_equalities.topological": lambda f: f["source"]["agreement"]["topological"],
    "edges.op_inputs": lambda f: f["source"]["edges"]["inputs"],
    "edges.op_outputs": lambda f: f["source"]["edges"]["outputs"],
    "edges.vars_never_read": lambda f: f["source"]["edges"]["vars_never_read"],
    "var_flags": lambda f: f["source"]["flags"],
    "var_memory_classes.mem_plan_and_chunk": lambda f: f["source"]["classes"]["with_chunk"],
    "var_memory_classes.no_mem_plan_but_prev_dev_ptr": lambda f: f["source"]["classes"]["allocated"],
    "var_memory_classes.no_memory_at_all(prev_dev_ptr==0)": lambda f: f["source"]["classes"]["without_memory"],
    "var_memory_classes.RT_FORCE_DYNAMIC_MEM_ALLOC": lambda f: f["source"]["classes"]["dynamic"],
    "var_memory_classes.VOLATILE_CONTENT_workspace": lambda f: f["source"]["classes"]["workspaces"],
    "var_memory_classes.workspace_with_nonzero_size": lambda f: f["source"]["classes"]["workspaces_with_bytes"],
    "var_memory_classes.shape_not_inferred": lambda f: sorted(f["source"]["classes"]["shape_unknown"]),
    "var_memory_classes.mem_readonly_fwd_src": lambda f: f["source"]["classes"]["aliases"],
    "network.batch": lambda f: row(f, "539")["in_shapes"][0][0],
    "network.input_shape": lambda f: row(f, "539")["in_shapes"][0],
    "network.output_shape": lambda f: row(f, "857")["out_shapes"][0],
    "network.dtype_bytes": lambda f: int(next(iter(f["source"]["shapes"]["bytes_per_element"]))),
    "network.conv_count": lambda f: f["by"]["type"]["ConvolutionForward"]["count"],
    "network.matmul": lambda f: rows(f, "MatrixMul")[0]["in_shapes"],
    "network.residual_adds": lambda f: sum(
        r["attrs"]["mode"] == "ADD" and len(r["in_shapes"][0]) == 4 for r in rows(f, "Elemwise")
    ),
    "network.weight_elements": lambda f: weights(f, lambda s: True),
    "network.conv_weight_elements": lambda f: weights(f, lambda s: len(s) == 4 and not bias_like(s)),
    "network.fc_elements_incl_bias": lambda f: weights(f, lambda s: len(s) < 4),
    "network.channel_bias_elements": lambda f: weights(f, bias_like),
    "network.identity_check.torchvision_resnet50_params": lambda f: textbook()[0],
    "network.identity_check.minus_bn_affine_53120_plus_bias_22720": lambda f: (
        textbook()[0] - textbook()[1] + weights(f, bias_like)
    ),
    "network.identity_check.equals_weight_elements": lambda f: (
        textbook()[0] - textbook()[1] + weights(f, bias_like) == weights(f, lambda s: True)
    ),
    "network.conv_out_channels_sum": lambda f: sum(r["out_shapes"][0][1] for r in rows(f, "ConvolutionForward")),
    "network.conv_out_channels_minus_4_projections_equals_bias": lambda f: (
        sum(textbook()[2]) - (256 + 512 + 1024 + 2048) == weights(f, bias_like)
    ),
    "network.stride2_convs": lambda f: [
        stride2(r) for r in rows(f, "ConvolutionForward") if r["attrs"]["stride_h"] == 2
    ],
    "flops.total": lambda f: f["rates"]["flops"],
    "flops.conv": lambda f: flops(f, "ConvolutionForward"),
    "flops.matmul": lambda f: flops(f, "MatrixMul"),
    "flops.elemwise": lambda f: flops(f, "Elemwise"),
    "flops.pooling": lambda f: flops(f, "PoolingForward"),
    "flops.reduce": lambda f: flops(f, "Reduce"),
    "flops.gflop_per_image_conv+fc": lambda f: flops(f, "ConvolutionForward", "MatrixMul") / 10 / 1e9,
    "flops.ops_with_null_computation": lambda f: f["counts"]["without_flops"],
    "flops.recomputed_equal": lambda f: sum(r["flops"] == recomputed_flops(r) for r in rows(f)),
    "flops.recomputed_of": lambda f: len(rows(f)),
    "footprint_memory.total_bytes": lambda f: f["rates"]["bytes"],
    "footprint_memory.const_ops_bytes": lambda f: f["by"]["type"]["ImmutableTensor"]["bytes"],
    "footprint_memory.non_const_bytes": lambda f: f["rates"]["bytes"] - f["by"]["type"]["ImmutableTensor"]["bytes"],
    "footprint_memory.recomputed_equal": lambda f: sum(r["bytes"] == recomputed_bytes(r) for r in rows(f)),
    "footprint_memory.recomputed_of": lambda f: len(rows(f)),
    "device_time_us.first_start": lambda f: us(f["time"]["device"]["first_start_s"]),
    "device_time_us.last_end": lambda f: us(f["time"]["device"]["last_end_s"]),
    "device_time_us.span": lambda f: us(f["time"]["device"]["span_s"]),
    'device_time_us.sum_end_minus_start(MegEngine "total device time")': lambda f: us(f["time"]["device"]["total_s"]),
    "device_time_us.sum_end_minus_kern(kernel busy)": lambda f: us(f["time"]["device"]["kernel_s"]),
    "device_time_us.sum_kern_minus_start(wait)": lambda f: us(f["time"]["device"]["wait_s"]),
    "device_time_us.sum_inter_op_gaps": lambda f: us(f["time"]["gaps"]["total_s"]),
    "device_time_us.busy_fraction_of_span": lambda f: f["time"]["device"]["busy_share"],
    "host_time_us.first_start": lambda f: us(f["time"]["host"]["first_start_s"]),
    "host_time_us.last_end": lambda f: us(f["time"]["host"]["last_end_s"]),
    "host_time_us.span": lambda f: us(f["time"]["host"]["span_s"]),
    'host_time_us.sum_end_minus_start(MegEngine "total host time")': lambda f: us(f["time"]["host"]["total_s"]),
    "host_time_us.sum_end_minus_kern": lambda f: us(f["time"]["host"]["kernel_s"]),
    "device_time_by_type": lambda f: {kind: type_row(group) for kind, group in f["by"]["type"].items()},
    "top10_by_kernel_time": lambda f: [top_row(row(f, id)) for id in f["top"]],
    "top10_ids_by_device_time": lambda f: f["top_by_total"],
    "device_gaps_us.count": lambda f: f["time"]["gaps"]["count"],
    "device_gaps_us.negative": lambda f: f["time"]["gaps"]["negative"],
    "device_gaps_us.zero": lambda f: f["time"]["gaps"]["zero"],
    "device_gaps_us.min": lambda f: us(f["time"]["gaps"]["min_s"]),
    "device_gaps_us.max": lambda f: us(f["time"]["gaps"]["max_s"]),
    "device_gaps_us.median": lambda f: us(f["time"]["gaps"]["median_s"]),
    "device_gaps_us.gt_2us": lambda f: f["time"]["gaps"]["longer"]["2us"],
    "device_gaps_us.gt_5us": lambda f: f["time"]["gaps"]["longer"]["5us"],
    "device_gaps_us.gt_10us": lambda f: f["time"]["gaps"]["longer"]["10us"],
    "device_gaps_us.top5": lambda f: [gap_row(gap) for gap in f["time"]["gaps"]["longest"]],
    "device_gaps_us.kernel_idle_sum(span-first wait-kernel busy)": lambda f: us(f["time"]["gaps"]["idle_s"]),
    "device_gaps_us.sum_before_first_conv(seq0-80)": lambda f: gaps_from(f, 0, 82),
    "device_gaps_us.sum_from_first_conv": lambda f: gaps_from(f, 82, 234),
    "host_device_lag_us.raw_host_minus_device_start_first_op": lambda f: us(f["time"]["lag"]["raw_first_s"]),
    "host_device_lag_us.raw_host_minus_device_start_last_op": lambda f: us(f["time"]["lag"]["raw_last_s"]),
    "host_device_lag_us.min_clock_offset_host_minus_device": lambda f: us(f["time"]["lag"]["offset_s"]),
    "host_device_lag_us.offset_set_by_op": lambda f: f["time"]["lag"]["set_by"],
    "host_device_lag_us.lag_first_op": lambda f: us(f["time"]["lag"]["first_s"]),
    "host_device_lag_us.lag_first_conv_539": lambda f: us(row(f, "539")["lag_s"]),
    "host_device_lag_us.lag_last_op": lambda f: us(f["time"]["lag"]["last_s"]),
    "host_device_lag_us.lag_max": lambda f: us(f["time"]["lag"]["max_s"]),
    "host_device_lag_us.lag_max_op": lambda f: f["time"]["lag"]["max_operator"],
    "host_device_lag_us.lag_median": lambda f: us(f["time"]["lag"]["median_s"]),
    "host_device_lag_us.host_finished_issuing_before_device_end": lambda f: us(f["time"]["lag"]["host_done_early_s"]),
    "host_device_lag_us.issue_rate_us_per_op": lambda f: us(f["time"]["lag"]["issue_s"]),
    "host_device_lag_us.device_kernels_finished_when_host_done": lambda f: f["time"]["lag"]["kernels_done_by_then"],
    "chunks.count": lambda f: f["source"]["chunks"]["count"],
    "chunks.total_bytes": lambda f: f["source"]["chunks"]["total_bytes"],
    "chunks.addr_min": lambda f: f["source"]["chunks"]["address_min"],
    "chunks.addr_end_max": lambda f: f["source"]["chunks"]["address_end"],
    "chunks.addr_span": lambda f: f["source"]["chunks"]["address_end"] - f["source"]["chunks"]["address_min"],
    "chunks.overlapping_pairs": lambda f: f["source"]["chunks"]["overlapping_pairs"],
    "chunks.exactly_adjacent_pairs": lambda f: f["source"]["chunks"]["adjacent_pairs"],
    "chunks.min_size": lambda f: f["source"]["chunks"]["bytes_min"],
    "chunks.max_size": lambda f: f["source"]["chunks"]["bytes_max"],
    "chunks.dev_ptr_alignment_gcd": lambda f: f["source"]["chunks"]["alignment"],
    "chunks.all_owned_by": lambda f: f["source"]["chunks"]["owners"],
    "chunks.offset_byte_nonzero": lambda f: f["source"]["chunks"]["with_offset"],
    "chunks.chunk_size==prev_ptr_end-prev_ptr": lambda f: f["source"]["chunks"]["bytes_agree"],
    "chunks.chunk.dev_ptr==var.dev_ptr==var.prev_dev_ptr": lambda f: f["source"]["chunks"]["addresses_agree"],
    "dynamic_memory.vars_with_address_but_no_chunk": lambda f: f["source"]["classes"]["allocated"],
    "dynamic_memory.alias_vars": lambda f: f["source"]["classes"]["aliases"],
    "dynamic_memory.storage_blocks_incl_input": lambda f: f["counts"]["blocks"] - f["source"]["chunks"]["count"],
    "dynamic_memory.storage_blocks_graph_owned": lambda f: device(f)["addresses"]["blocks"],
    "dynamic_memory.sum_of_block_bytes_graph_owned": lambda f: device(f)["addresses"]["total_bytes"],
    "dynamic_memory.union_of_addresses_bytes": lambda f: device(f)["addresses"]["union_bytes"],
    "dynamic_memory.union_segments": lambda f: device(f)["addresses"]["segments"],
    "dynamic_memory.reuse_factor_sum/union": lambda f: round(device(f)["addresses"]["reuse"], 6),
    "dynamic_memory.bytes_shared_by_reuse(sum-union)": lambda f: device(f)["addresses"]["shared_bytes"],
    "dynamic_memory.large_arena": lambda f: arena(device(f)["addresses"]["arenas"][0]),
    "dynamic_memory.small_arena": lambda f: arena(device(f)["addresses"]["arenas"][1]),
    "dynamic_memory.distinct_start_addresses": lambda f: device(f)["addresses"]["distinct_starts"],
    "dynamic_memory.address_overlapping_pairs(time-disjoint reuse)": lambda f: device(f)["addresses"][
        "overlapping_pairs"
    ],
    "dynamic_memory.conflicts(overlap in address AND in lifetime)": lambda f: device(f)["addresses"]["conflicts"],
    "dynamic_memory.workspace_blocks": lambda f: device(f)["workspace"]["blocks"],
    "dynamic_memory.workspace_sum_bytes": lambda f: device(f)["workspace"]["total_bytes"],
    "dynamic_memory.workspace_max_bytes": lambda f: device(f)["workspace"]["max_bytes"],
    "dynamic_memory.workspace_max_vars": lambda f: sorted(device(f)["workspace"]["max_blocks"]),
    "peak_live.graph_owned_activations+workspace": lambda f: device(f)["owned"]["peak_bytes"],
    "peak_live.at": lambda f: [peak_row(peak) for peak in device(f)["peaks"]],
    "peak_live.with_input_freed_after_last_reader": lambda f: (
        device(f)["everything"]["peak_bytes"] - device(f)["weight_bytes"]
    ),
    "peak_live.at_seq_2": lambda f: device(f)["everything"]["ticks"],
    "peak_live.with_input_held_whole_run": lambda f: device(f)["with_inputs_held_bytes"],
    "peak_live.at_seq_3": lambda f: device(f)["owned"]["ticks"],
    "peak_live.without_workspace": lambda f: device(f)["without_workspace"]["peak_bytes"],
    "peak_live.at_seq_4": lambda f: device(f)["without_workspace"]["ticks"],
    "peak_live.weights": lambda f: device(f)["weight_bytes"],
    "peak_live.total_weights+input_held+graph": lambda f: device(f)["total_bytes"],
    "peak_live.rounded_to_512B_graph_owned": lambda f: device(f)["rounded_512_bytes"],
    "allocator_vs_lower_bound.lower_bound_max_live": lambda f: device(f)["layouts"]["bound_bytes"],
    "allocator_vs_lower_bound.recorded_union_bytes": lambda f: device(f)["layouts"]["recorded_union_bytes"],
    "allocator_vs_lower_bound.overhead_bytes_union": lambda f: (
        device(f)["layouts"]["recorded_union_bytes"] - device(f)["layouts"]["bound_bytes"]
    ),
    "allocator_vs_lower_bound.overhead_ratio_union": lambda f: round(1 + device(f)["layouts"]["recorded_excess"], 6),
    "allocator_vs_lower_bound.recorded_large_arena_span+small_arena_span": lambda f: device(f)["layouts"][
        "recorded_span_bytes"
    ],
    "allocator_vs_lower_bound.overhead_ratio_span": lambda f: round(
        1 + device(f)["layouts"]["recorded_span_excess"], 6
    ),
    "offline_planners_bytes.greedy_by_size_best_fit": lambda f: device(f)["layouts"]["greedy_bytes"]["by_size"],
    "offline_planners_bytes.greedy_by_size_512B": lambda f: device(f)["layouts"]["greedy_bytes"]["by_size_512"],
    "offline_planners_bytes.time_order_best_fit": lambda f: device(f)["layouts"]["greedy_bytes"]["by_time"],
    "offline_planners_bytes.by_area": lambda f: device(f)["layouts"]["greedy_bytes"]["by_area"],
    "if_all_activations_kept(training-like).sum_nonworkspace_graph_owned": lambda f: device(f)["kept_bytes"],
    "if_all_activations_kept(training-like).plus_input": lambda f: device(f)["kept_bytes"] + device(f)["input_bytes"],
    "var_shape_dtype.shape_from_static_infer": lambda f: f["source"]["shapes"]["inferred"],
    "var_shape_dtype.dtype_recorded_only_in_mem_plan": lambda f: f["source"]["shapes"]["dtype_recorded"],
    "var_shape_dtype.bytes_per_element": lambda f: dict(
        zip(
            ("4 bytes/elem", "1 byte/elem (workspace)", "no shape or no bytes"),
            (f["source"]["shapes"]["bytes_per_element"][key] for key in ("4", "1", "None")),
            strict=True,
        )
    ),
    "var_shape_dtype.infer_type_SHAPE": lambda f: f["source"]["shapes"]["shape_tags"],
    "var_shape_dtype.infer_type_VALUE": lambda f: f["source"]["shapes"]["value_tags"],
    "var_shape_dtype.MISSING_INP_but_shape_given": lambda f: f["source"]["shapes"]["inferred_without_inputs"],
    "names.op_name_ids_not_in_file": lambda f: f["source"]["cited_ids_not_in_file"],
}
SAID = {"network.identity", "network.note"}  # sentences


def arena(found: Found) -> Found:
    return {"blocks": found["blocks"], "addr_min": found["start"], "addr_end": found["end"], "span": found["bytes"]}


def known(path: str) -> Any:
    """The figure at a path; keys may hold dots."""
    at, rest = KNOWN, path
    while rest:
        key = max((k for k in at if rest == k or rest.startswith(f"{k}.")), key=len)
        at, rest = at[key], rest[len(key) + 1 :]
    return at


def agree(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, float):
        return ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(agree(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    return ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool)


@pytest.mark.parametrize("path", FACTS)
def test_figure(path: str) -> None:
    theirs = known(path)
    if path == "peak_live.at":
        theirs = [{**peak, "live": sorted(peak["live"], key=lambda b: b["var"])} for peak in theirs]
    if path in ("ops_not_executed",):
        theirs = sorted(theirs, key=lambda op: int(op["id"]))
    if path in ("var_memory_classes.shape_not_inferred", "dynamic_memory.workspace_max_vars"):
        theirs = sorted(theirs)
    assert agree(FACTS[path](found()), theirs), (FACTS[path](found()), theirs)


def leaves(at: Any, path: str = "") -> Iterator[str]:
    """Paths of figures; a path that is mapped is not looked into."""
    if path in FACTS or not isinstance(at, dict):
        yield path
        return
    for key, item in at.items():
        yield from leaves(item, f"{path}.{key}" if path else key)


def test_no_figure_is_left_out() -> None:
    assert not set(leaves(KNOWN)) - FACTS.keys() - SAID
