/* tests/fuzz/foreign_checkpoint.c - checkpoints of other frameworks: what their readers make of the
 * values in a pickle, or in the header of a safetensors file. The first byte of the input is the
 * format, and the rest is in every file of the folder: the pickle of a file of torch.save, with a
 * storage of 1 KiB; or how many zeros follow the header of a safetensors file, in two bytes, and
 * the header. (The pickle itself is the subject of torch_file.c, the header of
 * safetensors_header.c, and .metadata of dcp_metadata.c.) Every tensor that is accepted lies in the
 * files. */
#include <sys/stat.h>

#include "core/text.h"
#include "layout/model_config.h"
#include "reshard/formats/foreign.h"
#include "tests/fuzz/fuzz.h"
#include "torch/crc32.h"

enum { MEMORY = 64 << 20, STORAGE = 1 << 10, DECODED_MAX = 1 << 20, FILES_MAX = 6 };

#define CONFIG(family, more)                                                        \
    "{\"architectures\":[\"" family "\"],\"hidden_act\":\"silu\",\"vocab_size\":8," \
    "\"hidden_size\":4,\"intermediate_size\":4,\"num_hidden_layers\":2,"            \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":2,"           \
    "\"max_position_embeddings\":8,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"   \
    "\"tie_word_embeddings\":false," more "}"

enum { NO_MODEL = 2 };

/* The model without and with experts. */
static const char *const configs[] = {
    CONFIG("LlamaForCausalLM", "\"model_type\":\"llama\""),
    CONFIG("MixtralForCausalLM",
           "\"model_type\":\"mixtral\",\"num_local_experts\":2,\"num_experts_per_tok\":1")
};

static const char params[] =
    "{\"dim\":4,\"n_layers\":2,\"n_heads\":2,\"n_kv_heads\":1,\"vocab_size\":8,"
    "\"multiple_of\":4,\"ffn_dim_multiplier\":0.4,\"norm_eps\":1e-5}";

/* A folder of each kind, and its files with the input. */
static const struct folder {
    const char *format, *name, *files[FILES_MAX];
} folders[] = {
    { "megatron", "megatron", { "mp_rank_00/model_optim_rng.pt", "mp_rank_00/distrib_optim.pt" } },
    { "megatron",
      "stages",
      { "mp_rank_00_000/model_optim_rng.pt", "mp_rank_00_001/model_optim_rng.pt" } },
    { "deepspeed",
      "zero1",
      { "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt" } },
    { "deepspeed",
      "zero3",
      { "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt" } },
    { "deepspeed",
      "universal",
      { "mp_rank_00_model_states.pt", "zero/w/fp32.pt", "zero/w/exp_avg.pt", "zero/w/exp_avg_sq.pt",
        "zero/w/step.pt" } },
    { "bin", "bin", { "pytorch_model.bin" } },
    { "trainer", "trainer", { "pytorch_model.bin", "optimizer.pt" } },
    { "pt", "pt", { "whole.pt" } },
    { "deepspeed",
      "parallel",
      { "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_0_mp_rank_01_optim_states.pt",
        "layer_02-model_00-model_states.pt", "layer_02-model_01-model_states.pt" } },
    { "verl", "verl", { "model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt" } },
    { "meta", "meta", { "consolidated.00.pth", "consolidated.01.pth" } },
    { "meta", "mistral", { "consolidated.safetensors" } },
    { "vllm", "vllm", { "model-rank-0-part-0.safetensors", "model-rank-1-part-0.safetensors" } },
    { "safetensors", "quantized", { "model.safetensors" } },
};

enum { FOLDERS = sizeof folders / sizeof *folders };

