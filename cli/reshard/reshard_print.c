/* cli/reshard/reshard_print.c - see cli/reshard/reshard_print.h. */
#include "cli/reshard/reshard_print.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/copy_options.h"
#include "cli/print.h"
#include "core/size.h"
#include "layout/box.h"

enum { FILES_SHOWN = 8, SHAPE_TEXT = 160 };

/* ---- for people ---- */

static const char *action_name(const struct transfer_tensor_stats *s)
{
    if (s->split && s->merge)
        return "recut";
    return s->split ? "split" : s->merge ? "merge" : "copy";
}

static int wider(int width, const char *text)
{
    int n = (int)strlen(text);

    return n > width ? n : width;
}

/* The table of tensors: what happens to each kind. */
static void print_kinds(const struct reshard_report *r)
{
    int name_width = 8, shape_width = 5, group_width = 6;
    char shape[SHAPE_TEXT], boxes[32], bytes[SIZE_TEXT_MAX];

    for (int i = 0; i < r->n_kinds; i++) {
        const struct reshard_kind *k = &r->kinds[i];

        box_format_shape(shape, sizeof shape, k->tensor->ndim, k->tensor->shape);
        name_width = wider(name_width, k->name);
        shape_width = wider(shape_width, shape);
        group_width = wider(group_width, k->groups);
    }
    printf("  %-*s  %-*s  %-*s  %5s  %11s  %-6s  %8s\n", name_width, "tensors", shape_width,
           "shape", group_width, "groups", "count", "boxes each", "action", "bytes");
    for (int i = 0; i < r->n_kinds; i++) {
        const struct reshard_kind *k = &r->kinds[i];

        box_format_shape(shape, sizeof shape, k->tensor->ndim, k->tensor->shape);
        snprintf(boxes, sizeof boxes, "%d -> %d", k->stats.from, k->stats.to);
        printf("  %-*s  %-*s  %-*s  %5d  %11s  %-6s  %8s%s\n", name_width, k->name, shape_width,
               shape, group_width, k->groups, k->count, boxes, action_name(&k->stats),
               size_format(bytes, k->bytes), k->stats.cast ? "  cast" : "");
    }
}

static void print_files(const struct reshard_report *r)
{
    int n = reshard_report_files(r), shown = 0;
    char bytes[SIZE_TEXT_MAX];

    printf("files    %d:", n);
    for (int rank = 0; rank < spec_world(&r->to) && shown < FILES_SHOWN; rank++)
        if (r->rank_bytes[rank] > 0)
            printf("%s rank-%05d.h5 %s", shown++ ? "," : "", rank,
                   size_format(bytes, r->rank_bytes[rank]));
    printf("%s\n", n > shown ? ", ..." : "");
}

static void print_head(const struct reshard_report *r)
{
    char from[SPEC_TEXT_MAX], to[SPEC_TEXT_MAX], kept[SPEC_TEXT_MAX];

    printf("%s -> %s", spec_format(from, &r->from), spec_format(to, &r->to));
    if (r->step >= 0)
        printf(", step %lld", (long long)r->step);
    if (r->kept.given)
        printf(" (%s kept, as --to does not name %s)", spec_format_given(kept, &r->kept),
               (r->kept.given & (r->kept.given - 1)) ? "them" : "it");
    putchar('\n');
    if (r->step >= 0) {
        print_field("from     ", r->dir);
        printf("to       ");
        print_safe(r->out);
        printf("/step-%08lld\n", (long long)r->step);
    } else {
        printf("model    ");
        print_safe(r->dir);
        printf(", trained in bf16; there is no checkpoint\n");
    }
}

static void print_plan(const struct reshard_report *r)
{
    const struct transfer_stats *s = &r->planned;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];

    printf("plan     ");
    print_head(r);
    print_kinds(r);
    printf("tensors  %d: %d split, %d merged, %d copied (recut counts as split and merged)\n",
           r->n_tensors, s->splits, s->merges, s->copies);
    if (r->linked_files > 0)
        printf("bytes    none to read or write; %d file%s of the source to link, with %s\n",
               r->linked_files, r->linked_files == 1 ? "" : "s", size_format(a, r->linked_bytes));
    else
        printf("bytes    %s to read, %s to write, in %lld tiles\n", size_format(a, r->bytes_read),
               size_format(b, r->bytes_written), (long long)r->tiles);
    if (r->cloned_bytes > 0)
        printf("cloned   %s to share their blocks with the source\n",
               size_format(a, r->cloned_bytes));
    print_files(r);
    if (r->step >= 0)
        printf("memory   at most %s%s: %s for the program and its tables, %s for buffers\n",
               size_format(a, r->peak_bytes), r->processes > 1 ? " per process" : "",
               size_format(b, r->base_bytes), size_format(c, s->buffer_bytes));
    else
        printf("boxes    %d before and %d after\nmemory   %s for buffers, without the program and "
               "its tables\n",
               r->boxes_from, r->boxes_to, size_format(c, s->buffer_bytes));
    printf("proved   each byte of the target will be written once; nothing was written\n");
}

/* The lines "bytes" and "checked" of a step that consists of the source's files. */
static void print_links(const struct reshard_report *r)
{
    char bytes[SIZE_TEXT_MAX];

    printf("bytes    %s in %d linked file%s, nothing copied, in %.2f s\n",
           size_format(bytes, r->linked_bytes), r->linked_files, r->linked_files == 1 ? "" : "s",
           r->seconds);
    printf("checked  every index and HDF5 structure; %d tensors, digests equal, because the files "
           "are the same.\n         Tensor data was not read: tp-ckpt verify reads it\n",
           r->digests_equal);
}

