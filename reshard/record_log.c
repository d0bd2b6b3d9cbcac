/* reshard/record_log.c - see reshard/record_log.h. */
#include "reshard/record_log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/crc.h"
#include "core/file.h"

struct head {
    uint32_t kind;
    uint32_t before; /* CRC of the frame before; 0 for the first */
    uint64_t bytes;  /* of payload */
};

_Static_assert(sizeof(struct head) == RECORD_HEAD && sizeof(uint32_t) == RECORD_TAIL,
               "a frame's size");

tp_status record_log_write(struct record_log *f, uint32_t kind, unsigned char *buf, uint64_t bytes,
                           struct tp_err *err)
{
    const struct head h = { kind, f->crc, bytes };
    size_t covered = sizeof h + bytes;
    uint32_t crc;
    tp_status st;

    memcpy(buf, &h, sizeof h);
    crc = crc32c(buf, covered);
    memcpy(buf + covered, &crc, sizeof crc);
    st = file_write_at(f->fd, f->path, f->end, buf, covered + sizeof crc, err);
    if (!st)
        st = file_sync(f->fd, f->path, true, err);
    if (st)
        return st;
    f->crc = crc;
    f->end += (int64_t)(covered + sizeof crc);
    return TP_OK;
}

static tp_status damaged(const struct record_log *f, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: damaged at byte %lld", f->path, (long long)f->end);
}

/* Whether the head at the end is one of this kind that goes on from the last frame, and the file is
 * long enough for the rest. */
static tp_status read_head(struct head *h, const struct record_log *f, uint32_t kind,
                           int64_t file_bytes, struct tp_err *err)
{
    const int64_t left = file_bytes - f->end - RECORD_HEAD - RECORD_TAIL;
    tp_status st;

    if (left < 0)
        return damaged(f, err);
    if ((st = file_read_at(f->fd, f->path, f->end, h, sizeof *h, err)))
        return st;
    if (h->kind != kind || h->before != f->crc || h->bytes > (uint64_t)left)
        return damaged(f, err);
    return TP_OK;
}

tp_status record_log_read(unsigned char **out, uint64_t *bytes, struct record_log *f, uint32_t kind,
                          int64_t file_bytes, struct tp_err *err)
{
    unsigned char *buf = NULL;
    struct head h = { 0 };
    size_t covered;
    uint32_t crc = 0;
    tp_status st = read_head(&h, f, kind, file_bytes, err);

    if (st)
        return st;
    covered = sizeof h + h.bytes;
    buf = malloc(covered + sizeof crc);
    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %llu bytes", f->path,
                       (unsigned long long)h.bytes);
    TP_TRY(file_read_at(f->fd, f->path, f->end, buf, covered + sizeof crc, err));
    memcpy(&crc, buf + covered, sizeof crc);
    if (crc != crc32c(buf, covered)) {
        st = damaged(f, err);
        goto done;
    }
    f->crc = crc;
    f->end += (int64_t)(covered + sizeof crc);
    *out = buf;
    *bytes = h.bytes;
    buf = NULL;
done:
    free(buf);
    return st;
}
