/* cli/ckpt/cmd_prune.c - tp-ckpt prune: delete old steps. */
#include <jansson.h>
#include <stdio.h>

#include "ckpt/prune.h"
#include "cli/ckpt/cmd.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/size.h"
#include "core/text.h"
#include "core/thread_pool.h"
#include "storage/location.h"

static const char intro[] =
    "Deletes all intact steps but the newest --keep, and what interrupted saves left. Prints a\n"
    "line for each name that is deleted. A step is renamed before it is deleted, so no reader "
    "sees\n"
    "half of one.\n"
    "\n"
    "The steps that are kept are verified first: every byte is read, as by tp-ckpt verify. A\n"
    "damaged step is named, does not count as kept, and stays, so that you can examine it. When\n"
    "no step is intact, nothing is deleted and the exit code is 3.\n"
    "\n"
    "In a store (s3://), where a job may write meanwhile, only steps before the newest one that "
    "it\n"
    "has saved are deleted; the others are named.";

static void print_damaged(const struct ckpt_pruned *pruned)
{
    for (int i = 0; i < pruned->n_damaged; i++) {
        const struct ckpt_damaged_step *d = &pruned->damaged[i];

        printf("damaged ");
        print_safe(d->name);
        printf(", which stays and does not count as kept: %d finding%s, the first: ", d->findings,
               d->findings == 1 ? "" : "s");
        print_safe(d->finding);
        putchar('\n');
    }
}

static void print_left(const struct ckpt_pruned *pruned)
{
    for (int i = 0; i < pruned->n_left; i++) {
        printf("left ");
        print_safe(pruned->left[i].name);
        printf(": %s\n", pruned->left[i].why);
    }
}

static void print_names(const struct ckpt_pruned *pruned, bool dry_run)
{
    for (int i = 0; i < pruned->n; i++) {
        printf("%s ", dry_run ? "would delete" : "delete");
        print_safe(pruned->names[i]);
        putchar('\n');
    }
}

static void say(void *ctx, const char *sentence)
{
    report_note(ctx, "%s", sentence);
}

static void print_summary(const struct ckpt_pruned *pruned, const struct ckpt_prune_request *q)
{
    char size[SIZE_TEXT_MAX];

    printf("kept %d intact step%s: ", pruned->n_kept, pruned->n_kept == 1 ? "" : "s");
    if (q->verify_jobs > 0)
        printf("every checksum verified, %s of payload read\n",
               size_format(size, pruned->verified_bytes));
    else
        printf("not verified (--no-verify), only the manifest and the lengths of files checked\n");
    printf("%d %s%s\n", pruned->n, pruned->n == 1 ? "entry" : "entries",
           q->dry_run ? " would be deleted" : " deleted");
}

static void print_lines(const struct ckpt_pruned *pruned, const struct ckpt_prune_request *q,
                        bool complete)
{
    print_damaged(pruned);
    print_left(pruned);
    print_names(pruned, q->dry_run); /* also after a failure in the middle */
    if (complete)
        print_summary(pruned, q);
}

/* ---- as JSON ---- */

static json_t *names_json(const struct ckpt_pruned *pruned)
{
    json_t *list = json_array();

    for (int i = 0; i < pruned->n; i++)
        json_array_append_new(list, print_text(pruned->names[i]));
    return list;
}

static json_t *damaged_json(const struct ckpt_pruned *pruned)
{
    json_t *list = json_array();

    for (int i = 0; i < pruned->n_damaged; i++) {
        const struct ckpt_damaged_step *d = &pruned->damaged[i];

        json_array_append_new(list,
                              json_pack("{s:o, s:i, s:o}", "name", print_text(d->name), "findings",
                                        d->findings, "first", print_text(d->finding)));
    }
    return list;
}

static json_t *left_json(const struct ckpt_pruned *pruned)
{
    json_t *list = json_array();

    for (int i = 0; i < pruned->n_left; i++)
        json_array_append_new(list,
                              json_pack("{s:o, s:s}", "name", print_text(pruned->left[i].name),
                                        "why", pruned->left[i].why));
    return list;
}