static void print_result(const struct reshard_report *r)
{
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];
    double seconds = r->seconds > 1e-9 ? r->seconds : 1e-9;
    int files = reshard_report_files(r);

    printf("resharded ");
    print_head(r);
    printf("tensors  %d, in %d boxes before and %d now, in %d file%s\n", r->n_tensors,
           r->boxes_from, r->boxes_to, files, files == 1 ? "" : "s");
    if (r->linked_files > 0) {
        print_links(r);
        return;
    }
    printf("bytes    %s read, %s written in %.2f s (%s/s)\n", size_format(a, r->bytes_read),
           size_format(b, r->bytes_written), r->seconds,
           size_format(c, (int64_t)((double)r->bytes_written / seconds)));
    copy_options_print_stored(r->zstd, r->stored_bytes, r->bytes_written);
    if (r->cloned_bytes > 0)
        printf(
            "cloned   %s, which share their blocks with the source: their checksums and digests "
            "are those\n         of its index, and they were not read. tp-ckpt verify reads them\n",
            size_format(c, r->cloned_bytes));
    copy_options_print_resumed(r->resumed_tiles, r->all_tiles, r->damaged_chunks);
    printf("memory   %s at its peak%s\n", size_format(a, r->peak_bytes),
           r->processes > 1 ? ", in the process that needed most" : "");
    if (r->cloned_bytes > 0)
        printf("checked  every checksum of what was read; %d tensors, digests equal%s\n",
               r->digests_equal, r->casts > 0 ? "; the others to their casts" : "");
    else
        copy_options_print_proof(r->digests_equal, r->casts, true);
}

tp_status reshard_print(const struct reshard_report *r, const struct reshard_device *device,
                        bool dry_run, struct tp_err *err)
{
    if (dry_run)
        print_plan(r);
    else
        print_result(r);
    if (device->why[0])
        printf("device   %s, because %s\n", device->used, device->why);
    return print_done(err);
}

/* ---- JSON ---- */

static json_t *kinds_json(const struct reshard_report *r)
{
    json_t *list = json_array();

    for (int i = 0; i < r->n_kinds; i++) {
        const struct reshard_kind *k = &r->kinds[i];

        json_array_append_new(
            list, json_pack("{s:s, s:o, s:o, s:i, s:i, s:i, s:s, s:b, s:I}", "tensors", k->name,
                            "shape", print_int_list(k->tensor->shape, k->tensor->ndim), "groups",
                            print_text(k->groups), "count", k->count, "boxes_from", k->stats.from,
                            "boxes_to", k->stats.to, "what", action_name(&k->stats), "cast",
                            k->stats.cast, "bytes", (json_int_t)k->bytes));
    }
    return list;
}

tp_status reshard_print_json(const struct reshard_report *r, const struct reshard_device *device,
                             bool dry_run, struct tp_err *err)
{
    const struct transfer_stats *s = &r->planned;
    char from[SPEC_TEXT_MAX], to[SPEC_TEXT_MAX], kept[SPEC_TEXT_MAX];
    json_t *o =
        json_pack("{s:s, s:s, s:o, s:i, s:i, s:I, s:I, s:f, s:I, s:s, s:o}", "from",
                  spec_format(from, &r->from), "to", spec_format(to, &r->to), "step",
                  r->step < 0 ? json_null() : json_integer(r->step), "tensors", r->n_tensors,
                  "boxes", r->boxes_to, "bytes_read", (json_int_t)r->bytes_read, "bytes_written",
                  (json_int_t)r->bytes_written, "seconds", r->seconds, "peak_rss_bytes",
                  (json_int_t)r->peak_bytes, "device", device->used, "out", print_text(r->out));
    json_t *more = json_pack("{s:b, s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:i}", "dry_run", dry_run,
                             "splits", s->splits, "merges", s->merges, "copies", s->copies, "files",
                             reshard_report_files(r), "windows", (json_int_t)r->tiles,
                             "buffer_bytes", (json_int_t)s->buffer_bytes, "processes", r->processes,
                             "boxes_from", r->boxes_from);

    json_object_update_new(more,
                           json_pack("{s:I, s:i, s:i, s:I}", "bytes_cloned",
                                     (json_int_t)r->cloned_bytes, "zstd", r->zstd, "linked_files",
                                     r->linked_files, "bytes_linked", (json_int_t)r->linked_bytes));
    if (device->why[0])
        json_object_set_new(more, "device_reason", print_text(device->why));
    json_object_set_new(more, "kept", json_string(spec_format_given(kept, &r->kept)));
    if (r->zstd && !dry_run)
        json_object_set_new(more, "bytes_stored", json_integer(r->stored_bytes));
    if (dry_run)
        json_object_set_new(more, "plan", kinds_json(r));
    else
        json_object_update_new(more, json_pack("{s:i, s:i, s:I, s:I}", "digests_equal",
                                               r->digests_equal, "casts", r->casts,
                                               "windows_before", (json_int_t)r->resumed_tiles,
                                               "damaged_chunks", (json_int_t)r->damaged_chunks));
    return print_json_joined(o, more, err);
}
