/* torch/file_part.c - see torch/file_part.h. */
#include "torch/file_part.h"

tp_status file_part_read(const struct file_part *part, int64_t offset, void *buf, int64_t n,
                         struct tp_err *err)
{
    if (offset < 0 || n < 0 || offset > part->size || n > part->size - offset)
        return tp_fail(err, TP_E_CORRUPT, "%s: is cut off or damaged: needs %lld bytes at %lld",
                       part->path, (long long)n, (long long)(part->begin + offset));
    return object_read_at(&part->object, part->path, part->begin + offset, buf, (size_t)n, err);
}
