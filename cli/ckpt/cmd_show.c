/* cli/ckpt/cmd_show.c - tp-ckpt show: what a checkpoint contains, and where one tensor is stored.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "cli/ckpt/cmd.h"
#include "cli/ckpt/foreign.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/size.h"
#include "layout/box.h"
#include "reshard/foreign_contents.h"

static const char intro[] =
    "Shows the layout, training state, model and tensors of a checkpoint. With NAME (or\n"
    "GROUP/NAME) it shows where the boxes of that tensor are stored: the rank that wrote each, "
    "the\n"
    "file, the dataset and the byte offset.";

static const char tail[] =
    "Shards are plain HDF5 files, which h5dump and h5py open. The elements of a box are stored\n"
    "row-major and contiguous from its offset on. In a shard that was written with --zstd, they\n"
    "are in compressed chunks: the offset is that of the first, and others may be between them.";

enum { SHAPE_TEXT = 160 };

struct show {
    const char *dir;
    const struct manifest *m;
    bool json;
};

static int64_t tensor_bytes(const struct tensor *t)
{
    const struct box whole = box_whole(t->ndim, t->shape);

    return box_elements(&whole) * dtype_bytes(t->dtype);
}

/* How tensor parallelism cuts a tensor, as text. */
static char *cut_text(char *buf, size_t size, const struct tensor *t)
{
    const struct placement *r = &t->placement;
    size_t used;

    if (r->dim < 0) {
        snprintf(buf, size, "whole");
        return buf;
    }
    used = (size_t)snprintf(buf, size, "axis %d", r->dim);
    if (r->unit > 1 && used < size)
        used += (size_t)snprintf(buf + used, size - used, " by %lld", (long long)r->unit);
    if (r->blocks > 1 && used < size)
        snprintf(buf + used, size - used, " in %d blocks", r->blocks);
    return buf;
}

/* ---- the whole checkpoint ---- */

static void print_model(const struct manifest *m)
{
    json_t *config = m->model_config ? json_loads(m->model_config, 0, NULL) : NULL;
    json_t *arch = json_array_get(json_object_get(config, "architectures"), 0);
    static const char *const keys[] = { "vocab_size",          "hidden_size",
                                        "intermediate_size",   "num_hidden_layers",
                                        "num_attention_heads", "num_key_value_heads" };

    if (!config) {
        printf("model     unknown\n");
        return;
    }
    printf("model     ");
    print_safe(json_is_string(arch) ? json_string_value(arch) : "?");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_is_integer(json_object_get(config, keys[i])))
            printf(", %s %lld", keys[i],
                   (long long)json_integer_value(json_object_get(config, keys[i])));
    putchar('\n');
    json_decref(config);
}

/* The trainer's options: a JSON object. */
static void print_options(const char *options)
{
    char *text = strdup(options);

    print_safe(text ? print_shorten(text) : options);
    free(text);
}

static void print_head(const struct show *s)
{
    const struct manifest *m = s->m;
    char spec[SPEC_TEXT_MAX], size[SIZE_TEXT_MAX];
    int64_t bytes = 0;

    for (int i = 0; i < m->n_shards; i++)
        bytes += m->shards[i].size_bytes;
    printf("path      ");
    print_safe(s->dir);
    printf("\nstep      %lld (save id %s, epoch %lld)\n", (long long)m->step, m->save_id,
           (long long)m->epoch);
    printf("layout    %s: %d rank%s\n", spec_format(spec, &m->layout.spec),
           spec_world(&m->layout.spec), spec_world(&m->layout.spec) == 1 ? "" : "s");
    printf("size      %s in %d shard%s\n", size_format(size, bytes), m->n_shards,
           m->n_shards == 1 ? "" : "s");
    print_model(m);
    printf("training  next sample %lld, %lld tokens seen, seed %llu, ",
           (long long)m->state.next_sample, (long long)m->state.tokens,
           (unsigned long long)m->state.seed);
    print_safe(m->state.dtype);
    printf("\noptions   ");
    print_options(m->state.options);
    putchar('\n');
}

static void print_layers(const struct layout *l)
{
    printf("layers    %d", l->n_layers);
    for (int i = 0; i < l->n_layers && l->spec.pp * l->spec.vpp > 1; i++)
        printf("%s%d", i ? " " : "; stage of each: ", l->stage_of[i]);
    putchar('\n');
}

