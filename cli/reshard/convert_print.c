/* cli/reshard/convert_print.c - see cli/reshard/convert_print.h. */
#include "cli/reshard/convert_print.h"

#include <jansson.h>
#include <stdio.h>

#include "cli/copy_options.h"
#include "cli/print.h"
#include "core/size.h"
#include "reshard/formats/export_format.h"

static void print_head(const struct convert_report *r, const char *source)
{
    const struct copy_totals *t = &r->totals;
    const struct export_format *format = NULL;
    struct tp_err ignored = { 0 };
    char to[SPEC_TEXT_MAX];

    printf("%s -> %s", r->from, r->format);
    if (export_format_find(&format, r->format, &ignored) || format->cuts)
        printf(" at %s", spec_format(to, &t->spec));
    if (t->step >= 0)
        printf(", step %lld", (long long)t->step);
    putchar('\n');
    print_field("from     ", source);
    print_field("to       ", r->out);
}

static tp_status print_plan(const struct convert_report *r, const char *source, struct tp_err *err)
{
    const struct copy_totals *t = &r->totals;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];

    printf("plan     ");
    print_head(r, source);
    printf("tensors  %d, in %d boxes, in %d file%s\n", t->n_tensors, t->boxes, r->files,
           r->files == 1 ? "" : "s");
    printf("bytes    %s to read, %s to write, in %lld tiles\n", size_format(a, t->bytes_read),
           size_format(b, t->bytes_written), (long long)t->tiles);
    printf("memory   at most %s%s\n", size_format(a, t->peak_bytes),
           t->processes > 1 ? " per process" : "");
    if (r->left_out[0])
        print_field("left out ", r->left_out);
    printf(
        "proved   the source has every element once, and each byte of the target will be written "
        "once; nothing was written\n");
    return print_done(err);
}

tp_status convert_print(const struct convert_report *r, const char *source, struct tp_err *err)
{
    const struct copy_totals *t = &r->totals;
    const double seconds = r->seconds > 1e-9 ? r->seconds : 1e-9;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];

    if (r->dry_run)
        return print_plan(r, source, err);
    printf("resharded ");
    print_head(r, source);
    printf("tensors  %d, in %d boxes now\n", t->n_tensors, t->boxes);
    printf("bytes    %s read, %s written in %.2f s (%s/s)\n", size_format(a, t->bytes_read),
           size_format(b, t->bytes_written), r->seconds,
           size_format(c, (int64_t)((double)t->bytes_written / seconds)));
    printf("memory   %s at its peak%s\n", size_format(a, t->peak_bytes),
           t->processes > 1 ? ", in the process that needed most" : "");
    if (r->left_out[0])
        print_field("left out ", r->left_out);
    copy_options_print_resumed(t->resumed_tiles, t->tiles, t->damaged_chunks);
    copy_options_print_proof(t->digests_equal, t->casts, t->checksums);
    return print_done(err);
}

tp_status convert_print_json(const struct convert_report *r, struct tp_err *err)
{
    char to[SPEC_TEXT_MAX];
    const struct copy_totals *t = &r->totals;
    json_t *o = json_pack(
        "{s:n, s:s, s:I, s:i, s:i, s:I, s:I, s:f, s:I, s:s, s:o}", "from", "to",
        spec_format(to, &t->spec), "step", (json_int_t)(t->step >= 0 ? t->step : 0), "tensors",
        t->n_tensors, "boxes", t->boxes, "bytes_read", (json_int_t)t->bytes_read, "bytes_written",
        (json_int_t)t->bytes_written, "seconds", r->seconds, "peak_rss_bytes",
        (json_int_t)t->peak_bytes, "device", "cpu", "out", print_text(r->out));
    json_t *more =
        json_pack("{s:s, s:s, s:o, s:i, s:i, s:b, s:i, s:b, s:i}", "from_format", r->from, "format",
                  r->format, "left_out", print_text(r->left_out), "digests_equal", t->digests_equal,
                  "casts", t->casts, "checksums", t->checksums, "processes", t->processes,
                  "dry_run", r->dry_run, "files", r->files);

    json_object_update_new(more, copy_options_resumed_json(t));
    return print_json_joined(o, more, err);
}
