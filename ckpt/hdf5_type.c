/* ckpt/hdf5_type.c - see ckpt/hdf5_type.h. */
#include "ckpt/hdf5_type.h"

#include "ckpt/chunk.h"

/* Floating-point types that HDF5 does not predefine: 16 bits, from the top sign, exponent,
 * mantissa. */
static hid_t make_float16(int exponent_bits, int mantissa_bits, int bias)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);

    if (t < 0)
        return -1;
    if (H5Tset_fields(t, 15, (size_t)mantissa_bits, (size_t)exponent_bits, 0,
                      (size_t)mantissa_bits) < 0 ||
        H5Tset_precision(t, 16) < 0 || H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, (size_t)bias) < 0) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

hid_t hdf5_type_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DTYPE_BF16:
        return make_float16(8, 7, 127);
    case DTYPE_F16:
        return make_float16(5, 10, 15);
    case DTYPE_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case DTYPE_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case DTYPE_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case DTYPE_U8:
        return H5Tcopy(H5T_STD_U8LE);
    default:
        return -1;
    }
}

static herr_t insert(hid_t type, const char *name, size_t *offset, hid_t member, int count)
{
    hsize_t n = (hsize_t)count;
    hid_t t = count > 1 ? H5Tarray_create2(member, 1, &n) : H5Tcopy(member);
    herr_t result = t < 0 ? -1 : H5Tinsert(type, name, *offset, t);

    if (t >= 0) {
        *offset += H5Tget_size(t);
        H5Tclose(t);
    }
    return result;
}

hid_t hdf5_type_of_index(void)
{
    hid_t t = H5Tcreate(H5T_COMPOUND, CHUNK_ENTRY_BYTES);
    size_t at = 0;

    if (t < 0)
        return -1;
    if (insert(t, "tensor", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "part", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "ndim", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "codec", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "lo", &at, H5T_STD_I64LE, BOX_NDIM_MAX) < 0 ||
        insert(t, "len", &at, H5T_STD_I64LE, BOX_NDIM_MAX) < 0 ||
        insert(t, "offset", &at, H5T_STD_I64LE, 1) < 0 ||
        insert(t, "stored_bytes", &at, H5T_STD_I64LE, 1) < 0 ||
        insert(t, "raw_bytes", &at, H5T_STD_I64LE, 1) < 0 ||
        insert(t, "crc32c", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "reserved", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "digest0", &at, H5T_STD_U64LE, 1) < 0 ||
        insert(t, "digest1", &at, H5T_STD_U64LE, 1) < 0 || at != CHUNK_ENTRY_BYTES) {
        H5Tclose(t);
        return -1;
    }
    return t;
}