/* NULL where no config.json says what the model is, which formats that fuse tensors need. */
static const struct model *model(int number, bool needed)
{
    static struct arena arena;
    static struct model models[2];
    struct model *m = &models[number % 2];
    struct tp_err err = { 0 };

    if (number == NO_MODEL && !needed)
        return NULL;
    if (m->layers == 0)
        fuzz_must(model_config_parse(m, configs[number % 2], strlen(configs[number % 2]),
                                     "config.json", &arena, &err) == TP_OK,
                  err.msg);
    return m;
}

/* ---- a file of torch.save: three members that are stored, with their sums ---- */

struct archive {
    uint8_t *bytes;
    size_t n;
};

static void put(struct archive *a, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        a->bytes[a->n++] = i < 8 ? (uint8_t)(value >> 8 * i) : 0;
}

static void put_bytes(struct archive *a, const void *data, size_t size)
{
    memcpy(a->bytes + a->n, data, size);
    a->n += size;
}

/* A local header, or with `at` the entry of the directory. */
static void put_head(struct archive *a, const char *name, uint32_t crc, size_t size,
                     const size_t *at)
{
    put(a, at ? 0x02014b50 : 0x04034b50, 4);
    put(a, 0, at ? 12 : 10);
    put(a, crc, 4);
    put(a, size, 4);
    put(a, size, 4);
    put(a, strlen(name), 2);
    put(a, 0, at ? 8 : 2);
    if (at) {
        put(a, 0, 4);
        put(a, *at, 4);
    }
    put_bytes(a, name, strlen(name));
}

static struct archive make_archive(const uint8_t *pickle, size_t size)
{
    static const uint8_t zeros[STORAGE];
    const struct {
        const char *name;
        const void *data;
        size_t size;
    } members[] = { { "a/data.pkl", pickle, size },
                    { "a/byteorder", "little", 6 },
                    { "a/data/0", zeros, STORAGE } };
    struct archive a = { malloc(size + STORAGE + 1024), 0 };
    size_t at[3], directory;

    fuzz_must(a.bytes != NULL, "no memory");
    for (int i = 0; i < 3; i++) {
        at[i] = a.n;
        put_head(&a, members[i].name, crc32_of(members[i].data, members[i].size), members[i].size,
                 NULL);
        put_bytes(&a, members[i].data, members[i].size);
    }
    directory = a.n;
    for (int i = 0; i < 3; i++)
        put_head(&a, members[i].name, crc32_of(members[i].data, members[i].size), members[i].size,
                 &at[i]);
    put(&a, 0x06054b50, 4);
    put(&a, 0, 4);
    put(&a, 3, 2);
    put(&a, 3, 2);
    put(&a, a.n - 12 - directory, 4);
    put(&a, directory, 4);
    put(&a, 0, 2);
    return a;
}

/* ---- a safetensors file ---- */

static struct archive make_safetensors(const uint8_t *header, size_t size)
{
    const size_t tensors = (size_t)fuzz_take(&header, &size) << 8 | fuzz_take(&header, &size);
    struct archive a = { calloc(1, 8 + size + tensors), 0 };

    fuzz_must(a.bytes != NULL, "no memory");
    put(&a, size, 8);
    put_bytes(&a, header, size);
    a.n += tensors;
    return a;
}

/* ---- the folder ---- */

static void write_folder(const struct folder *f, const struct archive *a)
{
    char name[128];

    snprintf(name, sizeof name, "%s", f->name);
    mkdir(fuzz_path(name), 0700);
    for (int i = 0; i < FILES_MAX && f->files[i]; i++) {
        snprintf(name, sizeof name, "%s/%s", f->name, f->files[i]);
        for (char *c = strchr(name, '/'); (c = strchr(c + 1, '/')); *c = '/') {
            *c = 0;
            mkdir(fuzz_path(name), 0700);
        }
        fuzz_write(name, a->bytes, a->n);
    }
    snprintf(name, sizeof name, "%s/params.json", f->name); /* of Meta's formats */
    fuzz_write(name, params, strlen(params));
}

/* Read what is stored in another form, or as copies: all of it, then the second half of its rows.
 */
