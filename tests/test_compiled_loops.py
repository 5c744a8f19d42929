"""Compiled loops against the form that torch has: the same bits."""

import importlib.metadata
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from simsgd import compiled_loops
from simsgd.communication import elias_gamma, wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.memories import DGC

pytest.importorskip("numba")

DTYPES = [torch.float32, torch.float64]
SINGLE_FIRST = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
SIZES = [(1, 1), (2, 3), (3, 1023), (2, 1024), (3, 1025), (2, 5001)]
QUANTIZERS = [
    "terngrad", "terngrad:clip=none", "terngrad:pack=base3", "qsgd:255", "qsgd:4,bucket=7",
    "qsgd:4,bucket=1500", "qsgd:3,norm=max,biased=true", "qsgd:70000",
    "qsgd:2,bucket=64,code=elias", "natural", "int8", "sign", "sign:scale=none", "onebit",
    "fp16", "bf16", "bins:2", "bins:5", "e3m0",
]  # fmt: skip
SPARSIFIERS = [
    "adacomp", "adacomp:bin=7", "adacomp:c=0.7,variant=values", "variance", "threshold:0",
    "threshold:1", "adaptive_threshold", "sampled_topk:0.01", "topk:0.1",
]  # fmt: skip
BOTH = [
    pytest.param(spec, marks=pytest.mark.slow)
    for spec in ["threshold:1+" + q for q in QUANTIZERS]
    + ["topk:0.1+qsgd:3,bucket=3", "topk:0.1+sign"]
]


