/*
 * reshard/formats/gguf/gguf_q8_0.h - ggml's type Q8_0: blocks of 32 elements, each an f16 scale and
 * 32 signed bytes.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_Q8_0_H
#define RESHARD_FORMATS_GGUF_GGUF_Q8_0_H

#include <stdbool.h>
#include <stdint.h>

enum { GGUF_Q8_0_ELEMENTS = 32, GGUF_Q8_0_BYTES = 34 };

/* Quantize n elements, a multiple of 32, as ggml's reference code does: the scale is the largest
 * absolute value / 127, and elements are rounded to the nearest, halves away from zero. `to` has
 * n / 32 * 34 bytes. False: an element is infinite or no number, or too large for the scale. */
bool gguf_q8_0_quantize(void *to, const float *from, int64_t n);

#endif
