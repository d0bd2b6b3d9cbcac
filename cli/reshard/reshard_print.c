/* cli/reshard/reshard_print.c - see cli/reshard/reshard_print.h. */
#include "cli/reshard/reshard_print.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print.h"
#include "core/size.h"

enum { FOLDED_MAX = 160, GROUPS_MAX = 96, FILES_SHOWN = 8 };

/* Tensors alike: the same name but for layer numbers, the same shape, the same fate. */
struct kind {
    char name[FOLDED_MAX];
    char groups[GROUPS_MAX];
    char shape[BOX_TEXT_MAX];
    struct transfer_tensor_stats fate;
    int count;
    int64_t bytes; /* written */
};

/* "model.layers.12.mlp" as "model.layers.#.mlp": numbers between dots. */
static void fold(char out[FOLDED_MAX], const char *name)
{
    size_t n = 0;

    for (const char *p = name; *p && n + 2 < FOLDED_MAX;) {
        size_t digits = strspn(p, "0123456789");
        bool alone = digits > 0 && (p == name || p[-1] == '.') && (!p[digits] || p[digits] == '.');

        if (alone) {
            out[n++] = '#';
            p += digits;
        } else {
            out[n++] = isprint((unsigned char)*p) ? *p : '?';
            p++;
        }
    }
    out[n] = 0;
}

static const char *fate_name(const struct transfer_tensor_stats *s)
{
    if (s->split && s->merge)
        return "cut anew";
    return s->split ? "split" : s->merge ? "merge" : "copy";
}

static bool same_fate(const struct transfer_tensor_stats *a, const struct transfer_tensor_stats *b)
{
    return a->from == b->from && a->to == b->to && a->split == b->split && a->merge == b->merge &&
           a->cast == b->cast;
}

static void shape_text(char out[BOX_TEXT_MAX], const struct tensor *t)
{
    int n = snprintf(out, BOX_TEXT_MAX, "[");

    for (int d = 0; d < t->ndim; d++)
        n += snprintf(out + n, BOX_TEXT_MAX - (size_t)n, d ? ", %lld" : "%lld",
                      (long long)t->shape[d]);
    snprintf(out + n, BOX_TEXT_MAX - (size_t)n, "]");
}

static void add_group(struct kind *k, const char *group)
{
    size_t n = strlen(k->groups);
    const char *at = strstr(k->groups, group);

    while (at &&
           ((at > k->groups && at[-1] != '+') || (at[strlen(group)] && at[strlen(group)] != '+')))
        at = strstr(at + 1, group);
    if (!at)
        snprintf(k->groups + n, sizeof k->groups - n, n ? "+%s" : "%s", group);
}

/* Kinds in the order in which they first come; the caller frees. NULL: no memory. */
static struct kind *find_kinds(const struct reshard_job *job, int *n)
{
    struct kind *kinds = calloc((size_t)job->layout.n_tensors + 1, sizeof *kinds);

    *n = 0;
    for (int i = 0; kinds && i < job->layout.n_tensors; i++) {
        const struct tensor *t = &job->layout.tensors[i];
        struct box whole = box_whole(t->ndim, t->shape);
        struct kind k = { .name = "" };
        int at = 0;

        fold(k.name, t->name);
        shape_text(k.shape, t);
        transfer_plan_tensor(job->plan, i, &k.fate);
        while (at < *n &&
               (strcmp(kinds[at].name, k.name) != 0 || strcmp(kinds[at].shape, k.shape) != 0 ||
                !same_fate(&kinds[at].fate, &k.fate)))
            at++;
        if (at == *n)
            kinds[(*n)++] = k;
        kinds[at].count++;
        kinds[at].bytes += box_elements(&whole) * dtype_bytes(t->dtype);
        add_group(&kinds[at], t->group);
    }
    return kinds;
}

static void print_kinds(FILE *f, const struct reshard_job *job)
{
    int n, name_width = 8, shape_width = 5, group_width = 6;
    struct kind *kinds = find_kinds(job, &n);

    for (int i = 0; kinds && i < n; i++) {
        int name = (int)strlen(kinds[i].name), shape = (int)strlen(kinds[i].shape);
        int groups = (int)strlen(kinds[i].groups);

        name_width = name > name_width ? name : name_width;
        shape_width = shape > shape_width ? shape : shape_width;
        group_width = groups > group_width ? groups : group_width;
    }
    fprintf(f, "  %-*s  %-*s  %-*s  %5s  %11s  %-8s  %8s\n", name_width, "tensors", shape_width,
            "shape", group_width, "groups", "count", "boxes each", "what", "bytes");
    for (int i = 0; kinds && i < n; i++) {
        const struct kind *k = &kinds[i];
        char boxes[32], bytes[SIZE_TEXT_MAX];

        snprintf(boxes, sizeof boxes, "%d -> %d", k->fate.from, k->fate.to);
        fprintf(f, "  %-*s  %-*s  %-*s  %5d  %11s  %-8s  %8s%s\n", name_width, k->name, shape_width,
                k->shape, group_width, k->groups, k->count, boxes, fate_name(&k->fate),
                size_format(bytes, k->bytes), k->fate.cast ? "  cast" : "");
    }
    free(kinds);
}

static int count_files(const struct reshard_job *job)
{
    int n = 0;

    for (int rank = 0; rank < spec_world(&job->layout.spec); rank++)
        n += checkpoint_target_rank_bytes(job->target, rank) > 0;
    return n;
}