def inputs(dtype):
    generator = torch.Generator().manual_seed(1)
    for rows, n in SIZES:
        x = torch.randn(rows, n, generator=generator, dtype=dtype)
        wide = torch.randn(rows, 2 * n + 3, generator=generator, dtype=dtype)
        infinite, mixed = x.clone(), x.clone()
        infinite[0, n // 2], infinite[-1, 0] = torch.inf, -torch.inf
        mixed[:, ::3] = 0
        yield "normal", x
        yield "rows apart", wide[:, 2 : n + 2]
        yield "zeros among", mixed * x.sign()  # -0.0 too
        yield "zeros", torch.zeros_like(x)
        yield "positive", x.abs()
        yield "equal", torch.full_like(x, -0.3)
        yield "subnormal", x * 1e-42
        yield "large", x * 1e37
        yield "about the least power", x * 2.0**-107
        yield "of all magnitudes", x * (10 * wide[:, :n]).exp()
        yield "infinite", infinite


def bits(x):
    """Return what is compared: memory as whole numbers, so that -0.0 differs from 0.0."""
    if not x.is_floating_point():
        return x
    x = torch.where(x.isnan(), torch.nan, x)  # NaNs are alike
    return x.contiguous().view(torch.int32 if x.element_size() == 4 else torch.int64)


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(bits(a), bits(b))


def message_parts(spec, x, on):
    """Return all that a message is, and what it leaves in the state and in a memory."""
    generator = torch.Generator().manual_seed(5)
    compressor = composed(spec).for_shape((x.shape[1],))
    with compiled_loops.switched(on):
        state = compressor.init(x)
        gradient = torch.randn(x.shape, generator=generator, dtype=x.dtype) * x.abs()
        key = RandomKey(3, torch.arange(len(x))).fold_in(1, "segment")
        step = StepInfo(key, gradient=gradient, squares=x.square() / 2)
        message = compressor.compress(x, state, step)
        rest = torch.zeros(len(x), x.shape[1] + 5, dtype=x.dtype)[:, 2:-3].copy_(x)
        message.subtract_from_(rest)
        cleared = rest.clone()
        message.clear_(cleared)
        buffers = [message.pack(row) for row in range(len(x))]
        back = type(message).unpack(buffers, message.header())
        parts = [message.to_dense(), message.sum(), message.payload_bytes(), rest, cleared]
        return [*state.values(), *parts, *buffers, back.to_dense()]


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("dtype", SINGLE_FIRST)
@pytest.mark.parametrize("spec", QUANTIZERS + SPARSIFIERS + BOTH)
def test_a_message_is_the_same_in_either_form(spec, dtype):
    for kind, x in inputs(dtype):
        if kind == "infinite" and (
            "+" in spec or spec.startswith(("adacomp", "sampled", "qsgd:7"))
        ):
            continue  # of which torch makes NaN, and of that any code
        assert_same(message_parts(spec, x, False), message_parts(spec, x, True))


@pytest.mark.parametrize("spec", ["terngrad", "qsgd:4,bucket=512", "natural", "onebit", "variance"])
def test_threads_change_nothing(spec, monkeypatch):
    monkeypatch.setattr(compiled_loops, "_SHARE", 1)
    x = torch.randn(3, 5001, generator=torch.Generator().manual_seed(0))
    alone = message_parts(spec, x, True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert_same(message_parts(spec, x, True), alone)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert_same(message_parts(spec, x, False), alone)


def test_threads_work_at_the_same_time(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together, parts = threading.Barrier(3, timeout=10), []

    def kernel(first, last):
        parts.append((first, last))
        together.wait()

    compiled_loops.share(kernel, 5, compiled_loops._SHARE)
    assert sorted(parts) == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize(
    "spec", ["terngrad", "qsgd:4", "natural", "sign", "onebit", "int8", "adacomp"]
)
def test_what_a_kernel_does_not_take_goes_to_torch(spec):
    with compiled_loops.switched(True):
        assert not compiled_loops.takes(torch.randn(2, 40).bfloat16())
        assert not compiled_loops.takes(torch.randn(2, 40).requires_grad_())
        assert not compiled_loops.takes(torch.empty(2, 40, device="meta"))
        for x in (torch.randn(40, 2).t(), torch.randn(2, 80)[:, ::2]):
            assert not compiled_loops.takes(x)
            step = StepInfo(RandomKey(0, torch.arange(2)), gradient=x, squares=x.square())
            message = composed(spec).compress(x, {}, step)
            assert message.to_dense().shape == x.shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.9, 0.0, None])
def test_the_memory_of_dgc_is_the_same(momentum, nesterov, dtype):
    memory = DGC(momentum, nesterov)
    for _, x in inputs(dtype):
        found = []
        for on in (False, True):
            state, compensated = memory.init(x, dense=False), []
            with compiled_loops.switched(on):
                for step in range(3):
                    compensated.append(memory.compensate(x * (step - 1.3), state).clone())
            found.append([*compensated, *state.values()])
        assert_same(*found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_numbers_are_the_same(dtype):
    key = RandomKey(7, torch.arange(5)).fold_in("layer", 3)
    numbers = []
    for on in (False, True):
        with compiled_loops.switched(on):
            numbers.append(key.uniform(3001, dtype))
    assert_same(*([n] for n in numbers))


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65, 1000])
def test_packed_numbers_are_the_same(n):
    generator = torch.Generator().manual_seed(n)
    for width in (1, 2, 3, 7, 8, 9, 17, 31, 40, 56, 57):
        numbers = torch.randint(0, 1 << width, (n,), generator=generator)
        signed = numbers - (1 << width - 1)
        signed = signed.clamp(min=1 - (1 << width - 1)) if width > 1 else signed
        found = []
        for on in (False, True):
            with compiled_loops.switched(on):
                packed = wire.pack_bits(numbers, width)
                found.append([packed, wire.unpack_bits(packed, width, n)])
                if width > 1:
                    other = wire.pack_signed(signed, width)
                    found[-1] += [other, wire.unpack_signed(other, width, n, torch.int64)]
                    assert torch.equal(found[-1][3], signed)
        assert torch.equal(found[1][1], numbers)
        assert_same(*found)


