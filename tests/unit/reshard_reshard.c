/*
 * tests/unit/reshard_reshard.c - all that tp-reshard does, in this process: from a request to a
 * step on disk and a report.
 *
 * covers: reshard/resume reshard/read_back reshard/engine/repeat reshard/copy_job
 *     reshard/reshard_kinds reshard/reshard_report
 */
#include "reshard/reshard.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "ckpt/verify.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

enum { STEP = 7, SEED = 11 };

static const int64_t MEMORY = INT64_C(1) << 31;

TestSuite(reshard, .init = temp_dir_make, .fini = temp_dir_remove);

static struct reshard_request request_of(const char *from, const char *to, const char *out)
{
    return (struct reshard_request){ .ckpt = from,
                                     .to = to,
                                     .out = out,
                                     .step = -1,
                                     .memory_bytes = MEMORY,
                                     .threads = 2,
                                     .journal_s = 2 };
}

/* Check that every byte of a step is intact and its tensors hold the fixture's values. Its layout
 * as a spec is written to `text`. */
static void check_step(char text[SPEC_TEXT_MAX], const char *root, enum dtype params)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    char dir[PATH_MAX];
    struct verify v = { .dir = dir, .jobs = 2 };

    cr_assert_eq(ckpt_locate(dir, root, STEP, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(ckpt_verify(&v, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(v.findings, 0);
    cr_assert_eq(v.manifest.state.seed, SEED);
    spec_format(text, &v.manifest.layout.spec);
    for (int i = 0; i < v.manifest.layout.n_tensors; i++) {
        const struct tensor *t = &v.manifest.layout.tensors[i];
        struct box whole = box_whole(t->ndim, t->shape);
        size_t bytes = (size_t)(box_elements(&whole) * dtype_bytes(t->dtype));
        void *data = malloc(bytes);
        struct digest d;

        fixture_fill(data, t, &whole, SEED);
        d = digest_box(data, &whole, t->ndim, t->shape, dtype_bytes(t->dtype));
        if (strcmp(t->group, GROUP_PARAM) != 0 || t->dtype == params)
            cr_assert_eq(memcmp(&d, &v.digests[i], sizeof d), 0, "%s/%s", t->group, t->name);
        free(data);
    }
    arena_free(&arena);
}

/* The number of names in a folder; 0 if it does not exist. */
static int count_names(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d)
        closedir(d);
    return n;
}

static bool has_kind(const struct reshard_report *r, const char *name)
{
    for (int i = 0; i < r->n_kinds; i++)
        if (strcmp(r->kinds[i].name, name) == 0)
            return true;
    return false;
}

Test(reshard, writes_the_same_tensors_at_another_layout_and_compares_digests)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4pp2", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];

    tiny_ckpt(q.ckpt, "tp2dp2zero1", STEP, SEED, DTYPE_BF16);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    check_step(spec, q.out, DTYPE_BF16);
    cr_expect_str_eq(spec, "tp4pp2dp2zero1"); /* dp and zero are unchanged */
    cr_expect_eq(r.step, STEP);
    cr_expect_str_eq(r.out, q.out);
    cr_expect(r.n_tensors > 0 && r.digests_equal == r.n_tensors && r.casts == 0);
    cr_expect_gt(r.bytes_written, 0);
    cr_expect_eq(r.bytes_read, r.bytes_written);
    cr_expect_eq(r.processes, 1);
    cr_expect_eq(reshard_report_files(&r), 16);
    cr_expect_eq(r.resumed_tiles, 0);
    cr_expect(r.n_kinds == 0 && r.peak_bytes > 0 && r.peak_bytes <= MEMORY);
    reshard_report_free(&r);
}

Test(reshard, a_dry_run_reports_the_plan_and_creates_nothing)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct reshard_report planned, done;
    struct tp_err err = { 0 };

    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    q.dry_run = true;
    cr_assert_eq(reshard_run(&planned, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(count_names(temp_dir), 1, "only the source");
    cr_expect(has_kind(&planned, "model.layers.#.mlp.up_proj.weight"));
    cr_expect_not(has_kind(&planned, "model.layers.0.mlp.up_proj.weight"));
    cr_expect_gt(planned.planned.splits, 0);
    /* tp2 cuts 250 rows of the vocabulary at 125, tp4 at 63, 126 and 189: both vocabulary matrices
     * of all three groups are merged too */
    cr_expect_eq(planned.planned.merges, 6);
    q.dry_run = false;
    cr_assert_eq(reshard_run(&done, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(planned.bytes_written, done.bytes_written);
    cr_expect_eq(planned.tiles, done.tiles);
    cr_expect_eq(planned.boxes_to, done.boxes_to);
    for (int rank = 0; rank < 4; rank++)
        cr_expect_eq(planned.rank_bytes[rank], done.rank_bytes[rank]);
    reshard_report_free(&planned);
    reshard_report_free(&done);
}

Test(reshard, only_weights_can_be_cast)
{
    const enum dtype f32 = DTYPE_F32;
    struct reshard_request q = request_of(temp_path("a"), "tp1", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];

    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_BF16);
    q.no_optim = true;
    q.dtype = &f32;
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    check_step(spec, q.out, DTYPE_BF16);
    cr_expect_eq(r.n_tensors, 2 * 9 + 3);
    cr_expect_eq(r.casts, r.n_tensors);
    cr_expect_eq(r.digests_equal, 0);
    reshard_report_free(&r);
}

Test(reshard, the_default_out_is_ckpt_and_spec)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", NULL);
    char with_slash[PATH_MAX + 2];
    struct reshard_report r;
    struct tp_err err = { 0 };

    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    snprintf(with_slash, sizeof with_slash, "%s//", q.ckpt);
    q.ckpt = with_slash;
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(r.out, temp_path("a-tp4"));
    cr_expect_eq(r.kept.given, 0);
    reshard_report_free(&r);
}

Test(reshard, the_default_out_names_the_axes_that_are_kept_too)
{
    struct reshard_request q = request_of(temp_path("a"), "dp=2", NULL);
    struct reshard_report r;
    struct tp_err err = { 0 };

    tiny_ckpt(q.ckpt, "tp2pp2", STEP, SEED, DTYPE_F32);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(r.out, temp_path("a-tp2pp2dp2"));
    cr_expect_eq(r.kept.given, SPEC_TP | SPEC_PP);
    reshard_report_free(&r);
}

/* Requests that are refused before anything is created. */
Test(reshard, wrong_requests_are_refused_and_create_nothing)
{
    struct reshard_request good = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct {
        tp_status st;
        const char *says;
        struct reshard_request q;
    } cases[7];
    struct tp_err err;

    for (int i = 0; i < 7; i++)
        cases[i].q = good;
    tiny_ckpt(good.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    cases[0].st = TP_E_LAYOUT, cases[0].says = "--from tp8", cases[0].q.from = "tp8";
    cases[1].st = TP_E_USAGE, cases[1].says = "--to", cases[1].q.to = "tp4xx";
    cases[2].st = TP_E_LAYOUT, cases[2].says = "tp", cases[2].q.to = "tp3";
    cases[3].st = TP_E_NOTFOUND, cases[3].says = "step 8", cases[3].q.step = 8;
    cases[4].st = TP_E_NOTFOUND, cases[4].says = "none", cases[4].q.ckpt = temp_path("none");
    cases[5].st = TP_E_BUDGET, cases[5].says = "at least", cases[5].q.memory_bytes = 1 << 20;
    cases[6].st = TP_E_USAGE, cases[6].says = "manifest.json",
    cases[6].q.out = temp_path("a/step-00000007");
    for (int i = 0; i < 7; i++) {
        struct reshard_report r;

        err = (struct tp_err){ 0 };
        cr_expect_eq(reshard_run(&r, &cases[i].q, &err), cases[i].st, "case %d: %s", i, err.msg);
        cr_expect(strstr(err.msg, cases[i].says), "case %d: %s", i, err.msg);
        cr_expect_eq(count_names(temp_dir), 1, "case %d", i);
        reshard_report_free(&r);
    }
}

Test(reshard, an_existing_step_is_replaced_only_by_force)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];

    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    tiny_ckpt(q.out, "tp1", STEP, SEED, DTYPE_F32);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_E_EXISTS);
    reshard_report_free(&r);
    check_step(spec, q.out, DTYPE_F32);
    cr_assert_str_eq(spec, "tp1");
    q.force = true;
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    reshard_report_free(&r);
    check_step(spec, q.out, DTYPE_F32);
    cr_assert_str_eq(spec, "tp4");
}

