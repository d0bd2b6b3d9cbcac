/* reshard/formats/gguf_q8_0.c - see reshard/formats/gguf_q8_0.h. */
#include "reshard/formats/gguf_q8_0.h"

#include <math.h>
#include <string.h>

#include "kernels/cast.h"

#define F16_MAX 65504.0F

static bool quantize_block(char *to, const float *from)
{
    float largest = 0, scale, inverse;
    signed char *values = (signed char *)to + sizeof(uint16_t);

    for (int i = 0; i < GGUF_Q8_0_ELEMENTS; i++) {
        if (!isfinite(from[i]))
            return false;
        largest = fmaxf(largest, fabsf(from[i]));
    }
    scale = largest / 127;
    if (scale > F16_MAX)
        return false;
    inverse = scale > 0 ? 1 / scale : 0;
    cast(to, DTYPE_F16, &scale, DTYPE_F32, 1);
    for (int i = 0; i < GGUF_Q8_0_ELEMENTS; i++)
        values[i] = (signed char)roundf(from[i] * inverse);
    return true;
}

bool gguf_q8_0_quantize(void *to, const float *from, int64_t n)
{
    for (int64_t block = 0; block < n / GGUF_Q8_0_ELEMENTS; block++)
        if (!quantize_block((char *)to + block * GGUF_Q8_0_BYTES,
                            from + block * GGUF_Q8_0_ELEMENTS))
            return false;
    return true;
}