/* After a failure the only object is that of the failure, so the names are on stderr. */
static void note_names(const struct ckpt_pruned *pruned, bool dry_run)
{
    for (int i = 0; i < pruned->n_damaged; i++)
        report_note("tp-ckpt", "%s is damaged: %s", pruned->damaged[i].name,
                    pruned->damaged[i].finding);
    for (int i = 0; i < pruned->n && !dry_run; i++)
        report_note("tp-ckpt", "deleted %s", pruned->names[i]);
}

static void print_object(const struct ckpt_pruned *pruned, const struct ckpt_prune_request *q,
                         bool complete)
{
    json_t *o;

    if (!complete) {
        note_names(pruned, q->dry_run);
        return;
    }
    o = json_pack("{s:o, s:b, s:i, s:b, s:I, s:o, s:o, s:o}", "root", print_text(q->root),
                  "dry_run", q->dry_run, "kept", pruned->n_kept, "verified", q->verify_jobs > 0,
                  "bytes_verified", (json_int_t)pruned->verified_bytes, "deleted",
                  names_json(pruned), "damaged", damaged_json(pruned), "left", left_json(pruned));
    print_json(o);
    json_decref(o);
}

static tp_status prune(const struct ckpt_prune_request *asked, bool json, struct tp_err *err)
{
    struct ckpt_prune_request q = *asked;
    struct ckpt_pruned pruned;
    struct arena arena = { 0 };
    char root[PATH_MAX];
    tp_status st = location_clean(root, asked->root, err);

    if (st)
        return st;
    q.root = root;
    q.progress = q.verify_jobs > 0 ? progress_new("verifying", 0, report_progress(json)) : NULL;
    st = ckpt_prune(&pruned, &q, &arena, err);
    if (st)
        progress_end(q.progress, false);
    else
        progress_erase(q.progress); /* its bytes are those of the last step; the summary has all */
    (json ? print_object : print_lines)(&pruned, &q, st == TP_OK);
    if (!st)
        st = print_done(err);
    arena_free(&arena);
    return st;
}

int cmd_prune(int argc, char **argv)
{
    char prog[] = "tp-ckpt";
    struct ckpt_prune_request q = { .verify_jobs = thread_pool_cores(), .wait = { say, prog, 0 } };
    bool keep_given = false, no_verify = false, json = false;
    struct tp_err err = { 0 };
    int code;
    const struct opt opts[] = {
        OPT_ARG("ROOT", &q.root, "checkpoint root"),
        { OPT_KIND_INT, 0, "keep", "N", &q.keep,
          "keep the newest N intact steps (at least 1; required)", &keep_given },
        OPT_INT64(0, "keep-every", "K", &q.keep_every,
                  "keep also each step that is a multiple of K"),
        OPT_FLAG(0, "dry-run", &q.dry_run, "print what would be deleted, and delete nothing"),
        OPT_FLAG(0, "no-verify", &no_verify,
                 "do not read the steps that are kept: a step counts as\n"
                 "intact when its files have their lengths"),
        OPT_INT('j', "jobs", "N", &q.verify_jobs, "threads that verify (default: processors)"),
        OPT_FLAG(0, "json", &json, "print one JSON object"),
        OPT_END
    };
    tp_status st;

    if (!report_options(&code, "tp-ckpt prune", opts, argc, argv, intro, NULL))
        return code;
    if (!q.dry_run)
        report_outlive_reader();
    if (!keep_given || q.keep < 1)
        return report_json(json, "tp-ckpt",
                           tp_fail(&err, TP_E_USAGE, "prune needs --keep N, where N is at least 1"),
                           &err);
    st = thread_pool_check_workers("--jobs", q.verify_jobs, &err);
    if (no_verify)
        q.verify_jobs = 0;
    return report_json(json, "tp-ckpt", st ? st : prune(&q, json, &err), &err);
}
