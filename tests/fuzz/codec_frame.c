/* tests/fuzz/codec_frame.c - a compressed chunk: the input is three bytes that say what the index
 * states of it (kind, size of its elements, length), and then its frame. What is accepted is
 * encoded and decoded again. */
#include "ckpt/codec.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct codec_decoder *d;
    static struct codec_encoder *e;
    static unsigned char out[1 << 20], again[1 << 20];
    struct codec_frame f = { .codec = 1 + fuzz_take(&data, &size) % 2 };
    struct codec_chunk chunk = { .data = again, .always = true };
    struct codec_stored stored;
    struct tp_err err = { 0 };
    uint8_t length;

    if (!d)
        fuzz_must(codec_decoder_new(&d, &err) == TP_OK && codec_encoder_new(&e, 1, &err) == TP_OK,
                  "no memory");
    f.elem_bytes = 1 << fuzz_take(&data, &size) % 4;
    length = fuzz_take(&data, &size);
    f.frame_bytes = (length / 16 + 1) * 64 * f.elem_bytes;
    f.raw_bytes = f.frame_bytes / 16 * (length % 16 + 1);
    f.stored_bytes = (int64_t)size;
    memcpy(codec_decoder_input(d), data, size);
    if (codec_decode(d, &f, out))
        return 0;
    memset(again, 0, (size_t)f.frame_bytes);
    memcpy(again, out, (size_t)f.raw_bytes);
    chunk.n_bytes = f.frame_bytes;
    chunk.elem_bytes = f.elem_bytes;
    fuzz_must(codec_encode(&stored, e, &chunk, &err) == TP_OK, "it cannot be encoded");
    fuzz_must(stored.codec != CODEC_RAW, "a frame was demanded");
    f.codec = stored.codec;
    f.stored_bytes = stored.bytes;
    memcpy(codec_decoder_input(d), again, (size_t)stored.bytes);
    fuzz_must(codec_decode(d, &f, again) == NULL, "it cannot be decoded again");
    fuzz_must(memcmp(again, out, (size_t)f.raw_bytes) == 0, "it changed");
    return 0;
}
