/* reshard/formats/gguf/gguf_q8_0.c - see reshard/formats/gguf/gguf_q8_0.h. */
#include "reshard/formats/gguf/gguf_q8_0.h"

#include <math.h>
#include <string.h>

#include "kernels/cast.h"

enum {
    GROUP = 64,                /* blocks whose scales are cast at once */
    F32_INFINITY = 0x7f800000, /* as bits; larger numbers are not numbers */
};

#define F16_MAX 65504.0F

/* The largest absolute value of a block, as bits. Positive floats are ordered like their bits, so
 * that this is a loop of integers, which compilers vectorize. */
static int32_t largest_bits(const float *from)
{
    int32_t bits[GGUF_Q8_0_ELEMENTS], largest = 0;

    memcpy(bits, from, sizeof bits);
    for (int i = 0; i < GGUF_Q8_0_ELEMENTS; i++) {
        const int32_t b = bits[i] & 0x7fffffff;

        largest = b > largest ? b : largest;
    }
    return largest;
}

/* Round to the nearest, halves away from zero. */
static void round_block(signed char *to, const float *from, float inverse)
{
    for (int i = 0; i < GGUF_Q8_0_ELEMENTS; i++) {
        const float x = from[i] * inverse;
        const int whole = (int)x;
        const float rest = x - (float)whole;

        to[i] = (signed char)(whole + (rest >= 0.5F) - (rest <= -0.5F));
    }
}

static bool quantize_block(char *to, float *scale, const float *from)
{
    const int32_t bits = largest_bits(from);
    float largest, inverse;

    if (bits >= F32_INFINITY)
        return false;
    memcpy(&largest, &bits, sizeof largest);
    *scale = largest / 127;
    inverse = *scale > 0 ? 1 / *scale : 0;
    if (!isfinite(inverse)) /* the scale is 0 in f16 */
        inverse = 0;
    round_block((signed char *)to + sizeof(uint16_t), from, inverse);
    return *scale <= F16_MAX;
}

bool gguf_q8_0_quantize(void *to, const float *from, int64_t n)
{
    const int64_t blocks = n / GGUF_Q8_0_ELEMENTS;
    float scales[GROUP];
    uint16_t halves[GROUP];

    for (int64_t first = 0; first < blocks; first += GROUP) {
        const int64_t count = blocks - first < GROUP ? blocks - first : GROUP;
        char *group = (char *)to + first * GGUF_Q8_0_BYTES;

        for (int64_t i = 0; i < count; i++)
            if (!quantize_block(group + i * GGUF_Q8_0_BYTES, &scales[i],
                                from + (first + i) * GGUF_Q8_0_ELEMENTS))
                return false;
        cast(halves, DTYPE_F16, scales, DTYPE_F32, count);
        for (int64_t i = 0; i < count; i++)
            memcpy(group + i * GGUF_Q8_0_BYTES, &halves[i], sizeof *halves);
    }
    return true;
}
