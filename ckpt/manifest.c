/*
 * ckpt/manifest.c - writes manifest.json; docs/FORMAT.md specifies it.
 *
 * Each tensor and each shard has one line, so that people can grep and diff the file. The checksum
 * covers all text before its own line.
 */
#include "ckpt/manifest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/sha256.h"
#include "ckpt/tensor_name.h"

/* Write `"key": value` and `end`; steals the reference to value. A value that readers refuse
 * because of its size is not written. */
static tp_status put(FILE *f, const char *key, json_t *value, const char *end, struct tp_err *err)
{
    const size_t flags = JSON_PRESERVE_ORDER | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
    char *text = value ? json_dumps(value, flags) : NULL;
    tp_status st = TP_OK;

    if (!text)
        st = tp_fail(err, TP_E_NOMEM,
                     "the manifest's %s cannot be written: it is not UTF-8, or there is no memory",
                     key ? key : "list");
    else if (strlen(text) > JSON_VALUE_BYTES_MAX)
        st = tp_fail(err, TP_E_USAGE, "the manifest's %s would have %zu bytes; the most is %d",
                     key ? key : "list", strlen(text), JSON_VALUE_BYTES_MAX);
    else
        fprintf(f, key ? "\"%s\": %s%s" : "%s%s%s", key ? key : "", text, end);
    free(text);
    json_decref(value);
    return st;
}

static json_t *ints(const int64_t *values, int n)
{
    json_t *a = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(a, json_integer(values[i]));
    return a;
}

static bool set_number(json_t *object, const char *key, int64_t n)
{
    return json_object_set_new(object, key, json_integer(n)) == 0;
}

static json_t *tensor_json(const struct tensor *t, int id)
{
    const struct placement *r = &t->placement;
    json_t *rule =
        json_pack("{s:i, s:I, s:i, s:b, s:b}", "dim", r->dim, "unit", (json_int_t)r->unit, "blocks",
                  r->blocks, "share", (int)r->replicate, "pad", (int)r->uneven);

    bool failed = (r->first_block && !set_number(rule, "first", r->first_block)) ||
                  (r->experts && (!set_number(rule, "expert", r->expert) ||
                                  !set_number(rule, "experts", r->experts)));

    if (failed) {
        json_decref(rule);
        rule = NULL; /* then json_pack fails */
    }
    return json_pack("{s:i, s:s, s:s, s:s, s:o, s:i, s:o}", "id", id, "group", t->group, "name",
                     t->name, "dtype", dtype_name(t->dtype), "shape", ints(t->shape, t->ndim),
                     "layer", t->layer, "rule", rule);
}

static json_t *shard_json(const struct shard_info *s)
{
    json_t *shard = json_pack("{s:s, s:i, s:I, s:I, s:I, s:s, s:s}", "file", s->file, "rank",
                              s->rank, "size_bytes", (json_int_t)s->size_bytes, "index_offset",
                              (json_int_t)s->index_offset, "index_rows", (json_int_t)s->index_rows,
                              "index_sha256", s->index_sha256, "meta_sha256", s->meta_sha256);

    if (shard && s->chunked && json_object_set_new(shard, "chunked", json_true()) != 0) {
        json_decref(shard);
        shard = NULL;
    }
    return shard;
}

/* The oldest version of the format that has what the step uses. */
static int version_of(const struct manifest *m)
{
    for (int i = 0; i < m->n_shards; i++)
        if (m->shards[i].chunked)
            return MANIFEST_VERSION;
    return MANIFEST_VERSION_RAW;
}

static json_t *layout_json(const struct layout *l)
{
    char spec[SPEC_TEXT_MAX];
    json_t *stages = json_array();

    for (int i = 0; i < l->n_layers; i++)
        json_array_append_new(stages, json_integer(l->stage_of[i]));
    return json_pack("{s:s, s:i, s:i, s:o}", "spec", spec_format(spec, &l->spec), "ranks",
                     spec_world(&l->spec), "layers", l->n_layers, "stage_of", stages);
}

