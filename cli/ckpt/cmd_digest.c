/* cli/ckpt/cmd_digest.c - tp-ckpt digest: a fingerprint of every tensor, whatever the layout. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commit.h"
#include "ckpt/hash.h"
#include "ckpt/verify.h"
#include "cli/ckpt/cmd.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/thread_pool.h"

static const char intro[] =
    "Print a digest of every tensor, sorted by name: the digest, two spaces, group/name. The\n"
    "last line is the digest of all the lines above. It depends on names, dtypes, shapes and\n"
    "values, never on the layout: two checkpoints hold the same tensors if and only if (but for\n"
    "chance, about 2^-100) these lines are equal.\n"
    "\n"
    "    diff <(tp-ckpt digest ckpt) <(tp-ckpt digest ckpt-tp4)";

static const char tail[] =
    "Every byte is read and checked against its CRC32C on the way; damage is an error (3).";

/* One line of the output, before sorting. */
struct line {
    const struct tensor *tensor;
    char digest[HASH_TEXT];
};

static int by_name(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int order = strcmp(x->tensor->group, y->tensor->group);

    return order ? order : strcmp(x->tensor->name, y->tensor->name);
}

/* The SHA-256 of "dtype [shape] digest": docs/FORMAT.md, "Digests". */
static tp_status make_line(struct line *l, const struct tensor *t, const struct digest *d,
                           struct tp_err *err)
{
    char text[256], shape[160], value[DIGEST_TEXT_MAX];
    int n = snprintf(text, sizeof text, "%s %s %s", dtype_name(t->dtype),
                     print_shape(shape, sizeof shape, t->ndim, t->shape), digest_format(value, d));

    l->tensor = t;
    return hash_bytes(l->digest, text, (size_t)n, err);
}

/* The last line's digest: SHA-256 of the lines above, as they are printed. */
static tp_status digest_all(char out[HASH_TEXT], const struct line *lines, int n,
                            struct tp_err *err)
{
    struct hash *h = NULL;
    tp_status st = hash_new(&h, err);

    if (st)
        return st;
    for (int i = 0; i < n; i++) {
        const struct tensor *t = lines[i].tensor;

        hash_add(h, lines[i].digest, HASH_TEXT - 1);
        hash_add(h, "  ", 2);
        hash_add(h, t->group, strlen(t->group));
        hash_add(h, "/", 1);
        hash_add(h, t->name, strlen(t->name));
        hash_add(h, "\n", 1);
    }
    hash_text(h, out);
    return TP_OK;
}

static void print_lines(const struct line *lines, int n, const char *all, bool json)
{
    json_t *list = json_array(), *root;

    for (int i = 0; i < n && json; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s}", "digest", lines[i].digest, "group",
                                        lines[i].tensor->group, "name", lines[i].tensor->name));
    for (int i = 0; i < n && !json; i++)
        printf("%s  %s/%s\n", lines[i].digest, lines[i].tensor->group, lines[i].tensor->name);
    if (json) {
        root = json_pack("{s:s, s:O}", "all", all, "tensors", list);
        print_json(root);
        json_decref(root);
    } else {
        printf("%s  all\n", all);
    }
    json_decref(list);
}

/* Digests as the shards' indexes state them; nothing of the payload is read. */
static tp_status sum_indexes(struct digest *sums, const char *dir, const struct manifest *m,
                             struct tp_err *err)
{
    for (int i = 0; i < m->n_shards; i++) {
        struct shard_reader *r = NULL;
        const struct shard_row *rows;
        int64_t n = 0;
        tp_status st =
            shard_open(&r, dir, &m->shards[i], m->layout.tensors, m->layout.n_tensors, err);

        if (st)
            return st;
        rows = shard_rows(r, &n);
        for (int64_t k = 0; k < n; k++)
            digest_add(&sums[rows[k].tensor], &rows[k].digest);
        shard_reader_close(r);
    }
    return TP_OK;
}

static void keep_first(void *ctx, const char *sentence)
{
    struct tp_err *first = ctx;

    if (!first->status)
        tp_fail(first, TP_E_CORRUPT, "%s", sentence);
}

/* Digests from the bytes; any finding is an error. */
static tp_status sum_bytes(struct digest **sums, const char *dir, int jobs, bool quiet,
                           struct arena *arena, struct tp_err *err)
{
    struct tp_err first = { 0 };
    struct verify v = { .dir = dir, .jobs = jobs, .found = keep_first, .ctx = &first };
    tp_status st;

    v.progress = progress_new("digest", 0, quiet);
    st = ckpt_verify(&v, arena, err);
    progress_end(v.progress, st == TP_OK && v.findings == 0);
    if (!st && v.findings) {
        *err = first;
        return tp_fail_in(err, "damaged (%d findings; tp-ckpt verify lists them)", v.findings);
    }
    *sums = v.digests;
    return st;
}

static tp_status print_digests(const struct manifest *m, const struct digest *sums, bool json,
                               struct tp_err *err)
{
    const int n = m->layout.n_tensors;
    struct line *lines = calloc((size_t)n + 1, sizeof *lines);
    char all[HASH_TEXT];
    tp_status st = TP_OK;

    if (!lines)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d lines", n);
    for (int i = 0; i < n; i++)
        TP_TRY(make_line(&lines[i], &m->layout.tensors[i], &sums[i], err));
    qsort(lines, (size_t)n, sizeof *lines, by_name);
    TP_TRY(digest_all(all, lines, n, err));
    print_lines(lines, n, all, json);
    st = print_done(err);
done:
    free(lines);
    return st;
}

int cmd_digest(int argc, char **argv)
{
    const char *path = NULL;
    int64_t step = -1;
    int jobs = thread_pool_cores(), code;
    bool json = false, index = false;
    const struct opt opts[] = {
        OPT_ARG("CKPT", &path, "checkpoint root or step directory"),
        OPT_INT64(0, "step", "N", &step, "this step of a root (default: the newest complete one)"),
        OPT_FLAG(0, "index", &index, "believe the shards' indexes, read no payload"),
        OPT_INT('j', "jobs", "N", &jobs, "threads (default: one a processor)"),
        OPT_FLAG(0, "json", &json, "one JSON object"),
        OPT_END
    };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct digest *sums = NULL;
    struct manifest m;
    char dir[PATH_MAX];
    tp_status st;

    if (!report_options(&code, "tp-ckpt digest", opts, argc, argv, intro, tail))
        return code;
    TP_TRY(thread_pool_check_workers("--jobs", jobs, &err));
    TP_TRY(ckpt_open(dir, &m, path, step, &arena, &err));
    if (err.msg[0])
        report_note("tp-ckpt", "%s", err.msg);
    if (index) {
        sums = arena_array(&arena, (size_t)m.layout.n_tensors, sizeof *sums);
        st = sums ? sum_indexes(sums, dir, &m, &err) : tp_fail(&err, TP_E_NOMEM, "no memory");
    } else {
        st = sum_bytes(&sums, dir, jobs, json, &arena, &err);
    }
    if (!st)
        st = print_digests(&m, sums, json, &err);
done:
    arena_free(&arena);
    return report("tp-ckpt", st, &err);
}
