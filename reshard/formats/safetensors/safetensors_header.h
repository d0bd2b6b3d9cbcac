/*
 * reshard/formats/safetensors/safetensors_header.h - the header of a safetensors file.
 *
 *     u64 N, little-endian | N bytes of JSON, padded with spaces | data
 *     {"__metadata__": {...}, "NAME": {"dtype": "F32", "shape": [...], "data_offsets": [b, e]},
 * ...}
 *
 * Offsets count from the end of the header. Readers require data without holes, and N of at most
 * 100,000,000.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_HEADER_H
#define RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_HEADER_H

#include "core/arena.h"
#include "reshard/formats/safetensors/fp8.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "storage/object.h"

struct safetensors_entry {
    struct safetensors_tensor tensor; /* dtype DTYPE_COUNT: a type that is not supported here */
    enum fp8_type fp8;                /* which of these types it is */
    int64_t begin, end;               /* bytes in the file */
};

/* An open file. */
struct safetensors_header_file {
    struct object object; /* borrowed */
    int64_t size;
    const char *path; /* for messages */
};

/* Read and check the header of a file: entries in the order of their data, in the arena.
 * Besides the entries it needs at most 64 MiB, whatever the header is. TP_E_CORRUPT says what is
 * wrong. */
tp_status safetensors_header_read(struct safetensors_entry **entries, int *n,
                                  const struct safetensors_header_file *file, struct arena *arena,
                                  struct tp_err *err);

/* Lay out a file: fill in begin and end of the entries, whose order is that of the data, and make
 * the bytes before the data. *header is malloc'ed. */
tp_status safetensors_header_make(char **header, int64_t *header_bytes,
                                  struct safetensors_entry *entries, int n, struct tp_err *err);

#endif
