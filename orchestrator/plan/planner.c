/* orchestrator/plan/planner.c - see orchestrator/plan/planner.h. */
#include "orchestrator/plan/planner.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/plan/candidates.h"

/* ANSWERS: the newest answers, for example for the free ranks and for those that a backend could
 * get. FILES: the model and the parallel plan. */
enum { ANSWERS = 4, FILES = 2 };

static const double SAME_TIME = 0.02; /* relative change of a step time that changes no plan */

/* What identifies the contents of a file; zeroes: there is none. */
struct planner_file {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec modified;
};

struct planner_answer {
    bool valid;
    int64_t used; /* when it was used last, by planner.clock */
    int ranks;
    char wanted[SPEC_TEXT_MAX];
    struct planner_file file[FILES];
    struct job_findings findings;
    tp_status st;
    struct plan_candidate candidate;
    struct tp_err err;
};

struct planner {
    const struct job *job;
    char path[FILES][PATH_MAX]; /* "": none */
    int64_t clock, computed;
    struct planner_answer answer[ANSWERS];
};

struct planner *planner_new(const struct job *job)
{
    struct planner *p = calloc(1, sizeof *p);
    const char *model = job->layouts.model, *plan = job_option(job, "--plan");

    if (!p)
        return NULL;
    p->job = job;
    if (model)
        snprintf(p->path[0], PATH_MAX, "%.4000s%s", model,
                 file_is_dir(model) ? "/config.json" : "");
    if (plan && job->is_tp_train)
        snprintf(p->path[1], PATH_MAX, "%.2000s%s%.2000s", plan[0] == '/' ? "" : job->dir,
                 plan[0] == '/' ? "" : "/", plan);
    return p;
}

void planner_free(struct planner *p)
{
    free(p);
}

int64_t planner_computed(const struct planner *p)
{
    return p->computed;
}

static struct planner_file identify(const char *path)
{
    struct planner_file f = { 0 };
    struct stat sb;

    if (path[0] && stat(path, &sb) == 0) {
        f.dev = sb.st_dev;
        f.ino = sb.st_ino;
        f.size = sb.st_size;
        f.modified = sb.st_mtim;
    }
    return f;
}

static bool same_files(const struct planner_file *a, const struct planner_file *b)
{
    for (int i = 0; i < FILES; i++)
        if (a[i].dev != b[i].dev || a[i].ino != b[i].ino || a[i].size != b[i].size ||
            a[i].modified.tv_sec != b[i].modified.tv_sec ||
            a[i].modified.tv_nsec != b[i].modified.tv_nsec)
            return false;
    return true;
}

static bool same_times(const struct step_times *a, const struct step_times *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->entry[i].config, b->entry[i].config) != 0 ||
            fabs(a->entry[i].seconds - b->entry[i].seconds) > SAME_TIME * b->entry[i].seconds)
            return false;
    return true;
}

static bool same_findings(const struct job_findings *a, const struct job_findings *b)
{
    return a->gpus.bytes == b->gpus.bytes && a->gpus.overstated == b->gpus.overstated &&
           a->gpus.refused == b->gpus.refused && same_times(&a->times, &b->times);
}

static bool answers(const struct planner_answer *a, const struct planner_answer *question)
{
    return a->valid && a->ranks == question->ranks && strcmp(a->wanted, question->wanted) == 0 &&
           same_files(a->file, question->file) && same_findings(&a->findings, &question->findings);
}

static void compute(struct planner *p, struct planner_answer *a)
{
    struct arena arena = { 0 };
    struct plan_candidate *c = NULL;
    int n = 0;

    p->computed++;
    a->st = candidates_find(&c, &n, p->job, &a->findings, a->ranks, &arena, &a->err);
    if (a->st == TP_OK)
        a->st = candidates_pick(&a->candidate, c, n, a->wanted, &a->err);
    if (a->st == TP_E_LAYOUT && a->wanted[0])
        a->st = candidates_pick(&a->candidate, c, n, "", &a->err);
    a->candidate.why = ""; /* the candidate is legal; the texts of others are in the arena */
    a->valid = a->st == TP_OK || a->st == TP_E_LAYOUT;
    arena_free(&arena);
}

tp_status planner_select(struct planner *p, struct plan_candidate *out, int ranks,
                         const char *wanted, const struct job_findings *findings,
                         struct tp_err *err)
{
    struct planner_answer question = { .ranks = ranks }, *a = NULL, *oldest = p->answer;

    snprintf(question.wanted, sizeof question.wanted, "%s", wanted);
    if (findings)
        question.findings = *findings;
    for (int i = 0; i < FILES; i++)
        question.file[i] = identify(p->path[i]);
    for (int i = 0; i < ANSWERS; i++) {
        if (answers(&p->answer[i], &question))
            a = &p->answer[i];
        if (p->answer[i].used < oldest->used)
            oldest = &p->answer[i];
    }
    if (!a) {
        a = oldest;
        *a = question;
        compute(p, a);
    }
    a->used = ++p->clock;
    if (a->st)
        *err = a->err;
    else
        *out = a->candidate;
    return a->st;
}
