/* reshard/formats/gguf/gguf_header.c - see reshard/formats/gguf/gguf_header.h. */
#include "reshard/formats/gguf/gguf_header.h"

#include "reshard/formats/gguf/gguf_vocab.h"

enum { GGUF_VERSION = 3 };

tp_status gguf_header_make(struct gguf_bytes *b, const struct gguf_tensors *tensors,
                           const struct gguf_arch *a, const struct export_contents *q,
                           struct arena *arena, struct tp_err *err)
{
    struct gguf_bytes keys = { 0 };
    const enum dtype weights = q->tensors[0].dtype;
    tp_status st;

    gguf_key_string(&keys, NULL, "general.architecture", a->name);
    gguf_key_string(&keys, NULL, "general.type", "model");
    gguf_key_u32(&keys, NULL, "general.alignment", GGUF_ALIGN);
    gguf_key_u32(&keys, NULL, "general.file_type",
                 q->q8_0                 ? 7
                 : weights == DTYPE_F16  ? 1
                 : weights == DTYPE_BF16 ? 32
                                         : 0);
    gguf_key_u32(&keys, NULL, "general.quantization_version", 2);
    TP_TRY(gguf_model_keys(&keys, a, q->model, q->source, err));
    TP_TRY(gguf_vocab_keys(&keys, q, arena, err));
    gguf_bytes_add(b, "GGUF", 4);
    gguf_bytes_u32(b, GGUF_VERSION);
    gguf_bytes_u64(b, (uint64_t)tensors->n);
    gguf_bytes_u64(b, (uint64_t)keys.keys);
    gguf_bytes_add(b, keys.data, keys.n);
    gguf_tensors_entries(b, tensors);
    if (keys.failed || b->failed)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for the header of a GGUF file", q->dir);
done:
    gguf_bytes_free(&keys);
    return st;
}

void gguf_header_notes(const struct export_contents *q)
{
    const struct model *m = q->model;

    if (m->family == MODEL_MISTRAL && m->sliding_window > 0)
        progress_note(
            q->progress,
            "llama.cpp has no sliding window for Mistral, so its results differ after %lld tokens",
            (long long)m->sliding_window);
    if (m->rope_scaling.type == ROPE_SCALING_DYNAMIC)
        progress_note(q->progress,
                      "llama.cpp has no dynamic scaling of the rotary embedding, so its results "
                      "differ after %lld tokens",
                      (long long)m->max_positions);
}