static void read_decoded(const struct piece *p)
{
    struct box run = p->box;
    const int64_t rows = run.ndim > 0 ? run.len[0] : 1, elements = box_elements(&run);
    struct tp_err err = { 0 };
    void *buf;

    if (elements == 0 || elements > DECODED_MAX)
        return;
    for (int half = 0; half < 2 && half < rows; half++) {
        if (half) {
            run.lo[0] += rows / 2;
            run.len[0] -= rows / 2;
        }
        buf = malloc((size_t)(box_elements(&run) * dtype_bytes(p->dtype)));
        fuzz_must(buf != NULL, "no memory");
        p->decoder->will_read(p->decoder->ctx, &run);
        fuzz_check_error(p->decoder->read(p->decoder->ctx, &run, buf, &err), &err);
        free(buf);
    }
}

/* The last byte of every piece that can be read is in its file. Only a tensor without elements has
 * an empty one. */
static void check(struct piece_source *s, size_t file_bytes)
{
    for (int i = 0; i < piece_source_count(s); i++) {
        const struct piece_tensor t = piece_source_tensor(s, i);

        for (int k = 0; k < t.n; k++) {
            const struct piece *p = &t.pieces[k];
            const struct box whole = box_whole(p->ndim, p->shape);
            int64_t last = 0;

            fuzz_must(p->ndim >= 0 && p->ndim <= BOX_NDIM_MAX && p->box.ndim == p->ndim,
                      "a piece of another number of axes");
            fuzz_must(!box_is_empty(&p->box) || box_elements(&whole) == 0, "an empty piece");
            for (int d = 0; d < p->ndim; d++) {
                fuzz_must(p->box.lo[d] >= 0 && p->box.len[d] >= 0 &&
                              p->box.len[d] <= p->shape[d] - p->box.lo[d],
                          "a piece outside of its tensor");
                last += (p->box.len[d] - 1) * p->stride[d];
            }
            if (p->decoder && p->dtype != DTYPE_COUNT)
                read_decoded(p);
            if (p->dtype != DTYPE_COUNT && !p->decoder && !box_is_empty(&p->box))
                fuzz_must(p->begin >= 0 &&
                              p->begin + (last + 1) * dtype_bytes(p->dtype) <= (int64_t)file_bytes,
                          "a piece outside of its file");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t what = fuzz_take(&data, &size);
    const struct folder *f = &folders[what % FOLDERS];
    const struct foreign_format *format = strcmp(f->format, "safetensors") == 0
                                              ? foreign_format_safetensors()
                                              : foreign_format_find(f->format);
    struct archive a = text_ends_with(f->files[0], ".safetensors") ? make_safetensors(data, size)
                                                                   : make_archive(data, size);
    char path[PATH_MAX];
    struct piece_source *s = NULL;
    const char *text = NULL, *note = NULL;
    struct tp_err err = { 0 };
    tp_status st;

    write_folder(f, &a);
    snprintf(path, sizeof path, "%s", fuzz_path(format->is_file ? "pt/whole.pt" : f->name));
    fuzz_must(format->detect(path), "a folder that is not known");
    st = foreign_open(&s, format, path, model(what / FOLDERS % (NO_MODEL + 1), format->fused),
                      MEMORY, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK) {
        check(s, a.n);
        if (format->check)
            fuzz_check_error(format->check(s, &err), &err);
        piece_source_close(s);
    }
    if (format->config && piece_source_new(&s, path, &err) == TP_OK) {
        st = format->config(&text, &note, s, &err);
        fuzz_check_error(st, &err);
        if (st == TP_OK && text) { /* NULL: the checkpoint does not say what model it is */
            struct arena arena = { 0 };
            struct model m;

            fuzz_check_error(
                model_config_parse(&m, text, strlen(text), "config.json", &arena, &err), &err);
            arena_free(&arena);
        }
        piece_source_close(s);
    }
    free(a.bytes);
    return 0;
}