static void print_tensors(const struct layout *l)
{
    char shape[SHAPE_TEXT], cut[64], size[SIZE_TEXT_MAX];

    printf("\n%-6s  %-20s  %10s  %-16s  %s\n", "DTYPE", "SHAPE", "BYTES", "CUT BY TP", "TENSOR");
    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];

        printf("%-6s  %-20s  %10s  %-16s  ", dtype_name(t->dtype),
               box_format_shape(shape, sizeof shape, t->ndim, t->shape),
               size_format(size, tensor_bytes(t)), cut_text(cut, sizeof cut, t));
        print_tensor(t->group, t->name);
        putchar('\n');
    }
}

static void print_shards(const struct manifest *m)
{
    char size[SIZE_TEXT_MAX];

    printf("\n%-14s  %5s  %10s  %10s\n", "SHARD", "RANK", "SIZE", "CHUNKS");
    for (int i = 0; i < m->n_shards; i++)
        printf("%-14s  %5d  %10s  %10lld\n", m->shards[i].file, m->shards[i].rank,
               size_format(size, m->shards[i].size_bytes), (long long)m->shards[i].index_rows);
}

static json_t *tensor_object(const struct tensor *t)
{
    char cut[64];

    return json_pack("{s:s, s:o, s:s, s:o, s:I, s:i, s:s}", "group", t->group, "name",
                     print_text(t->name), "dtype", dtype_name(t->dtype), "shape",
                     print_int_list(t->shape, t->ndim), "bytes", (json_int_t)tensor_bytes(t),
                     "layer", t->layer, "cut", cut_text(cut, sizeof cut, t));
}

/* An object; the text itself where it is none, as in files of other writers. */
static json_t *config_json(const char *config)
{
    json_t *parsed = config ? json_loads(config, 0, NULL) : json_null();

    return parsed ? parsed : print_text(config);
}

static void print_whole_json(const struct show *s)
{
    const struct manifest *m = s->m;
    char spec[SPEC_TEXT_MAX], seed[32];
    json_t *tensors = json_array(), *shards = json_array(), *root;

    for (int i = 0; i < m->layout.n_tensors; i++)
        json_array_append_new(tensors, tensor_object(&m->layout.tensors[i]));
    for (int i = 0; i < m->n_shards; i++)
        json_array_append_new(shards, json_pack("{s:s, s:i, s:I}", "file", m->shards[i].file,
                                                "rank", m->shards[i].rank, "bytes",
                                                (json_int_t)m->shards[i].size_bytes));
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)m->state.seed);
    root =
        json_pack("{s:o, s:I, s:s, s:I, s:s, s:i, s:I, s:I, s:s, s:s, s:o, s:o, s:o, s:o}", "path",
                  print_text(s->dir), "step", (json_int_t)m->step, "save_id", m->save_id, "epoch",
                  (json_int_t)m->epoch, "layout", spec_format(spec, &m->layout.spec), "ranks",
                  spec_world(&m->layout.spec), "next_sample", (json_int_t)m->state.next_sample,
                  "tokens", (json_int_t)m->state.tokens, "seed", seed, "dtype", m->state.dtype,
                  "options", json_loads(m->state.options, 0, NULL), "model_config",
                  config_json(m->model_config), "tensors", tensors, "shards", shards);
    print_json(root);
    json_decref(root);
}

static void show_whole(const struct show *s)
{
    if (s->json) {
        print_whole_json(s);
        return;
    }
    print_head(s);
    print_layers(&s->m->layout);
    print_tensors(&s->m->layout);
    print_shards(s->m);
}

/* ---- one tensor ---- */

/* Whether a name on the command line ("NAME" or "GROUP/NAME") is that of this tensor. */
static bool is_wanted(const struct tensor *t, const char *wanted)
{
    size_t n = strlen(t->group);

    if (strcmp(wanted, t->name) == 0)
        return true;
    return strncmp(wanted, t->group, n) == 0 && wanted[n] == '/' &&
           strcmp(wanted + n + 1, t->name) == 0;
}

/* Print one dataset, whose chunks are first .. last. */
static void put_box(const struct show *s, const struct shard_info *info, const struct tensor *t,
                    const struct chunk_entry *first, const struct chunk_entry *last, json_t *list)
{
    char text[BOX_TEXT_MAX], dataset[2200];
    struct box box = first->box;
    int64_t bytes = 0;

    for (const struct chunk_entry *c = first; c <= last; c++)
        bytes += c->stored_bytes;
    for (int d = 0; d < box.ndim; d++)
        box.len[d] = last->box.lo[d] + last->box.len[d] - box.lo[d];
    snprintf(dataset, sizeof dataset, first->part ? "/%s/%s@%d" : "/%s/%s", t->group, t->name,
             first->part);
    if (s->json)
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:o, s:o, s:o, s:I, s:I}", "rank", info->rank,
                                        "file", info->file, "dataset", print_text(dataset), "lo",
                                        print_int_list(box.lo, box.ndim), "len",
                                        print_int_list(box.len, box.ndim), "offset",
                                        (json_int_t)first->offset, "bytes", (json_int_t)bytes));
    else {
        printf("%5d  %-14s  %12lld  %12lld  %-28s  ", info->rank, info->file,
               (long long)first->offset, (long long)bytes, box_format(text, &box));
        print_field("", dataset);
    }
}