@pytest.mark.parametrize("density", [0, 0.01, 0.3, 1])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_elias_streams_are_the_same(density, dtype):
    generator, most = torch.Generator().manual_seed(0), torch.iinfo(dtype).max
    for n in (1, 63, 65, 4097):
        some = torch.rand(3, n, generator=generator) < density
        numbers = (torch.randint(-most, most + 1, (3, n), generator=generator) * some).to(dtype)
        found = []
        for on in (False, True):
            with compiled_loops.switched(on):
                streams = [elias_gamma.encode(row) for row in numbers]
                rows = [elias_gamma.decode(stream, n) for stream in streams]
                found.append([elias_gamma.num_bits(numbers), *streams, *rows])
        assert torch.equal(torch.stack(found[1][-3:]), numbers.long())
        assert_same(*found)


@pytest.mark.slow
def test_a_stream_that_is_cut_off_is_an_error_in_either_form():
    stream = elias_gamma.encode(torch.tensor([0, 0, 1000, -900]))
    for on in (False, True):
        with compiled_loops.switched(on), pytest.raises((IndexError, ValueError)):
            elias_gamma.decode(stream, 2)


@pytest.mark.slow
def test_small_tensors_do_not_load_numba():
    code = """
import sys, torch
from simsgd import compiled_loops
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed
composed("terngrad").compress(torch.randn(2, 50), {}, StepInfo(RandomKey(0, torch.arange(2))))
print("numba" in sys.modules, compiled_loops.form()[:5])
composed("terngrad").compress(torch.randn(2, 50_000), {}, StepInfo(RandomKey(0, torch.arange(2))))
print("numba" in sys.modules)
"""
    assert run(code) == "False numba\nTrue"
    assert run(code, SIMSGD_NUMBA="0") == "False torch\nFalse"
    assert run(code, SIMSGD_NUMBA="1") == "True numba\nTrue"


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    code = """
import sys, torch
from simsgd import compiled_loops
import numba.core.caching as caching
def refuse(*_): raise OSError("no space left on device")
caching.CacheImpl.check_cachable = lambda *_: True
caching.IndexDataCacheFile.save = refuse
from simsgd.keyed_random import RandomKey
with compiled_loops.switched(True):
    first = RandomKey(0, torch.arange(2)).uniform(5)
with compiled_loops.switched(False):
    print(torch.equal(first, RandomKey(0, torch.arange(2)).uniform(5)))
"""
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)) == "True"


def test_without_a_place_for_a_cache_it_is_compiled_anew(monkeypatch):
    import numba

    plain = numba.njit
    plain(lambda x: x)(1)  # which loads the rest of numba

    def njit(**options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return plain(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled_loops.jit(lambda x: x + 1)(1) == 2


def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_the_form_in_use_has_a_name(monkeypatch):
    import numba

    assert compiled_loops.form() == f"numba {numba.__version__}"
    with compiled_loops.switched(False):
        assert compiled_loops.form() == "torch (SIMSGD_NUMBA is 0)"
    compiled_loops._numba.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(compiled_loops.importlib.metadata, "version", missing)
    try:
        assert compiled_loops.form() == "torch (numba is not installed)"
        assert not compiled_loops.takes(torch.randn(1000, 1000))
    finally:
        compiled_loops._numba.cache_clear()


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(compiled_loops.__file__).parents[1], env=os.environ | environment,
    )  # fmt: skip
    return done.stdout.strip()


def test_no_place_or_count_of_a_wrong_message_leads_out_of_an_array():
    from simsgd.communication.messages import sparse_kernels as kernels

    far, many = torch.tensor([[10**12], [-(10**12)]]), torch.tensor([10**6, 1])
    x, values = torch.ones(2, 4), torch.ones(2, 1)
    kernels.subtract_(values, far, many, x)
    kernels.clear_(far, many, x)
    assert torch.equal(x, torch.ones(2, 4))
    one, places = torch.ones(1, 3), torch.tensor([[3, 10**12, -5]])
    assert kernels.added(one, places, None, 4).tolist() == [0, 0, 0, 1]
