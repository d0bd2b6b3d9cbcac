/* ckpt/chunk.c - see ckpt/shard.h, shard_chunk_elements. */
#include "ckpt/shard.h"

enum {
    GRANULES =
        16, /* of a tensor's rows: where a cut to two, four, eight or sixteen has its edges */
    DIVISORS_TRIED = 64,
    CHUNK_BYTES_LEAST = 64 << 10,
    RAGGED_BYTES = 1 << 20, /* of chunks that meet no edge: what is read beyond one stays small */
};

/* Rows in the fewest equal parts that have at most `most` each; 0: no number of parts near the
 * fewest divides them. */
static int64_t divide_evenly(int64_t rows, int64_t most)
{
    int64_t fewest = (rows + most - 1) / most;

    for (int64_t parts = fewest; parts < fewest + DIVISORS_TRIED; parts++)
        if (rows % parts == 0)
            return rows / parts;
    return 0;
}

/* Rows of a chunk. */
static int64_t chunk_rows(int64_t tensor_rows, int64_t row_bytes)
{
    int64_t parts = GRANULES, rows, most = SHARD_CHUNK_BYTES / row_bytes;

    while (parts > 1 &&
           (tensor_rows % parts || tensor_rows / parts * row_bytes < CHUNK_BYTES_LEAST))
        parts /= 2;
    rows = tensor_rows / parts;
    if (rows <= most)
        return rows;
    rows = divide_evenly(rows, most);
    if (rows * row_bytes < RAGGED_BYTES)
        rows = row_bytes < RAGGED_BYTES ? RAGGED_BYTES / row_bytes : 1;
    return rows;
}

int64_t shard_chunk_elements(const struct tensor *t, const struct box *b)
{
    int64_t elem = dtype_bytes(t->dtype), most = SHARD_CHUNK_BYTES / elem, width, rows;

    if (b->ndim == 0 || box_is_empty(b))
        return most;
    width = box_elements(b) / b->len[0];
    if (width > most)
        return most; /* not even a row */
    rows = t->placement.dim == 0 && t->placement.blocks > 1 ? t->shape[0] / t->placement.blocks
                                                            : t->shape[0];
    return chunk_rows(rows, width * elem) * width;
}
