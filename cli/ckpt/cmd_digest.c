/* cli/ckpt/cmd_digest.c - tp-ckpt digest: print a fingerprint of every tensor. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "ckpt/sha256.h"
#include "ckpt/verify.h"
#include "cli/ckpt/cmd.h"
#include "cli/ckpt/foreign.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/thread_pool.h"
#include "layout/box.h"
#include "reshard/foreign_contents.h"

static const char intro[] = "Prints a digest of every tensor, sorted by name: the digest, two "
                            "spaces, group/name. The last\n"
                            "line is the digest of all lines above it. Digests depend on names, "
                            "dtypes, shapes and values,\n"
                            "but not on the layout. So two checkpoints hold the same tensors if "
                            "these lines are equal (they\n"
                            "are equal by chance with a probability of about 2^-100).\n"
                            "\n"
                            "    diff <(tp-ckpt digest ckpt) <(tp-ckpt digest ckpt-tp4)";

static const char tail[] =
    "Every byte is read and compared with its CRC32C. Damage is an error (exit code 3).";

/* One line of the output, before sorting. */
struct digest_line {
    const struct tensor *tensor;
    char digest[SHA256_TEXT];
};

static int by_name(const void *a, const void *b)
{
    const struct digest_line *x = a, *y = b;
    int order = strcmp(x->tensor->group, y->tensor->group);

    return order ? order : strcmp(x->tensor->name, y->tensor->name);
}

/* The SHA-256 of "dtype [shape] digest"; docs/FORMAT.md specifies it under "Digests". */
static tp_status make_line(struct digest_line *l, const struct tensor *t, const struct digest *d,
                           struct tp_err *err)
{
    char text[256], shape[160], value[DIGEST_TEXT_MAX];
    int n =
        snprintf(text, sizeof text, "%s %s %s", dtype_name(t->dtype),
                 box_format_shape(shape, sizeof shape, t->ndim, t->shape), digest_format(value, d));

    l->tensor = t;
    return sha256_of(l->digest, text, (size_t)n, err);
}

/* The last line's digest: SHA-256 of the lines above, as they are printed. */
static tp_status digest_all(char out[SHA256_TEXT], const struct digest_line *lines, int n,
                            struct tp_err *err)
{
    struct sha256 *h = NULL;
    tp_status st = sha256_new(&h, err);

    if (st)
        return st;
    for (int i = 0; i < n; i++) {
        const struct tensor *t = lines[i].tensor;

        sha256_add(h, lines[i].digest, SHA256_TEXT - 1);
        sha256_add(h, "  ", 2);
        sha256_add(h, t->group, strlen(t->group));
        sha256_add(h, "/", 1);
        sha256_add(h, t->name, strlen(t->name));
        sha256_add(h, "\n", 1);
    }
    sha256_end(h, out);
    return TP_OK;
}

/* A print_entry_fn. */
static json_t *line_json(const void *ctx, int i)
{
    const struct digest_line *l = (const struct digest_line *)ctx + i;

    return json_pack("{s:s, s:s, s:o}", "digest", l->digest, "group", l->tensor->group, "name",
                     print_text(l->tensor->name));
}

static void print_lines(const struct digest_line *lines, int n, const char *all, bool json)
{
    if (json) {
        json_t *head = json_pack("{s:s}", "all", all);

        print_json_with_list(head, "tensors", n, line_json, lines);
        json_decref(head);
        return;
    }
    for (int i = 0; i < n; i++) {
        printf("%s  ", lines[i].digest);
        print_tensor(lines[i].tensor->group, lines[i].tensor->name);
        putchar('\n');
    }
    printf("%s  all\n", all);
}

