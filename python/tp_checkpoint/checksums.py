"""CRC32C and digests (docs/FORMAT.md, sections 4 and 6), with numpy alone.

The CRC uses google-crc32c or crc32c where one of them is installed. Both sums are of many elements at
once: lanes of a CRC advance together, and a digest is a product of matrices whose sums are exact in
float64.
"""
import functools

import numpy as np

# ---- CRC32C ----------------------------------------------------------------------------------

POLYNOMIAL = 0x82F63B78
LANE_BYTES = 256
LANES_LEAST = 16  # with fewer, a loop over bytes is faster


def _find_library():
    try:
        import google_crc32c
        if google_crc32c.implementation != "python":
            return google_crc32c.value
    except ImportError:
        pass
    try:
        import crc32c
        return crc32c.crc32c
    except ImportError:
        return None


_library = _find_library()


@functools.lru_cache(None)
def _table(zero_bytes):
    """For each byte in front of so many zero bytes, its contribution to a register."""
    if zero_bytes == 0:
        table = np.arange(256, dtype=np.uint32)
        for _ in range(8):
            table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
        return table
    before = _table(zero_bytes - 1)
    return (before >> 8) ^ _table(0)[before & 0xFF]


@functools.lru_cache(None)
def _pair_tables():
    """Two tables that advance a register by four bytes: of its lower and of its upper 16 bits."""
    low, high = np.arange(65536) & 0xFF, np.arange(65536) >> 8
    return _table(3)[low] ^ _table(2)[high], _table(1)[low] ^ _table(0)[high]


def _advance(registers, words):
    """Each register after four more bytes."""
    lower, upper = _pair_tables()
    x = registers ^ words
    return lower.take(x & 0xFFFF) ^ upper.take(x >> 16)


@functools.lru_cache(None)
def _shift_columns(n_bytes):
    """The 32 columns of the matrix that advances a register over n_bytes zero bytes."""
    if n_bytes == 4:
        return _advance(np.uint32(1) << np.arange(32, dtype=np.uint32), np.uint32(0))
    if n_bytes % 2 or n_bytes < 4:
        raise AssertionError("lanes have a power of two of bytes")
    half = _shift_columns(n_bytes // 2)
    return _apply(half, half)


def _apply(columns, registers):
    out = np.zeros_like(registers)
    for bit in range(32):
        out ^= columns[bit] * ((registers >> np.uint32(bit)) & np.uint32(1))
    return out


def _crc_lanes(data, register):
    """The register after `data`, a power of two of lanes."""
    words = np.ascontiguousarray(data.view("<u4").reshape(-1, LANE_BYTES // 4).T)
    lanes = np.zeros(words.shape[1], np.uint32)
    lanes[0] = register
    for row in words:
        lanes = _advance(lanes, row)
    n_bytes = LANE_BYTES
    while len(lanes) > 1:
        lanes = _apply(_shift_columns(n_bytes), lanes[0::2]) ^ lanes[1::2]
        n_bytes *= 2
    return int(lanes[0])


def _crc_bytes(data, register):
    table = _byte_list()
    for byte in data.tobytes():
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register


@functools.lru_cache(None)
def _byte_list():
    return _table(0).tolist()


def crc32c_numpy(data):
    """The CRC32C of an array of uint8, without a library."""
    register, at = 0xFFFFFFFF, 0
    while len(data) - at >= LANE_BYTES * LANES_LEAST:
        lanes = 1 << ((len(data) - at) // LANE_BYTES).bit_length() - 1
        register = _crc_lanes(data[at:at + lanes * LANE_BYTES], register)
        at += lanes * LANE_BYTES
    return _crc_bytes(data[at:], register) ^ 0xFFFFFFFF


def crc32c(data):
    """The CRC32C of an array of uint8."""
    return _library(data.tobytes()) if _library else crc32c_numpy(data)


# ---- digests ---------------------------------------------------------------------------------

PRIME = (1 << 61) - 1
POINTS = (0x0D413CCCFE779921, 0x176CF5D0B09954E7)
BLOCK = 4096  # elements whose powers are in a table
LIMB_BITS = 21


@functools.lru_cache(None)
def _limbs(parts):
    """The powers r^0 .. r^(BLOCK-1) of both points as columns of three limbs each. An element is `parts`
    numbers of 16 bits, which have rows of their own. A number times a limb has 37 bits, and 65536 of
    these are exact in float64."""
    rows = []
    powers = [1] * len(POINTS)
    for _ in range(BLOCK):
        for part in range(parts):
            row = []
            for power in powers:
                x = (power << 16 * part) % PRIME
                row += [x >> LIMB_BITS * k & (1 << LIMB_BITS) - 1 for k in range(3)]
            rows.append(row)
        powers = [power * point % PRIME for power, point in zip(powers, POINTS)]
    return np.array(rows, np.float64)


@functools.lru_cache(None)
def _power_sums(n):
    """r^0 + ... + r^(n-1) of both points."""
    return tuple((pow(r, n, PRIME) - 1) * pow(r - 1, PRIME - 2, PRIME) % PRIME for r in POINTS)


def _sum_runs(numbers, parts, firsts):
    """Both sums of runs of consecutive elements: the rows of `numbers`, at most BLOCK elements each, whose
    first elements have the indices `firsts`."""
    products = numbers.astype(np.float64) @ _limbs(parts)[:numbers.shape[1]]
    ones = _power_sums(numbers.shape[1] // parts)
    sums = [0, 0]
    for columns, first in zip(products.astype(np.int64).tolist(), firsts):
        for k, point in enumerate(POINTS):
            low, middle, high = columns[3 * k:3 * k + 3]
            value = low + (middle << LIMB_BITS) + (high << 2 * LIMB_BITS) + ones[k]
            sums[k] += value % PRIME * pow(point, first, PRIME) % PRIME
    return sums


def _sum_rows(numbers, parts, firsts):
    """The same for rows of any length."""
    count = numbers.shape[1] // parts
    whole = count // BLOCK * BLOCK
    sums = [0, 0]
    if whole:
        blocks = numbers[:, :whole * parts].reshape(-1, BLOCK * parts)
        begins = [first + at for first in firsts for at in range(0, whole, BLOCK)]
        sums = _sum_runs(blocks, parts, begins)
    if count > whole:
        rest = _sum_runs(numbers[:, whole * parts:], parts, [first + whole for first in firsts])
        sums = [a + b for a, b in zip(sums, rest)]
    return sums


def digest(values, lo, shape):
    """D_0 and D_1 of `values`, a box that begins at `lo` of a tensor of this shape. Values of 16 bits and
    more are taken as their bits."""
    lens, itemsize = [1, *values.shape], values.itemsize
    lo, shape = [0, *lo], [1, *shape]
    if itemsize == 8:  # an element of 8 bytes counts as two
        lo[-1], shape[-1], lens[-1], itemsize = 2 * lo[-1], 2 * shape[-1], 2 * lens[-1], 4
    last = len(shape) - 1  # from this axis on, elements are consecutive
    while last > 0 and lens[last] == shape[last]:
        last -= 1
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    begin = sum(a * s for a, s in zip(lo, strides))
    firsts = [begin + sum(i * s for i, s in zip(index, strides)) for index in np.ndindex(*lens[:last])]
    numbers = np.ascontiguousarray(values).reshape(-1).view("<u1" if itemsize == 1 else "<u2")
    sums = _sum_rows(numbers.reshape(len(firsts), -1), max(itemsize // 2, 1), firsts)
    return [s % PRIME for s in sums]
