/* tests/fuzz/manifest.c - manifest.json: the input is its text up to the checksum. What is accepted
 * is written again and must be accepted again. */
#include "ckpt/manifest.h"
#include "ckpt/sha256.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char form[] = MANIFEST_CHECKSUM_HEAD "%s" MANIFEST_CHECKSUM_END;
    char sha[SHA256_TEXT], *text = malloc(size + sizeof form + SHA256_TEXT), *again = NULL;
    struct arena arena = { 0 };
    struct manifest m;
    struct tp_err err = { 0 };
    struct json_scan_input in;
    size_t n = size;
    tp_status st;

    fuzz_must(text && sha256_of(sha, data, size, &err) == TP_OK, "no memory");
    memcpy(text, data, size);
    n += (size_t)snprintf(text + size, sizeof form + SHA256_TEXT, form, sha);
    in = json_scan_input_text(text, n, "manifest.json");
    st = manifest_parse(&m, &in, &arena, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK && manifest_format(&again, &n, &m, &err) == TP_OK) {
        in = json_scan_input_text(again, n, "manifest.json");
        fuzz_must(manifest_parse(&m, &in, &arena, &err) == TP_OK, "what was written is refused");
    }
    free(again);
    free(text);
    arena_free(&arena);
    return 0;
}
