/* trainer/data.c - see trainer/data.h. */
#include "trainer/data.h"

#include <inttypes.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/file.h"

static tp_status check_bytes(const struct data *d, const char *path, int64_t vocab,
                             struct tp_err *err)
{
    if (vocab >= 256)
        return TP_OK;
    for (int64_t i = 0; i < d->size; i++)
        if (d->bytes[i] >= vocab)
            return tp_fail(err, TP_E_USAGE,
                           "%s: byte %d at offset %" PRId64
                           " is no token: the model's vocabulary is %" PRId64 " (bytes need 256)",
                           path, d->bytes[i], i, vocab);
    return TP_OK;
}

tp_status data_open(struct data *d, const char *path, int64_t seq, int64_t vocab,
                    struct tp_err *err)
{
    struct data new = { .seq = seq };
    void *map;
    int fd;
    tp_status st = file_open_read(&fd, &new.size, path, err);

    if (st == TP_E_CORRUPT) /* not a regular file: the request is wrong, nothing is damaged */
        st = err->status = TP_E_USAGE;
    if (st)
        return tp_fail_in(err, "--data");
    if (new.size < seq + 1) {
        close(fd);
        return tp_fail(err, TP_E_USAGE,
                       "%s: %" PRId64 " bytes are too few: one sequence of --seq %" PRId64
                       " tokens and its target need %" PRId64,
                       path, new.size, seq, seq + 1);
    }
    map = mmap(NULL, (size_t) new.size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return tp_fail_errno(err, "%s: cannot be mapped", path);
    new.bytes = map;
    new.windows = (new.size - 1) / seq;
    if ((st = check_bytes(&new, path, vocab, err))) {
        data_close(&new);
        return st;
    }
    *d = new;
    return TP_OK;
}

void data_close(struct data *d)
{
    if (d->bytes)
        munmap((void *)(uintptr_t)d->bytes, (size_t)d->size);
    *d = (struct data){ 0 };
}

void data_fetch(const struct data *d, int64_t first, int64_t n, int32_t *ids, int32_t *targets)
{
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *w = d->bytes + (first + i) % d->windows * d->seq;

        for (int64_t t = 0; t < d->seq; t++) {
            *ids++ = w[t];
            *targets++ = w[t + 1];
        }
    }
}