static void print_files(FILE *f, const struct reshard_job *job)
{
    int n = count_files(job), shown = 0;
    char bytes[SIZE_TEXT_MAX];

    fprintf(f, "files    %d:", n);
    for (int rank = 0; rank < spec_world(&job->layout.spec) && shown < FILES_SHOWN; rank++) {
        int64_t size = checkpoint_target_rank_bytes(job->target, rank);

        if (size > 0)
            fprintf(f, "%s rank-%05d.h5 %s", shown++ ? "," : "", rank, size_format(bytes, size));
    }
    fprintf(f, "%s\n", n > shown ? ", ..." : "");
}

static void print_head(FILE *f, const struct reshard_job *job)
{
    char from[SPEC_TEXT_MAX], to[SPEC_TEXT_MAX];

    fprintf(f, "%s -> %s, step %lld\n", spec_format(from, &job->m.layout.spec),
            spec_format(to, &job->layout.spec), (long long)job->m.step);
    fprintf(f, "from     %s\nto       %s/step-%08lld\n", job->dir, job->out,
            (long long)job->m.step);
}

void reshard_print_plan(FILE *f, const struct reshard_job *job, const struct reshard_totals *totals)
{
    const struct transfer_stats *s = &job->planned;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];

    fprintf(f, "plan     ");
    print_head(f, job);
    print_kinds(f, job);
    fprintf(f, "tensors  %d: %d split, %d merged, %d copied (cut anew counts as both)\n",
            job->layout.n_tensors, s->splits, s->merges, s->copies);
    fprintf(f, "bytes    %s to read, %s to write, in %lld windows\n",
            size_format(a, totals->bytes_read), size_format(b, totals->bytes_written),
            (long long)totals->windows);
    print_files(f, job);
    fprintf(f, "memory   at most %s%s: %s for the program and its tables, %s for buffers\n",
            size_format(a, totals->peak_bytes), totals->processes > 1 ? " a process" : "",
            size_format(b, job->base_bytes), size_format(c, s->buffer_bytes));
    fprintf(f, "proved   each byte of the target is written once; nothing was written\n");
}

void reshard_print_result(FILE *f, const struct reshard_job *job,
                          const struct reshard_totals *totals)
{
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];
    double seconds = totals->seconds > 1e-9 ? totals->seconds : 1e-9;
    int files = count_files(job);

    fprintf(f, "resharded ");
    print_head(f, job);
    fprintf(f, "tensors  %d, in %d boxes before and %d now, in %d file%s\n", job->layout.n_tensors,
            checkpoint_source_endpoint(job->source)->n_extents,
            checkpoint_target_endpoint(job->target)->n_extents, files, files == 1 ? "" : "s");
    fprintf(f, "bytes    %s read, %s written in %.2f s (%s/s)\n",
            size_format(a, totals->bytes_read), size_format(b, totals->bytes_written),
            totals->seconds, size_format(c, (int64_t)((double)totals->bytes_written / seconds)));
    if (job->journal.done_before > 0)
        fprintf(f, "went on  %lld of %lld windows had been done before\n",
                (long long)job->journal.done_before, (long long)job->journal.windows);
    fprintf(f, "memory   %s at its peak%s\n", size_format(a, totals->peak_bytes),
            totals->processes > 1 ? ", in the process that needed most" : "");
    fprintf(f, "checked  every checksum of the source; %d tensors, digests equal\n",
            job->digests_equal);
    if (job->casts > 0)
        fprintf(f, "cast     %d tensors, which have new digests\n", job->casts);
}

static json_t *kinds_json(const struct reshard_job *job)
{
    json_t *list = json_array();
    int n;
    struct kind *kinds = find_kinds(job, &n);

    for (int i = 0; kinds && i < n; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:b, s:I}", "tensors",
                            kinds[i].name, "shape", kinds[i].shape, "groups", kinds[i].groups,
                            "count", kinds[i].count, "boxes_from", kinds[i].fate.from, "boxes_to",
                            kinds[i].fate.to, "what", fate_name(&kinds[i].fate), "cast",
                            kinds[i].fate.cast, "bytes", (json_int_t)kinds[i].bytes));
    free(kinds);
    return list;
}

tp_status reshard_print_json(const struct reshard_job *job, const struct reshard_totals *totals,
                             bool dry_run, struct tp_err *err)
{
    const struct transfer_stats *s = &job->planned;
    char from[SPEC_TEXT_MAX], to[SPEC_TEXT_MAX];
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:f, s:I, s:s, s:s}", "from",
                  spec_format(from, &job->m.layout.spec), "to", spec_format(to, &job->layout.spec),
                  "step", (json_int_t)job->m.step, "tensors", job->layout.n_tensors, "boxes",
                  checkpoint_target_endpoint(job->target)->n_extents, "bytes_read",
                  (json_int_t)totals->bytes_read, "bytes_written",
                  (json_int_t)totals->bytes_written, "seconds", totals->seconds, "peak_rss_bytes",
                  (json_int_t)totals->peak_bytes, "device", "cpu", "out", job->out);
    json_t *more = json_pack(
        "{s:b, s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:i}", "dry_run", dry_run, "splits", s->splits,
        "merges", s->merges, "copies", s->copies, "files", count_files(job), "windows",
        (json_int_t)totals->windows, "buffer_bytes", (json_int_t)s->buffer_bytes, "processes",
        totals->processes, "boxes_from", checkpoint_source_endpoint(job->source)->n_extents);
    tp_status st = TP_OK;

    if (dry_run)
        json_object_set_new(more, "plan", kinds_json(job));
    else
        json_object_update_new(
            more, json_pack("{s:i, s:i, s:I}", "digests_equal", job->digests_equal, "casts",
                            job->casts, "windows_before", (json_int_t)job->journal.done_before));
    if (!o || !more || json_object_update(o, more) != 0)
        st = tp_fail(err, TP_E_IO, "%s: cannot be printed as JSON: is it UTF-8?", job->out);
    else
        print_json(o);
    json_decref(more);
    json_decref(o);
    return st;
}
