"""A recording: operators, blocks, flops and bytes; what it must not do; odd tensors and odd uses."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from tilegrad.errors import InputError
from tilegrad.ir import Phase
from tilegrad.profile import Block, BlockKind, Operator, Profile, check_profile
from tilegrad.recording.record import record
from tilegrad.sim.peak import PeakBytes


def _hooks() -> list[int]:
    return [
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks),
        len(optimizer_hooks._global_optimizer_post_hooks),
    ]


@pytest.fixture(autouse=True)
def _hooks_are_gone() -> Iterator[None]:
    before = _hooks()
    yield
    assert _hooks() == before
    assert torch._C._len_torch_dispatch_stack() == 0


def _block(profile: Profile, name: str) -> Block:
    (found,) = [b for b in profile.blocks if b.name == name]
    return found


def _op(profile: Profile, name: str, phase: Phase = Phase.FORWARD) -> Operator:
    (found,) = [op for op in profile.operators if op.name == name and op.phase is phase]
    return found


def test_lives_addresses_and_makers() -> None:
    x = torch.zeros(1000)
    with record() as rec:
        a = x + 1
        where = a.data_ptr()
        b = a[10:]  # a view makes no block
        a.mul_(2)  # nor does writing in place
        del a
        c = torch.ones(500)
        del b
        d = c.double()
        del c
    profile = rec.profile
    check_profile(profile)
    assert [op.type for op in profile.operators] == [
        "aten.add.Tensor", "aten.slice.Tensor", "aten.mul_.Tensor", "aten.ones.default", "aten._to_copy.default",
    ]  # fmt: skip
    old, first, second, third = profile.blocks
    assert (old.owned, old.kind, old.start, old.stop) == (False, BlockKind.INPUT, 0, profile.ticks)
    assert (first.bytes, first.address, first.maker, first.kind) == (4000, where, 0, BlockKind.ACTIVATION)
    assert first.stop <= profile.ticks and first.stop == third.start
    assert second.stop < profile.ticks == third.stop
    assert rec.peak_bytes == 4000 + 2000 == rec.peaks["cpu"]
    add, view, mul, _, cast = profile.operators
    assert add.reads == (old.name,) and add.writes == view.reads == view.writes == mul.reads == mul.writes
    assert (add.bytes, view.bytes, mul.bytes, cast.bytes) == (8000, 0, 8000, 6000)
    assert (add.in_shapes, view.out_shapes) == (((1000,),), ((990,),))
    assert len(d) == 500


def test_times_are_in_order_and_fit_the_clock() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    with record() as rec:
        net(torch.randn(1, 3, 32, 32)).sum().backward()
    profile = rec.profile
    spans = [op.host for op in profile.operators if op.host is not None]
    assert len(spans) == len(profile.operators)
    assert sum(span.total_s for span in spans) <= profile.clock[-1]
    assert all(a.end_s <= b.start_s for a, b in pairwise(spans))
    for block in profile.blocks:
        if block.maker is not None:
            maker = spans[block.maker]
            assert maker.start_s <= profile.clock[block.start]
    assert profile.clock[0] == 0.0
    assert profile.format == "recorded" and profile.graph is None


def test_flops() -> None:
    layers = [
        nn.Conv2d(4, 6, 3, padding=1, groups=2, stride=2),
        nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 5),
    ]
    net = nn.Sequential(*layers)
    with record() as rec:
        net(torch.randn(2, 4, 8, 8)).sum().backward()
    strided, transposed = (2 * 2 * (4 * 4) * layer.weight.numel() for layer in layers[:2])
    linear = 2 * 2 * 256 * 5
    ops = rec.profile.operators
    forward = [(op.name, op.flops) for op in ops if op.flops is not None and op.phase is Phase.FORWARD]
    assert forward == [("convolution", strided), ("convolution", transposed), ("addmm", linear)]
    backward = [(op.name, op.flops) for op in ops if op.flops is not None and op.phase is Phase.BACKWARD]
    # The input has no gradient: its convolution's backward is one product, not two.
    both = [("mm", linear), ("mm", linear), ("convolution_backward", 2 * transposed), ("convolution_backward", strided)]
    assert backward == both
    assert _op(rec.profile, "sum").flops is None


def test_flops_where_torch_takes_operators_less_apart() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(3, 2, 2), nn.Linear(7, 4))
    x = torch.randn(2, 8)  # without a batch
    with record() as rec, torch.inference_mode():
        net(x)
    assert [op.flops for op in rec.profile.operators] == [2 * 6 * 18, 2 * 6 * 12, 2 * 2 * 7 * 4]


def test_kinds() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    net(x).sum().backward()  # gradients are there before
    adam = torch.optim.Adam(net.parameters())
    adam.step()  # and so is the state
    with record() as rec:
        net(x).pow(2).sum().backward()
        adam.step()
    profile = rec.profile
    kinds = {b.name: (b.kind, b.owned) for b in profile.blocks}
    names = [n for n, _ in net.named_parameters()] + [n for n, _ in net.named_buffers()]
    assert {kinds[name] for name in names} == {(BlockKind.WEIGHT, False)}
    old = [b for b in profile.blocks if not b.owned]
    assert all(b.start == 0 and b.stop == profile.ticks and b.maker is None for b in old)
    assert sum(b.kind is BlockKind.GRADIENT for b in old) == 4
    assert sum(b.kind is BlockKind.INPUT for b in old) == 1
    assert sum(b.kind is BlockKind.UNKNOWN for b in old) == 3 * 4  # two averages and a count each
    for block in profile.blocks:
        if block.maker is not None:
            phase = profile.operators[block.maker].phase
            wanted = {Phase.FORWARD: BlockKind.ACTIVATION, Phase.BACKWARD: BlockKind.GRADIENT}
            assert block.kind is wanted.get(phase, BlockKind.UNKNOWN)  # type: ignore[arg-type]


def test_a_module_made_inside_owns_its_weights() -> None:
    with record() as rec:
        net = nn.Linear(3, 2)
        net(torch.ones(1, 3))
    weight = _block(rec.profile, "weight")
    assert (weight.kind, weight.owned, weight.bytes) == (BlockKind.WEIGHT, True, 24)


def test_nothing_is_kept_alive() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    with record() as rec:
        out = net(torch.randn(4, 8))
        gone = weakref.ref(out.untyped_storage())
        del out
        assert gone() is None  # in the block
        loss = net(torch.randn(4, 8)).sum()
        loss.backward()
        kept = loss.detach()
        del loss  # its graph knows the parameters
        left = weakref.ref(kept.untyped_storage())
        lost, parameter = weakref.ref(net), weakref.ref(net[0].weight)
        del net
        gc.collect()
        assert lost() is None and parameter() is None
    del kept
    assert left() is None  # after it
    assert len(rec.profile.operators) > 5


def test_a_recording_itself_dies() -> None:
    with record() as rec:
        kept = torch.ones(3) + 1
    gone = weakref.ref(rec)
    del rec
    gc.collect()
    assert gone() is None and len(kept) == 3


def test_after_an_exception_what_ran_is_there() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    rec = record()
    with pytest.raises(RuntimeError, match="shapes"), rec:
        net(torch.ones(2, 4))
    check_profile(rec.profile)
    assert [op.module for op in rec.profile.operators] == ["", "0", "0", "1"]
    assert rec.peak_bytes > 0


def test_a_recording_is_used_once_and_read_afterwards() -> None:
    rec = record("mine")
    with pytest.raises(InputError, match="'mine' has not ended"):
        _ = rec.profile
    with rec:
        with pytest.raises(InputError, match="'mine' is running"), rec:
            pass
        with pytest.raises(InputError, match="has not ended"):
            _ = rec.peak_bytes
        torch.ones(3)
    assert rec.profile.name == "mine" and len(rec.profile.operators) == 1
    with pytest.raises(InputError, match="'mine' has ended"), rec:
        pass


def test_nested() -> None:
    with record() as outer:
        a = torch.ones(10)
        with record() as inner:
            b = a + 1
        c = b + 1
    assert [op.name for op in outer.profile.operators] == ["ones", "add", "add"]
    assert [op.name for op in inner.profile.operators] == ["add"]
    assert (outer.peak_bytes, inner.peak_bytes) == (120, 40)
    assert not inner.profile.blocks[0].owned and outer.profile.blocks[0].owned and len(c) == 10


def test_an_empty_recording() -> None:
    with record() as rec:
        pass
    check_profile(rec.profile)
    assert rec.peak_bytes == 0 and not rec.profile.operators and not rec.profile.blocks


def test_other_threads_are_not_seen() -> None:
    net = nn.Linear(3, 3)
    with record() as rec:
        thread = threading.Thread(target=lambda: net(torch.ones(2, 3)).sum().backward())
        thread.start()
        thread.join()
        torch.ones(1)
    assert [op.name for op in rec.profile.operators] == ["ones"]


def test_odd_tensors() -> None:
    """Sparse and meta tensors, lists, None, numbers: seen, or left out, never in the way."""
    with record() as rec:
        sparse = torch.eye(4).to_sparse()
        dense = torch.sparse.mm(sparse, torch.ones(4, 2))
        torch.ones(3, device="meta") + 1
        parts = dense.split(2)
        torch.cat(parts)
        nn.functional.max_pool2d(torch.ones(1, 1, 4, 4), 2, return_indices=True)
        torch._foreach_add_(list(parts), 1.0)
        dense.sum().item()
    profile = rec.profile
    check_profile(profile)
    assert profile.notes == ("2 operators on meta or fake tensors are left out",)
    assert _op(profile, "_to_sparse").writes == ()
    assert len(set(_op(profile, "split").writes)) == 1
    foreach = _op(profile, "_foreach_add_")
    assert foreach.writes == foreach.reads and foreach.bytes == 2 * 32
    assert _op(profile, "_local_scalar_dense").writes == ()


def test_expanded_tensors_are_as_large_as_their_memory() -> None:
    x, y = torch.zeros(1), torch.zeros(1000)
    with record() as rec:
        x.expand(1000) + y
    assert _op(rec.profile, "add").bytes == 4 + 4000 + 4000


def test_no_grad_autocast_and_several_steps() -> None:
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 16, 16)
    with PeakBytes() as peak, record() as rec:
        with torch.no_grad():
            net(x)
        for _ in range(2):
            net.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = net(x)
            out.float().sum().backward()
            del out
    check_profile(rec.profile)
    assert rec.peak_bytes == peak.bytes
    convolutions = [op for op in rec.profile.operators if op.name == "convolution"]
    assert len(convolutions) == 3 and {op.module for op in convolutions} == {"0"}


def test_equal_names_of_several_modules_stay_apart() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    with record() as rec:
        b(a(torch.ones(1, 2)))
    names = [block.name for block in rec.profile.blocks]
    assert len(set(names)) == len(names) and {"weight", "bias"} <= set(names)
    used = {name for op in rec.profile.operators for name in (*op.reads, *op.writes)}
    assert used <= set(names)


def test_the_peak_of_another_device() -> None:
    with record(device="cuda:0") as rec:
        torch.ones(3)
    assert rec.peaks == {"cpu": 12}
    with pytest.raises(InputError, match="nothing was recorded on 'cuda:0'"):
        _ = rec.peak_bytes


def test_results_are_the_same() -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(True))
        adam = torch.optim.Adam(net.parameters())
        for _ in range(3):
            adam.zero_grad()
            net(torch.randn(2, 3, 8, 8)).pow(2).sum().backward()
            adam.step()
        return [*net.parameters(), *net.buffers()]

    plain = run()
    with record():
        recorded = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
