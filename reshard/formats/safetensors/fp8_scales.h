/*
 * reshard/formats/safetensors/fp8_scales.h - the scales of a weight in FP8: where they are, and the
 * weight that is read with them.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_FP8_SCALES_H
#define RESHARD_FORMATS_SAFETENSORS_FP8_SCALES_H

#include "core/err.h"
#include "reshard/formats/safetensors/safetensors_header.h"

/* Bytes of a file. The object and the path are borrowed. */
struct safetensors_bytes {
    const struct object *object;
    const char *path;
    int64_t begin, size;
};

tp_status safetensors_bytes_read(const struct safetensors_bytes *b, void *to, struct tp_err *err);
void safetensors_bytes_will_read(const struct safetensors_bytes *b);

struct fp8_scales {
    enum fp8_type fp8; /* how they are stored: as this, or, if it is FP8_NONE, as dtype */
    enum dtype dtype;
    struct safetensors_bytes all;
    struct fp8_grid grid;
    int ndim; /* of the weight */
    int64_t shape[BOX_NDIM_MAX];
};

/* The scales of weight t, which is in FP8. They are the tensor `entry`, and `all` its bytes.
 * TP_E_CORRUPT: they do not divide it, or have a type that is not supported. */
tp_status fp8_scales_make(struct fp8_scales *c, const struct safetensors_tensor *t,
                          const struct safetensors_entry *entry,
                          const struct safetensors_bytes *all, struct tp_err *err);

/* Read a run of the weight as bf16; it is `stored` in FP8, and not empty. */
tp_status fp8_scales_read(const struct fp8_scales *c, const struct safetensors_bytes *stored,
                          const struct box *run, void *buf, struct tp_err *err);

/* A run's scales will be read. */
void fp8_scales_will_read(const struct fp8_scales *c, const struct box *run);

#endif