/* A pending SIGTERM stops the job after its first round, and the same request then resumes it. */
Test(reshard, a_signal_stops_it_and_the_same_request_resumes_it)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];
    sigset_t set;
    int received;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    cr_assert_eq(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    q.journal_s = 0; /* one round of tiles at a time */
    q.threads = 1;
    cr_assert_eq(raise(SIGTERM), 0);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_E_STOPPED);
    reshard_report_free(&r);
    cr_assert(strstr(err.msg, "run the same command again"), "%s", err.msg);
    cr_assert_eq(count_names(q.out), 2, "the lock and the temporary directory");
    cr_assert_eq(sigwait(&set, &received), 0);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(r.resumed_tiles, 1);
    cr_expect_eq(r.tiles, r.all_tiles - 1);
    cr_expect_eq(r.digests_equal, r.n_tensors);
    reshard_report_free(&r);
    check_step(spec, q.out, DTYPE_F32);
}

/* Stop a request after its first tile. */
static void stop_early(struct reshard_request *q)
{
    struct reshard_report r;
    struct tp_err err = { 0 };
    sigset_t set;
    int received;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    cr_assert_eq(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    q->journal_s = 0;
    q->threads = 1;
    cr_assert_eq(raise(SIGTERM), 0);
    cr_assert_eq(reshard_run(&r, q, &err), TP_E_STOPPED);
    reshard_report_free(&r);
    cr_assert_eq(sigwait(&set, &received), 0);
}

/* Flip a bit of each 4 KiB of a shard that is being written, so also of what the first tile
 * wrote. */
static void damage_unfinished(const char *out)
{
    char pattern[PATH_MAX];
    glob_t found;
    struct stat sb;

    snprintf(pattern, sizeof pattern, "%s/*.tmp-*/rank-*.h5", out);
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        int fd = open(found.gl_pathv[i], O_RDWR);

        cr_assert(fd >= 0 && fstat(fd, &sb) == 0);
        for (off_t at = 5; at < sb.st_size; at += 4096) {
            char byte;

            cr_assert_eq(pread(fd, &byte, 1, at), 1);
            byte ^= 2;
            cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
    }
    globfree(&found);
}

Test(reshard, what_was_damaged_after_an_interruption_is_written_again)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];
    const enum dtype f16 = DTYPE_F16;

    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_BF16);
    for (int is_cast = 0; is_cast < 2; is_cast++) {
        q.out = temp_path(is_cast ? "cast" : "b");
        q.dtype = is_cast ? &f16 : NULL;
        stop_early(&q);
        damage_unfinished(q.out);
        cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(r.resumed_tiles, 1);
        cr_expect_gt(r.damaged_chunks, 0);
        cr_expect_eq(r.digests_equal + r.casts, r.n_tensors);
        reshard_report_free(&r);
        check_step(spec, q.out, DTYPE_BF16);
    }
}

Test(reshard, a_signal_while_it_reads_back_changes_nothing)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];

    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    stop_early(&q);
    stop_early(&q);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(r.resumed_tiles, 1);
    cr_expect_eq(r.damaged_chunks, 0);
    reshard_report_free(&r);
    check_step(spec, q.out, DTYPE_F32);
}

/* Another request finds the files of the first one and does not use them. */
Test(reshard, another_request_starts_from_the_beginning)
{
    struct reshard_request q = request_of(temp_path("a"), "tp4", temp_path("b"));
    struct reshard_report r;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX];
    sigset_t set;
    int received;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    cr_assert_eq(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_F32);
    q.journal_s = 0;
    cr_assert_eq(raise(SIGTERM), 0);
    cr_assert_eq(reshard_run(&r, &q, &err), TP_E_STOPPED);
    reshard_report_free(&r);
    cr_assert_eq(sigwait(&set, &received), 0);
    q.to = "tp2pp2";
    cr_assert_eq(reshard_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(r.resumed_tiles, 0);
    reshard_report_free(&r);
    check_step(spec, q.out, DTYPE_F32);
    cr_expect_str_eq(spec, "tp2pp2");
    cr_expect_eq(count_names(q.out), 3, "step, lock, latest");
}
