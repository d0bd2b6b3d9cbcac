/* tests/fuzz/dcp_metadata.c - .metadata of torch.distributed.checkpoint. The items that are
 * accepted must have names, and files that are in the folder. */
#include "reshard/formats/torch/dcp_metadata.h"
#include "core/file.h"
#include "tests/fuzz/fuzz.h"

enum { MEMORY = 64 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = { .limit_bytes = MEMORY };
    struct dcp_item *items = NULL;
    struct tp_err err = { 0 };
    int n = 0;
    tp_status st;

    fuzz_write(".metadata", data, size);
    st = dcp_metadata_read(&items, &n, fuzz_dir(), &arena, &err);
    fuzz_check_error(st, &err);
    for (int i = 0; i < n && st == TP_OK; i++) {
        const struct dcp_item *item = &items[i];

        fuzz_must(item->name[0] && file_name_is_plain(item->file) && item->begin >= 0 &&
                      item->size >= 0,
                  "an item without a place");
        if (item->is_object)
            continue;
        fuzz_must(item->ndim >= 0 && item->ndim <= BOX_NDIM_MAX && item->box.ndim == item->ndim,
                  "a box of another number of axes");
        for (int d = 0; d < item->ndim; d++)
            fuzz_must(item->shape[d] >= 0 && item->box.lo[d] >= 0 && item->box.len[d] > 0,
                      "an axis below zero");
    }
    arena_free(&arena);
    return 0;
}