static tp_status put_shard(const struct show *s, int shard, const char *wanted, json_t *list,
                           struct tp_err *err)
{
    const struct shard_info *info = &s->m->shards[shard];
    const struct layout *l = &s->m->layout;
    struct shard_reader *r = NULL;
    const struct chunk_entry *chunks;
    int64_t n = 0, to;
    tp_status st = ckpt_open_shard(&r, s->dir, s->m, shard, err);

    if (st)
        return st;
    chunks = shard_chunks(r, &n);
    for (int64_t from = 0; from < n; from = to) {
        const struct tensor *t = &l->tensors[chunks[from].tensor];

        for (to = from + 1; to < n && chunks[to].tensor == chunks[from].tensor &&
                            chunks[to].part == chunks[from].part;)
            to++;
        if (is_wanted(t, wanted))
            put_box(s, info, t, &chunks[from], &chunks[to - 1], list);
    }
    shard_reader_close(r);
    return TP_OK;
}

static tp_status show_tensor(const struct show *s, const char *wanted, struct tp_err *err)
{
    const struct layout *l = &s->m->layout;
    json_t *tensors = json_array(), *boxes = json_array(), *root;
    char shape[SHAPE_TEXT], cut[64];
    tp_status st = TP_OK;
    int found = 0;

    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];

        if (!is_wanted(t, wanted))
            continue;
        found++;
        json_array_append_new(tensors, tensor_object(t));
        if (s->json)
            continue;
        print_tensor(t->group, t->name);
        printf(": %s %s, cut by tp: %s\n", dtype_name(t->dtype),
               box_format_shape(shape, sizeof shape, t->ndim, t->shape),
               cut_text(cut, sizeof cut, t));
    }
    if (!found) {
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no tensor '%.200s'; tp-ckpt show lists them",
                     s->dir, wanted);
        goto done;
    }
    if (!s->json)
        printf("\n%5s  %-14s  %12s  %12s  %-28s  %s\n", "RANK", "FILE", "OFFSET", "BYTES", "BOX",
               "DATASET");
    for (int i = 0; i < s->m->n_shards; i++)
        TP_TRY(put_shard(s, i, wanted, boxes, err));
    if (s->json) {
        root = json_pack("{s:O, s:O}", "tensors", tensors, "boxes", boxes);
        print_json(root);
        json_decref(root);
    }
done:
    json_decref(tensors);
    json_decref(boxes);
    return st;
}

static tp_status show(const char *path, const char *name, int64_t step, bool json,
                      struct tp_err *err)
{
    struct arena arena = { 0 };
    struct ckpt_found found;
    struct show s = { .dir = found.dir, .m = &found.manifest, .json = json };
    tp_status st;

    TP_TRY(ckpt_open(&found, path, step, &arena, err));
    if (found.note[0])
        report_note("tp-ckpt", "%s", found.note);
    if (name)
        TP_TRY(show_tensor(&s, name, err));
    else
        show_whole(&s);
    st = print_done(err);
done:
    arena_free(&arena);
    return st;
}

int cmd_show(int argc, char **argv)
{
    struct foreign_contents_request from = { .step = -1, .memory_bytes = FOREIGN_MEMORY_BYTES };
    const char *name = NULL;
    bool json = false;
    struct tp_err err = { 0 };
    int code;
    tp_status st;
    const struct opt opts[] = { OPT_ARG("CKPT", &from.path, "checkpoint root or step directory"),
                                OPT_ARG_OPT("NAME", &name, "a tensor, or GROUP/TENSOR"),
                                OPT_INT64(0, "step", "N", &from.step,
                                          "this step of a root (default: the newest complete one)"),
                                FOREIGN_OPTIONS(&from),
                                OPT_FLAG(0, "json", &json, "print one JSON object"),
                                OPT_END };

    if (!report_options(&code, "tp-ckpt show", opts, argc, argv, intro, tail))
        return code;
    st = foreign_contents_find(&from.format, from.path, from.step, &err);
    if (!st && !from.format)
        st = show(from.path, name, from.step, json, &err);
    else if (!st && name)
        st = foreign_show_tensor(&from, name, json, &err);
    else if (!st)
        st = foreign_show(&from, json, &err);
    return report_json(json, "tp-ckpt", st, &err);
}