/* Digests as the indexes of the shards state them; no payload is read. */
static tp_status sum_indexes(struct digest *sums, const char *dir, const struct manifest *m,
                             struct tp_err *err)
{
    for (int i = 0; i < m->n_shards; i++) {
        struct shard_reader *r = NULL;
        const struct chunk_entry *chunks;
        int64_t n = 0;
        tp_status st = ckpt_open_shard(&r, dir, m, i, err);

        if (st)
            return st;
        chunks = shard_chunks(r, &n);
        for (int64_t k = 0; k < n; k++)
            digest_add(&sums[chunks[k].tensor], &chunks[k].digest);
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

/* Digests computed from the bytes; any finding is an error. */
static tp_status sum_bytes(struct digest **sums, const char *dir, int jobs, bool json,
                           struct arena *arena, struct tp_err *err)
{
    struct tp_err first = { 0 };
    struct verify v = { .dir = dir, .jobs = jobs, .found = keep_first, .ctx = &first };
    tp_status st;

    v.progress = progress_new("digest", 0, report_progress(json));
    st = ckpt_verify(&v, arena, err);
    progress_end(v.progress, st == TP_OK && v.findings == 0);
    if (!st && v.findings) {
        *err = first;
        return tp_fail_in(err, "it is damaged (%d finding%s; tp-ckpt verify lists them)",
                          v.findings, v.findings == 1 ? "" : "s");
    }
    *sums = v.digests;
    return st;
}

static tp_status print_digests(const struct tensor *tensors, int n, const struct digest *sums,
                               bool json, struct tp_err *err)
{
    struct digest_line *lines = calloc((size_t)n + 1, sizeof *lines);
    char all[SHA256_TEXT];
    tp_status st = TP_OK;

    if (!lines)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d lines", n);
    for (int i = 0; i < n; i++)
        TP_TRY(make_line(&lines[i], &tensors[i], &sums[i], err));
    qsort(lines, (size_t)n, sizeof *lines, by_name);
    TP_TRY(digest_all(all, lines, n, err));
    print_lines(lines, n, all, json);
    st = print_done(err);
done:
    free(lines);
    return st;
}

static tp_status digest(const char *path, int64_t step, int jobs, bool index, bool json,
                        struct tp_err *err)
{
    struct arena arena = { 0 };
    struct digest *sums = NULL;
    struct ckpt_found found;
    const struct manifest *m = &found.manifest;
    tp_status st;

    TP_TRY(thread_pool_check_workers("--jobs", jobs, err));
    TP_TRY(ckpt_open(&found, path, step, &arena, err));
    if (found.note[0])
        report_note("tp-ckpt", "%s", found.note);
    if (index) {
        sums = arena_array(&arena, (size_t)m->layout.n_tensors, sizeof *sums);
        st = sums ? sum_indexes(sums, found.dir, m, err)
                  : tp_fail(err, TP_E_NOMEM, "no memory for %d digests", m->layout.n_tensors);
    } else {
        st = sum_bytes(&sums, found.dir, jobs, json, &arena, err);
    }
    if (!st)
        st = print_digests(m->layout.tensors, m->layout.n_tensors, sums, json, err);
done:
    arena_free(&arena);
    return st;
}

/* The digests of a checkpoint of another framework: those of the tensors that it is imported as. */
static tp_status digest_foreign(const struct foreign_contents_request *q, bool json,
                                struct tp_err *err)
{
    struct foreign_contents c;
    struct progress *progress = progress_new("digest", 0, report_progress(json));
    struct digest *sums;
    tp_status st;

    TP_TRY(foreign_open_noted(&c, q, err));
    sums = arena_array(&c.arena, (size_t)c.n_tensors + 1, sizeof *sums);
    st = sums ? foreign_contents_digest(&c, sums, progress, err)
              : tp_fail(err, TP_E_NOMEM, "no memory for %d digests", c.n_tensors);
    progress_end(progress, st == TP_OK);
    progress = NULL;
    if (!st)
        st = print_digests(c.tensors, c.n_tensors, sums, json, err);
done:
    if (progress)
        progress_end(progress, false);
    foreign_contents_close(&c);
    return st;
}

int cmd_digest(int argc, char **argv)
{
    struct foreign_contents_request from = { .step = -1, .memory_bytes = FOREIGN_MEMORY_BYTES };
    int jobs = thread_pool_cores(), code;
    bool json = false, index = false;
    struct tp_err err = { 0 };
    tp_status st;
    const struct opt opts[] = { OPT_ARG("CKPT", &from.path, "checkpoint root or step directory"),
                                OPT_INT64(0, "step", "N", &from.step,
                                          "this step of a root (default: the newest complete one)"),
                                OPT_FLAG(0, "index", &index,
                                         "trust the indexes of the shards and read no payload"),
                                OPT_INT('j', "jobs", "N", &jobs, "threads (default: processors)"),
                                FOREIGN_OPTIONS(&from),
                                OPT_FLAG(0, "json", &json, "print one JSON object"),
                                OPT_END };

    if (!report_options(&code, "tp-ckpt digest", opts, argc, argv, intro, tail))
        return code;
    st = foreign_contents_find(&from.format, from.path, from.step, &err);
    if (!st)
        st = from.format ? digest_foreign(&from, json, &err)
                         : digest(from.path, from.step, jobs, index, json, &err);
    return report_json(json, "tp-ckpt", st, &err);
}
