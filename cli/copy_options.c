/* cli/copy_options.c - see cli/copy_options.h. */
#include "cli/copy_options.h"

#include <stdio.h>

#include "core/thread_pool.h"

struct copy_options copy_options_default(void)
{
    return (struct copy_options){ .memory_bytes = INT64_C(1) << 30,
                                  .threads = thread_pool_cores() };
}

tp_status copy_options_check(struct copy_options *o, const enum dtype **dtype, struct tp_err *err)
{
    tp_status st = thread_pool_check_workers("--jobs", o->threads, err);

    *dtype = NULL;
    if (st || !o->dtype_text)
        return st;
    if (!dtype_parse(&o->dtype, o->dtype_text) ||
        (o->dtype != DTYPE_F32 && o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F16))
        return tp_fail(err, TP_E_USAGE, "--dtype is f32, bf16 or f16, not '%s'", o->dtype_text);
    *dtype = &o->dtype;
    return TP_OK;
}

void copy_options_print_proof(int n_tensors, int digests_equal, bool from_checkpoint)
{
    printf("checked  %s%d tensors, digests equal%s\n",
           from_checkpoint ? "every checksum of the source; " : "", digests_equal,
           digests_equal < n_tensors ? "; the others were cast" : "");
}