static json_t *train_json(const struct manifest_train_state *s)
{
    json_t *options =
        s->options ? json_loads(s->options, JSON_REJECT_DUPLICATES, NULL) : json_object();
    json_t *train;
    char seed[32];

    if (!options)
        return NULL;
    snprintf(seed, sizeof seed, "%llu",
             (unsigned long long)s->seed); /* a string: JSON numbers do not hold 64 bits */
    train = json_pack("{s:I, s:I, s:I, s:s, s:s, s:o}", "step", (json_int_t)s->step, "next_sample",
                      (json_int_t)s->next_sample, "tokens", (json_int_t)s->tokens, "seed", seed,
                      "dtype", s->dtype ? s->dtype : "fp32", "options", options);
    if (train && s->optimizer_start) /* optional, so that usual files stay as they were */
        json_object_set_new(train, "optimizer_start", json_integer(s->optimizer_start));
    return train;
}

static tp_status put_head(FILE *f, const struct manifest *m, struct tp_err *err)
{
    tp_status st;

    fprintf(f, "{\n");
    TP_TRY(put(f, "format", json_string(MANIFEST_FORMAT), ",\n", err));
    TP_TRY(put(f, "version", json_integer(version_of(m)), ",\n", err));
    TP_TRY(put(f, "save_id", json_string(m->save_id), ",\n", err));
    TP_TRY(put(f, "epoch", json_integer(m->epoch), ",\n", err));
    TP_TRY(put(f, "step", json_integer(m->step), ",\n", err));
    TP_TRY(put(f, "layout", layout_json(&m->layout), ",\n", err));
    TP_TRY(put(f, "train", train_json(&m->state), ",\n", err));
    TP_TRY(put(f, "model_config", m->model_config ? json_string(m->model_config) : json_null(),
               ",\n", err));
done:
    return st;
}

static tp_status put_body(FILE *f, const struct manifest *m, struct tp_err *err)
{
    tp_status st;

    TP_TRY(put_head(f, m, err));
    fprintf(f, "\"tensors\": [\n");
    for (int i = 0; i < m->layout.n_tensors; i++) {
        TP_TRY(tensor_name_check(&m->layout.tensors[i], err));
        TP_TRY(put(f, NULL, tensor_json(&m->layout.tensors[i], i),
                   i + 1 < m->layout.n_tensors ? ",\n" : "\n", err));
    }
    fprintf(f, "],\n\"shards\": [\n");
    for (int i = 0; i < m->n_shards; i++)
        TP_TRY(put(f, NULL, shard_json(&m->shards[i]), i + 1 < m->n_shards ? ",\n" : "\n", err));
    fprintf(f, "],\n");
done:
    return st;
}

tp_status manifest_format(char **text, size_t *size, const struct manifest *m, struct tp_err *err)
{
    char sha[SHA256_TEXT], *buf = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&buf, &n);
    tp_status st;

    if (!f)
        return tp_fail(err, TP_E_NOMEM, "no memory for the manifest");
    TP_TRY(put_body(f, m, err));
    if (fflush(f) != 0) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for the manifest");
        goto done;
    }
    TP_TRY(sha256_of(sha, buf, n, err));
    fprintf(f, MANIFEST_CHECKSUM_HEAD "%s" MANIFEST_CHECKSUM_END, sha);
done:
    if (fclose(f) != 0 && !st)
        st = tp_fail(err, TP_E_NOMEM, "no memory for the manifest");
    if (!st && n > MANIFEST_MAX_BYTES)
        st = tp_fail(err, TP_E_USAGE, "the manifest would have %zu bytes; the most is %d", n,
                     MANIFEST_MAX_BYTES);
    if (st) {
        free(buf);
        return st;
    }
    *text = buf;
    *size = n;
    return TP_OK;
}
