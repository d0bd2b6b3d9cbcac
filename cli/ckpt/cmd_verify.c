/* cli/ckpt/cmd_verify.c - tp-ckpt verify: is every byte what was saved? */
#include <jansson.h>
#include <stdio.h>

#include "ckpt/commit.h"
#include "ckpt/verify.h"
#include "cli/ckpt/cmd.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/clock.h"
#include "core/size.h"
#include "core/thread_pool.h"

static const char intro[] =
    "Read every byte of a checkpoint and compare it with every checksum: the manifest, each\n"
    "shard's index and HDF5 structures, the CRC32C and the digest of every stored chunk. The\n"
    "boxes of every tensor must hold each element exactly once.";

static const char tail[] =
    "Each finding is a line: file, tensor, box, what was expected and what was found. The last\n"
    "line sums up. Exit code 0: intact; 1: damaged; 2: this is no checkpoint.";

/* Where findings go. */
struct findings {
    bool json;
    json_t *list;
};

static void print_finding(void *ctx, const char *sentence)
{
    struct findings *f = ctx;

    if (f->json) {
        json_array_append_new(f->list, json_string(sentence));
        return;
    }
    print_safe(sentence);
    putchar('\n');
    fflush(stdout);
}

static void print_summary(const struct verify *v, const struct findings *f, double seconds)
{
    const struct manifest *m = &v->manifest;
    char size[SIZE_TEXT_MAX];

    if (f->json) {
        json_t *o = json_pack("{s:s, s:b, s:I, s:i, s:i, s:I, s:f, s:O}", "path", v->dir, "ok",
                              v->findings == 0, "step", (json_int_t)m->step, "shards", m->n_shards,
                              "tensors", m->layout.n_tensors, "bytes", (json_int_t)v->bytes,
                              "seconds", seconds, "findings", f->list);

        print_json(o);
        json_decref(o);
        return;
    }
    if (v->findings)
        printf("damaged: %d finding%s in ", v->findings, v->findings == 1 ? "" : "s");
    else
        printf("intact: ");
    print_safe(v->dir);
    printf(": %d tensors, %d shards, %s of payload read\n", m->layout.n_tensors, m->n_shards,
           size_format(size, v->bytes));
}

int cmd_verify(int argc, char **argv)
{
    const char *path = NULL;
    int64_t step = -1;
    int jobs = thread_pool_cores(), code;
    bool json = false;
    const struct opt opts[] = {
        OPT_ARG("CKPT", &path, "checkpoint root or step directory"),
        OPT_INT64(0, "step", "N", &step, "this step of a root (default: the newest)"),
        OPT_INT('j', "jobs", "N", &jobs, "threads (default: one a processor)"),
        OPT_FLAG(0, "json", &json, "one JSON object"), OPT_END
    };
    char dir[PATH_MAX];
    struct verify v = { .dir = dir, .found = print_finding };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct findings f;
    double start = clock_seconds();
    tp_status st;

    if (!report_options(&code, "tp-ckpt verify", opts, argc, argv, intro, tail))
        return code;
    f = (struct findings){ .json = json, .list = json_array() };
    v.ctx = &f;
    v.jobs = jobs;
    TP_TRY(thread_pool_check_workers("--jobs", jobs, &err));
    TP_TRY(ckpt_locate(dir, path, step, &err));
    v.progress = progress_new("verify", 0, json);
    st = ckpt_verify(&v, &arena, &err);
    progress_end(v.progress, st == TP_OK && v.manifest.n_shards > 0);
    if (st)
        goto done;
    print_summary(&v, &f, clock_seconds() - start);
    st = print_done(&err);
    if (!st && v.findings)
        st = tp_fail(&err, TP_E_NO, "%s", ""); /* stdout has said it */
done:
    json_decref(f.list);
    arena_free(&arena);
    return report("tp-ckpt", st, &err);
}
