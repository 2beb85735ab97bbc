"""The CUDA kernels: what is in the library, their arithmetic on the CPU, and,
where there is a GPU, the kernels themselves against NumPy."""

import collections
import ctypes
import dataclasses
import os
import pathlib
import shutil
import struct
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from picasso_tf import ops

ROOT = pathlib.Path(__file__).parent.parent
POISON = 0xA5
WILD = (-1, 2**31 - 1, -(2**31), 2**40, -(2**62))


def has_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return run.returncode == 0 and "GPU" in run.stdout


@pytest.fixture(scope="module")
def native() -> ctypes.CDLL:
    """The library, which has to hold device code."""
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    if os.environ.get("PICASSO_CUDA") == "0":
        pytest.skip("PICASSO_CUDA is 0")
    library = ops.native()
    assert hasattr(library, "PicassoCudaPackedLookup"), "built without CUDA: rebuild"
    library.PicassoCudaLookupDescriptorBytes.argtypes = [ctypes.c_int64]
    library.PicassoCudaLookupDescriptorBytes.restype = ctypes.c_int64
    library.PicassoCudaPackedLookup.argtypes = [
        ctypes.POINTER(Member), ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    library.PicassoCudaPackedLookup.restype = ctypes.c_char_p
    return library


# What is in the library.


def device_code(library: pathlib.Path, work: pathlib.Path) -> set[tuple[str, int]]:
    """('elf' or 'ptx', architecture) of the device code in a library, read here
    because not every installation of nvcc has cuobjdump."""
    section = work / "fatbin"
    subprocess.run(
        ["objcopy", "-O", "binary", "--only-section=.nv_fatbin", library, section],
        check=True,
    )
    data = section.read_bytes()
    found = set()
    at = 0
    while at + 16 <= len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != 0xBA55ED50:  # padding between two files
            at += 8
            continue
        at += header
        end = at + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            (architecture,) = struct.unpack_from("<I", data, at + 28)
            found.add(({1: "ptx", 2: "elf"}.get(kind, str(kind)), architecture))
            at += header + size
    return found


def test_library_holds_device_code(native, tmp_path):
    path = ops.find_library(ops.NATIVE_DIR, tf.__version__)
    wanted = {("elf", 80), ("elf", 90), ("ptx", 90)}
    listed = subprocess.run(
        ["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True
    )
    if "sm_70" in listed.stdout.split():
        wanted.add(("elf", 70))
    assert wanted <= device_code(path, tmp_path)


def test_cuda_runtime_stays_inside(native):
    """TensorFlow brings its own: neither may be taken for the other's."""
    path = ops.find_library(ops.NATIVE_DIR, tf.__version__)
    listed = subprocess.run(
        ["nm", "-D", path], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert "PicassoCudaPackedLookup" in names
    assert [name for name in names if name.startswith(("cuda", "__cuda", "cu"))] == []
    needed = subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    )
    assert "libcuda" not in needed.stdout


# A packed lookup and what it has to write.


class Ids(ctypes.Structure):
    """IdsView, in kernels/core/common.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("is_int64", ctypes.c_bool),
        ("narrow", ctypes.c_bool),
        ("mode", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
    )


class Member(ctypes.Structure):
    """LookupMember, in kernels/core/lookup.h."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("parts", ctypes.c_void_p),
        ("ids", Ids),
        ("pool", ctypes.c_void_p),
        ("plan", ctypes.c_void_p),
        ("combiner", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("zero_filled", ctypes.c_bool),
        ("dense", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("output_stride", ctypes.c_int64),
        ("chunk_bytes", ctypes.c_int64),
        ("outer", ctypes.c_int64),
        ("cast", ctypes.c_int32),
    )


@dataclasses.dataclass
class Field:
    """A member: rows of bytes and ids, or without ids the rows themselves.

    Attributes:
      ids: a matrix, of which the columns from `begin` on are read, `inside` rows
        of the table per row of the output.
    """

    rows: np.ndarray
    ids: np.ndarray | None = None
    begin: int = 0
    width: int = 1
    inside: int = 1
    narrow: bool = False

    @property
    def chunk_bytes(self) -> int:
        return self.rows.shape[1] * self.inside

    def read_ids(self) -> np.ndarray:
        ids = self.ids[:, self.begin : self.begin + self.width].reshape(-1)
        return ids.astype(np.int32).astype(np.int64) if self.narrow else ids

    def bad(self) -> np.ndarray:
        ids = self.read_ids()
        return (ids < 0) | (ids >= len(self.rows))

    def expected(self, outer: int) -> np.ndarray:
        if self.ids is None:
            return self.rows
        # A row of zeros behind the table, which the bad ids read.
        rows = np.pad(self.rows, ((0, 1), (0, 0)))
        ids = np.where(self.bad(), len(self.rows), self.read_ids())
        return rows[ids].reshape(outer, self.chunk_bytes)


@dataclasses.dataclass
class Output:
    """Members side by side in one tensor, with `gap` bytes behind each row."""

    outer: int
    fields: list[Field]
    gap: int = 0

    @property
    def stride(self) -> int:
        return sum(field.chunk_bytes for field in self.fields) + self.gap

    def expected(self) -> np.ndarray:
        gap = np.full((self.outer, self.gap), POISON, np.uint8)
        return np.concatenate(
            [field.expected(self.outer) for field in self.fields] + [gap], axis=1
        )


class HostMemory:
    """Where the arrays of a pack lie."""

    def __init__(self):
        self.kept = []

    def allocate(self, size: int) -> int:
        block = np.zeros(size + 255, np.uint8)
        self.kept.append(block)
        return -(-block.ctypes.data // 256) * 256

    def put(self, array: np.ndarray, offset: int = 0) -> int:
        """Copies an array, `offset` bytes behind an aligned address."""
        address = self.allocate(array.nbytes + offset) + offset
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return address


def place(outputs: list[Output], memory: HostMemory, offset: int):
    """The members and the address of each output."""
    members, addresses = [], []
    for output in outputs:
        size = output.outer * output.stride
        addresses.append(memory.put(np.full(size, POISON, np.uint8), offset))
        column = 0
        for field in output.fields:
            member = Member(
                output=addresses[-1] + column,
                output_stride=output.stride,
                chunk_bytes=field.chunk_bytes,
                outer=output.outer,
            )
            rows = memory.put(field.rows, offset)
            if field.ids is None:
                member.dense = rows
            else:
                # An empty table has no address.
                member.table = rows if len(field.rows) else None
                member.rows, member.row_bytes = field.rows.shape
                ids = field.ids
                member.ids = Ids(
                    data=memory.put(ids) + field.begin * ids.itemsize,
                    is_int64=ids.dtype == np.int64,
                    narrow=field.narrow,
                    size=len(ids) * field.width,
                    width=field.width,
                    stride=ids.shape[1],
                )
            members.append(member)
            column += field.chunk_bytes
    return (Member * len(members))(*members), addresses


def check(outputs: list[Output], memory: HostMemory, run, offset: int = 0) -> None:
    """Runs a pack by run(members) -> number of bad ids, and compares."""
    members, addresses = place(outputs, memory, offset)
    bad = run(members)
    for k, (output, address) in enumerate(zip(outputs, addresses, strict=True)):
        expected = output.expected()
        got = ctypes.string_at(address, expected.nbytes)
        got = np.frombuffer(got, np.uint8).reshape(expected.shape)
        np.testing.assert_array_equal(got, expected, f"output {k}")
    fields = [field for output in outputs for field in output.fields]
    assert bad == sum(field.bad().sum() for field in fields if field.ids is not None)


def random_field(rng: np.random.Generator, outer: int, item: int) -> Field:
    dim = int(rng.choice([1, 2, 3, 4, 8, 13, 16, 18, 64, 128, 129, 300, 520]))
    if rng.random() < 0.2:
        return Field(rng.integers(0, 256, (outer, dim * item), np.uint8))
    table = rng.integers(
        0, 256, (rng.choice([0, 1, 5, 1000], p=(0.1, 0.1, 0.2, 0.6)), dim * item),
        np.uint8,
    )  # fmt: skip
    inside = int(rng.choice([1, 1, 2, 7]))
    width = int(rng.choice([1, inside]))
    columns = width + int(rng.integers(0, 4))
    dtype = rng.choice([np.int32, np.int64])
    shape = (outer * inside // width, columns)
    ids = rng.integers(0, max(len(table), 1), shape).astype(dtype)
    narrow = dtype == np.int64 and rng.random() < 0.5
    if narrow:  # what is above the lower half is to be dropped
        ids += rng.integers(-3, 4, shape) << 32
    if rng.random() < 0.5:
        wild = [v for v in WILD if np.iinfo(dtype).min <= v <= np.iinfo(dtype).max]
        bad = rng.random(shape) < 0.1
        ids[bad] = rng.choice([*wild, len(table)], shape).astype(dtype)[bad]
    begin = int(rng.integers(0, columns - width + 1))
    return Field(table, ids, begin, width, inside, narrow)


def random_pack(seed: int) -> tuple[list[Output], int]:
    """Outputs, and the offset of their addresses."""
    rng = np.random.default_rng(seed)
    item = int(rng.choice([1, 2, 4, 8]))
    outputs = []
    for _ in range(rng.integers(1, 5)):
        outer = int(rng.choice([0, 1, 3, 31, 32, 100]))
        fields = [random_field(rng, outer, item) for _ in range(rng.integers(1, 5))]
        outputs.append(Output(outer, fields, int(rng.choice([0, item]))))
    return outputs, int(rng.choice([0, item]))


def many_tables() -> list[Output]:
    """2,000 members, of which every third is empty."""
    rng = np.random.default_rng(0)
    outputs = []
    for k in range(2000):
        outer = (k % 3) * 5
        ids = rng.integers(0, 10, (outer, 1)).astype(np.int64)
        table = rng.integers(0, 256, (10, 64), np.uint8)
        outputs.append(Output(outer, [Field(table, ids)]))
    return outputs


# The arithmetic, on the CPU.


@pytest.fixture(scope="module")
def on_host(tmp_path_factory) -> ctypes.CDLL:
    """The kernel's arithmetic without the kernel."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    path = tmp_path_factory.mktemp("host") / "lookup_on_host.so"
    source = ROOT / "tests" / "lookup_on_host.cc"
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
         f"-I{ROOT}", source, "-o", path],
        check=True,
    )  # fmt: skip
    library = ctypes.CDLL(path)
    library.LookupMemberBytes.restype = ctypes.c_int64
    library.LookupOnHost.restype = None
    assert library.LookupMemberBytes() == ctypes.sizeof(Member)
    return library


def run_on_host(library: ctypes.CDLL, seen: collections.Counter):
    """A function for `check`; counts in `seen` the sizes of vectors in use."""

    def run(members) -> int:
        bad, vectors = ctypes.c_int64(), (ctypes.c_int64 * 17)()
        count = ctypes.c_int64(len(members))
        library.LookupOnHost(members, count, ctypes.byref(bad), vectors)
        seen.update({size: tiles for size, tiles in enumerate(vectors) if tiles})
        return bad.value

    return run


def test_arithmetic_on_the_cpu(on_host):
    seen = collections.Counter()
    for seed in range(200):
        outputs, offset = random_pack(seed)
        check(outputs, HostMemory(), run_on_host(on_host, seen), offset)
    assert set(seen) == {1, 2, 4, 8, 16}


def test_many_tables_on_the_cpu(on_host):
    seen = collections.Counter()
    check(many_tables(), HostMemory(), run_on_host(on_host, seen))
    assert seen == {16: 1333}  # a tile for each table that has ids


# The kernel, on a GPU.


class DeviceMemory(HostMemory):
    """Memory that both host and device reach, from the driver."""

    def __init__(self):
        super().__init__()
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        # The context that the CUDA runtime uses too.
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *args) -> None:
        error = getattr(self.driver, name)(*args)
        assert error == 0, f"{name}: error {error}"

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        everywhere = ctypes.c_uint(1)
        self.call(
            "cuMemAllocManaged",
            ctypes.byref(address), ctypes.c_size_t(max(size, 1)), everywhere,
        )  # fmt: skip
        self.kept.append(address)
        return address.value

    def free(self) -> None:
        for address in self.kept:
            self.call("cuMemFree_v2", address)
        self.kept.clear()


@pytest.fixture
def memory(native):
    if not has_gpu():
        pytest.skip("not run: there is no GPU")
    memory = DeviceMemory()
    yield memory
    memory.free()


def run_on_gpu(library: ctypes.CDLL, memory: DeviceMemory):
    def run(members) -> int:
        size = library.PicassoCudaLookupDescriptorBytes(len(members))
        descriptors = ctypes.create_string_buffer(size)
        bad = memory.put(np.zeros(1, np.int64))
        error = library.PicassoCudaPackedLookup(
            members, len(members), descriptors, memory.allocate(size), bad, None
        )
        assert error is None, error.decode()
        memory.call("cuCtxSynchronize")
        return ctypes.c_int64.from_address(bad).value

    return run


@pytest.mark.parametrize("seed", range(40))
def test_kernel_on_a_gpu(native, memory, seed):
    outputs, offset = random_pack(seed)
    check(outputs, memory, run_on_gpu(native, memory), offset)


def test_many_tables_on_a_gpu(native, memory):
    check(many_tables(), memory, run_on_gpu(native, memory))


def test_without_a_gpu_the_launch_says_so(native):
    if has_gpu():
        pytest.skip("there is a GPU")
    member = Member(dense=1, output=1, chunk_bytes=4, output_stride=4, outer=1)
    size = native.PicassoCudaLookupDescriptorBytes(1)
    buffer = ctypes.create_string_buffer(size)
    error = native.PicassoCudaPackedLookup(
        ctypes.pointer(member), 1, buffer, buffer, None, None
    )
    assert error is not None and b"CUDA" in error


def test_no_members_need_no_gpu(native):
    assert native.PicassoCudaPackedLookup(None, 0, None, None, None, None) is None
