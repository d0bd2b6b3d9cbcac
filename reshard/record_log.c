/* reshard/record_log.c - see reshard/record_log.h. */
#include "reshard/record_log.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/crc.h"
#include "core/file.h"

struct record_log_head {
    uint32_t kind;
    uint32_t before; /* CRC of the record before; 0 for the first */
    uint64_t bytes;  /* of payload */
};

_Static_assert(sizeof(struct record_log_head) == RECORD_HEAD && sizeof(uint32_t) == RECORD_TAIL,
               "the size of a record");

tp_status record_log_append(struct record_log *log, uint32_t kind, unsigned char *buf,
                            uint64_t bytes, struct tp_err *err)
{
    const struct record_log_head h = { kind, log->crc, bytes };
    size_t covered = sizeof h + bytes;
    uint32_t crc;
    tp_status st;

    memcpy(buf, &h, sizeof h);
    crc = crc32c(buf, covered);
    memcpy(buf + covered, &crc, sizeof crc);
    st = file_write_at(log->fd, log->path, log->end, buf, covered + sizeof crc, err);
    if (!st)
        st = file_sync(log->fd, log->path, true, err);
    if (st)
        return st;
    log->crc = crc;
    log->end += (int64_t)(covered + sizeof crc);
    return TP_OK;
}

static tp_status damaged(const struct record_log *log, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: is damaged at byte %lld", log->path,
                   (long long)log->end);
}

/* Read the head of the next record, which must be of this kind, continue the last record, and be
 * complete in the file. */
static tp_status read_head(struct record_log_head *h, const struct record_log *log, uint32_t kind,
                           int64_t file_bytes, struct tp_err *err)
{
    const int64_t left = file_bytes - log->end - RECORD_HEAD - RECORD_TAIL;
    tp_status st;

    if (left < 0)
        return damaged(log, err);
    if ((st = file_read_at(log->fd, log->path, log->end, h, sizeof *h, err)))
        return st;
    if (h->kind != kind || h->before != log->crc || h->bytes > (uint64_t)left)
        return damaged(log, err);
    return TP_OK;
}

tp_status record_log_read(unsigned char **out, uint64_t *bytes, struct record_log *log,
                          uint32_t kind, int64_t file_bytes, struct tp_err *err)
{
    unsigned char *buf = NULL;
    struct record_log_head h = { 0 };
    size_t covered;
    uint32_t crc = 0;
    tp_status st = read_head(&h, log, kind, file_bytes, err);

    if (st)
        return st;
    covered = sizeof h + h.bytes;
    buf = malloc(covered + sizeof crc);
    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %llu bytes", log->path,
                       (unsigned long long)h.bytes);
    TP_TRY(file_read_at(log->fd, log->path, log->end, buf, covered + sizeof crc, err));
    memcpy(&crc, buf + covered, sizeof crc);
    if (crc != crc32c(buf, covered)) {
        st = damaged(log, err);
        goto done;
    }
    log->crc = crc;
    log->end += (int64_t)(covered + sizeof crc);
    *out = buf;
    *bytes = h.bytes;
    buf = NULL;
done:
    free(buf);
    return st;
}
