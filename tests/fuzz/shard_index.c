/* tests/fuzz/shard_index.c - /index of a shard: the input is its rows. Of what is accepted, every
 * chunk is read. */
#include "ckpt/sha256.h"
#include "ckpt/shard.h"
#include "tests/fuzz/fuzz.h"

enum { PAYLOAD = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char file[PAYLOAD + (1 << 16)], chunk_bytes[CHUNK_BYTES_MAX];
    struct tensor tensors[] = {
        { .name = "a", .group = "param", .dtype = DTYPE_F32, .ndim = 2, .shape = { 16, 16 } },
        { .name = "b", .group = "param", .dtype = DTYPE_BF16, .ndim = 1, .shape = { 64 } },
        { .name = "c", .group = "param", .dtype = DTYPE_U8, .ndim = 0 },
    };
    const struct layout layout = { .n_tensors = 3, .tensors = tensors };
    struct shard_info info = { .file = "rank-00000.h5", .index_offset = PAYLOAD };
    struct shard_reader *r = NULL;
    const struct chunk_entry *chunks;
    struct tp_err err = { 0 };
    int64_t n = 0;
    tp_status st;

    size = size < sizeof file - PAYLOAD ? size : sizeof file - PAYLOAD;
    memcpy(file + PAYLOAD, data, size);
    info.chunked = size % 2; /* then rows may be compressed */
    info.index_rows = (int64_t)size / CHUNK_ENTRY_BYTES;
    info.size_bytes = PAYLOAD + (int64_t)size;
    fuzz_must(sha256_of(info.index_sha256, file + PAYLOAD,
                        (size_t)info.index_rows * CHUNK_ENTRY_BYTES, &err) == TP_OK,
              "no memory");
    fuzz_write(info.file, file, PAYLOAD + size);
    st = shard_open(&r, fuzz_dir(), &info, &layout, &err);
    fuzz_check_error(st, &err);
    if (st)
        return 0;
    chunks = shard_chunks(r, &n);
    for (int64_t i = 0; i < n; i++) {
        fuzz_must(chunks[i].raw_bytes <= (int64_t)sizeof chunk_bytes, "a chunk is too large");
        fuzz_check_error(shard_read_chunk(r, i, chunk_bytes, &err), &err);
    }
    shard_reader_close(r);
    return 0;
}
