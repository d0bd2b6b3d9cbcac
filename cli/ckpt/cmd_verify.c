/* cli/ckpt/cmd_verify.c - tp-ckpt verify: check that every byte is what was saved. */
#include <jansson.h>
#include <stdio.h>

#include "ckpt/root.h"
#include "ckpt/verify.h"
#include "cli/ckpt/cmd.h"
#include "cli/ckpt/foreign.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/clock.h"
#include "core/size.h"
#include "core/thread_pool.h"
#include "reshard/foreign_contents.h"

static const char intro[] =
    "Reads every byte of a checkpoint and compares it with every checksum: of the manifest, of "
    "the\n"
    "table /index and the other bytes outside payloads of each shard, and of each stored chunk\n"
    "(CRC32C and digest). The boxes of each tensor must hold each of its elements exactly once.\n"
    "\n"
    "The HDF5 structures are checked for damage by a checksum. They are not interpreted: verify\n"
    "does not notice if the program that wrote them gave datasets other names than /index says.\n"
    "\n"
    "For a checkpoint of another framework it compares the checksums that the format has, and\n"
    "says how many bytes have none. Names and shapes of weights are compared with config.json,\n"
    "if there is one of a known architecture.";

static const char tail[] =
    "Each finding is a line with file, tensor, box, what was expected and what was found. The "
    "last\n"
    "line is a summary. exit codes: 0 intact; 1 damaged; 2 this is not a checkpoint; 3 it failed.";

/* Where findings go. */
struct findings {
    bool json;
    json_t *list;
};

static void print_finding(void *ctx, const char *sentence)
{
    struct findings *f = ctx;

    if (f->json) {
        json_array_append_new(f->list, print_text(sentence));
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
        json_t *o =
            json_pack("{s:o, s:b, s:I, s:i, s:i, s:I, s:f, s:O}", "path", print_text(v->dir), "ok",
                      v->findings == 0, "step", (json_int_t)m->step, "shards", m->n_shards,
                      "tensors", m->layout.n_tensors, "bytes", (json_int_t)v->bytes, "seconds",
                      seconds, "findings", f->list);

        print_json(o);
        json_decref(o);
        return;
    }
    if (v->findings)
        printf("damaged: %d finding%s in ", v->findings, v->findings == 1 ? "" : "s");
    else
        printf("intact: ");
    print_safe(v->dir);
    printf(": %d tensor%s, %d shard%s, %s of payload read\n", m->layout.n_tensors,
           m->layout.n_tensors == 1 ? "" : "s", m->n_shards, m->n_shards == 1 ? "" : "s",
           size_format(size, v->bytes));
}

/* Verify, print findings and summary. TP_E_NO: it is damaged, which has been printed. */
static tp_status verify(const char *path, int64_t step, int jobs, bool json, struct tp_err *err)
{
    struct findings f = { .json = json, .list = json_array() };
    char dir[PATH_MAX];
    struct verify v = { .dir = dir, .jobs = jobs, .found = print_finding, .ctx = &f };
    struct arena arena = { 0 };
    double start = clock_seconds();
    tp_status st;

    TP_TRY(thread_pool_check_workers("--jobs", jobs, err));
    TP_TRY(ckpt_locate_saved(dir, path, step, err));
    v.progress = progress_new("verify", 0, report_progress(json));
    st = ckpt_verify(&v, &arena, err);
    progress_end(v.progress, st == TP_OK && v.manifest.n_shards > 0);
    if (st)
        goto done;
    print_summary(&v, &f, clock_seconds() - start);
    st = print_done(err);
    if (!st && v.findings)
        st = tp_fail(err, TP_E_NO, "%s", "");
done:
    json_decref(f.list);
    arena_free(&arena);
    return st;
}

int cmd_verify(int argc, char **argv)
{
    struct foreign_contents_request from = { .step = -1, .memory_bytes = FOREIGN_MEMORY_BYTES };
    int jobs = thread_pool_cores(), code;
    bool json = false;
    struct tp_err err = { 0 };
    tp_status st;
    const struct opt opts[] = { OPT_ARG("CKPT", &from.path, "checkpoint root or step directory"),
                                OPT_INT64(0, "step", "N", &from.step,
                                          "this step of a root (default: the newest)"),
                                OPT_INT('j', "jobs", "N", &jobs, "threads (default: processors)"),
                                FOREIGN_OPTIONS(&from),
                                OPT_FLAG(0, "json", &json, "print one JSON object"),
                                OPT_END };

    if (!report_options(&code, "tp-ckpt verify", opts, argc, argv, intro, tail))
        return code;
    st = foreign_contents_find(&from.format, from.path, from.step, &err);
    if (!st)
        st = from.format ? foreign_verify(&from, json, &err)
                         : verify(from.path, from.step, jobs, json, &err);
    return report_json(json, "tp-ckpt", st, &err);
}
