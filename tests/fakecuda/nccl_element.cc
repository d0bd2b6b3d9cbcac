/* tests/fakecuda/nccl_element.cc - see tests/fakecuda/nccl_element.h. */
#include "tests/fakecuda/nccl_element.h"

#include <algorithm>
#include <cstring>

#include "tests/fakecuda/stream.h"

namespace fake
{

size_t nccl_width(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclBfloat16:
        return 2;
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    default:
        report(nullptr, "NCCL: the fake device has no elements of type %d", (int)type);
    }
}

const char *nccl_type_name(int32_t type)
{
    switch (type) {
    case ncclUint8:
        return "bytes";
    case ncclBfloat16:
        return "bf16";
    case ncclFloat32:
        return "f32";
    case ncclInt64:
        return "i64";
    default:
        return "f64";
    }
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return f != f ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T> static void combine_as(char *to, const char *from, size_t n, int op)
{
    T *a = (T *)to;
    const T *b = (const T *)from;

    for (size_t i = 0; i < n; i++)
        a[i] = op == ncclMax ? std::max(a[i], b[i]) : (T)(a[i] + b[i]);
}

void nccl_combine(char *to, const char *from, size_t n, int type, int op)
{
    if (type == ncclFloat32)
        combine_as<float>(to, from, n, op);
    else if (type == ncclFloat64)
        combine_as<double>(to, from, n, op);
    else if (type == ncclInt64)
        combine_as<int64_t>(to, from, n, op);
    else if (type == ncclUint8)
        combine_as<uint8_t>(to, from, n, op);
    else
        for (size_t i = 0; i < n; i++) {
            float a = from_bf16(((uint16_t *)to)[i]), b = from_bf16(((const uint16_t *)from)[i]);
            ((uint16_t *)to)[i] = to_bf16(op == ncclMax ? std::max(a, b) : a + b);
        }
}

} // namespace fake
