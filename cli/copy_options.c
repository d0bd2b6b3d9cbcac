/* cli/copy_options.c - see cli/copy_options.h. */
#include "cli/copy_options.h"

#include <stdio.h>

#include "ckpt/codec.h"
#include "cli/report.h"
#include "core/size.h"
#include "core/thread_pool.h"
#include "storage/remote.h"

enum { JOURNAL_S = 2 };

struct copy_options copy_options_default(void)
{
    return (struct copy_options){ .memory_bytes = INT64_C(1) << 30,
                                  .journal_s = JOURNAL_S,
                                  .threads = thread_pool_cores() };
}

tp_status copy_options_check(struct copy_options *o, const enum dtype **dtype, struct tp_err *err)
{
    tp_status st = thread_pool_check_workers("--jobs", o->threads, err);

    *dtype = NULL;
    if (!st && o->journal_s < 0)
        st = tp_fail(err, TP_E_USAGE, "--journal %g: must not be negative", o->journal_s);
    if (st || !o->dtype_text)
        return st;
    if (!dtype_parse(&o->dtype, o->dtype_text) ||
        (o->dtype != DTYPE_F32 && o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F16))
        return tp_fail(err, TP_E_USAGE, "--dtype is f32, bf16 or f16, not '%s'", o->dtype_text);
    *dtype = &o->dtype;
    return TP_OK;
}

struct progress *copy_options_progress(const char *title, bool json)
{
    struct progress *p = progress_new(title, 0, report_progress(json));

    progress_sent(p, remote_sent_bytes);
    return p;
}

tp_status copy_options_level(int *level, const struct copy_options *o, struct tp_err *err)
{
    *level = 0;
    return o->zstd ? codec_parse_level(level, "--zstd", o->zstd, err) : TP_OK;
}

void copy_options_print_stored(int level, int64_t stored_bytes, int64_t bytes_written)
{
    char stored[SIZE_TEXT_MAX];

    if (level && stored_bytes > 0)
        printf("zstd     level %d: %s in the files, %.2f times less\n", level,
               size_format(stored, stored_bytes), (double)bytes_written / (double)stored_bytes);
}

void copy_options_print_resumed(int64_t tiles, int64_t all, int64_t damaged)
{
    if (tiles > 0)
        printf("resumed  after %lld of %lld tiles, which were read back and compared; %lld chunks "
               "differed and were written again\n",
               (long long)tiles, (long long)all, (long long)damaged);
}

json_t *copy_options_resumed_json(const struct copy_totals *t)
{
    return json_pack("{s:I, s:I, s:I}", "windows", (json_int_t)t->tiles, "windows_before",
                     (json_int_t)t->resumed_tiles, "damaged_chunks", (json_int_t)t->damaged_chunks);
}

void copy_options_print_proof(int digests_equal, int casts, bool from_checkpoint)
{
    printf("checked  %s", from_checkpoint ? "every checksum of the source; " : "");
    if (digests_equal > 0 || casts == 0)
        printf("%d tensors, digests equal", digests_equal);
    if (casts > 0)
        printf("%s%d tensors cast, digests equal to the cast of what was read",
               digests_equal > 0 ? "; " : "", casts);
    puts(from_checkpoint ? "" : " (SRC has no checksums)");
}
