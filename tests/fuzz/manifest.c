/* tests/fuzz/manifest.c - manifest.json: the input is its text up to the checksum. What is accepted
 * is cut, written again and must be accepted again. */
#include "ckpt/manifest.h"
#include "ckpt/sha256.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 8, CUTS = 64 };

/* The boxes of some tensors and ranks lie in their tensors. */
static void check_cuts(const struct layout *l)
{
    for (int t = 0; t < l->n_tensors && t < CUTS; t++) {
        const struct box whole = box_whole(l->tensors[t].ndim, l->tensors[t].shape);

        for (int rank = 0; rank < spec_world(&l->spec) && rank < RANKS; rank++) {
            struct box boxes[TENSOR_BOXES_MAX];
            int n = layout_boxes(l, t, rank, boxes);

            fuzz_must(n >= 0 && n <= TENSOR_BOXES_MAX, "too many boxes");
            for (int i = 0; i < n; i++)
                fuzz_must(box_contains(&whole, &boxes[i]), "a box outside its tensor");
        }
    }
}

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
    if (st == TP_OK)
        check_cuts(&m.layout);
    if (st == TP_OK && manifest_format(&again, &n, &m, &err) == TP_OK) {
        in = json_scan_input_text(again, n, "manifest.json");
        fuzz_must(manifest_parse(&m, &in, &arena, &err) == TP_OK, "what was written is refused");
    }
    free(again);
    free(text);
    arena_free(&arena);
    return 0;
}
