/* torch/zip.c - see torch/zip.h. The format: PKWARE's APPNOTE.TXT, sections 4.3 and 4.4. */
#include "torch/zip.h"

#include <isa-l/crc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22, /* end of central directory, without its comment */
    COMMENT_MAX = 65535,
    TAIL_BYTES = 4096,  /* at the end, where the last record of an archive without a comment is */
    LOCATOR_BYTES = 20, /* ZIP64 end of central directory locator */
    END64_BYTES = 56,   /* ZIP64 end of central directory */
    ENTRY_BYTES = 46,   /* entry of the central directory, without name, extra and comment */
    LOCAL_BYTES = 30,   /* local header, without name and extra */
    NAME_MAX_BYTES = 4096,
    DIRECTORY_BYTES_MAX = 256 << 20,
    CHECK_BYTES = 1 << 20,
};

#define ZIP_END     UINT32_C(0x06054b50)
#define ZIP_LOCATOR UINT32_C(0x07064b50)
#define ZIP_END64   UINT32_C(0x06064b50)
#define ZIP_ENTRY   UINT32_C(0x02014b50)
#define ZIP_LOCAL   UINT32_C(0x04034b50)

/* Where the central directory is, and how many entries it has. */
struct directory {
    int64_t begin, size, entries;
};

static uint32_t get16(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const unsigned char *p)
{
    return get16(p) | get16(p + 2) << 16;
}

/* A number of 64 bits; -1 when it exceeds INT64_MAX. */
static int64_t get64(const unsigned char *p)
{
    uint64_t n = (uint64_t)get32(p) | (uint64_t)get32(p + 4) << 32;

    return n > INT64_MAX ? -1 : (int64_t)n;
}

static tp_status damaged(const struct file_part *part, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: is not a zip archive as torch.save writes them: %s",
                   part->path, what);
}

static tp_status no_memory(const struct file_part *part, const struct arena *arena,
                           struct tp_err *err)
{
    if (arena->limit_bytes > 0)
        return tp_fail(err, TP_E_BUDGET,
                       "%s: the directory of the archive needs more than what is left of --mem; "
                       "give more, unless the file is hostile",
                       part->path);
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its directory", part->path);
}

/* Find the record that ends the archive in its last n bytes; *at is its offset. */
static tp_status find_end_in(int64_t *at, unsigned char end[END_BYTES],
                             const struct file_part *part, int64_t n, struct tp_err *err)
{
    unsigned char *tail = malloc((size_t)n + 1);
    tp_status st;

    if (!tail)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its directory", part->path);
    TP_TRY(file_part_read(part, part->size - n, tail, n, err));
    for (int64_t i = n - END_BYTES; i >= 0; i--)
        if (get32(tail + i) == ZIP_END && i + END_BYTES + (int64_t)get16(tail + i + 20) == n) {
            memcpy(end, tail + i, END_BYTES);
            *at = part->size - n + i;
            goto done;
        }
    st = damaged(part,
                 "it has no central directory; it may be cut off, or in a format older than torch "
                 "1.6",
                 err);
done:
    free(tail);
    return st;
}

/* Find the record that ends the archive; *at is its offset. torch.save writes no comment behind it.
 * A checkpoint of a thousand ranks has a million archives, so what is read of each counts. */
static tp_status find_end(int64_t *at, unsigned char end[END_BYTES], const struct file_part *part,
                          struct tp_err *err)
{
    const int64_t most = END_BYTES + COMMENT_MAX;
    tp_status st = TP_E_CORRUPT;

    if (part->size > TAIL_BYTES)
        st = find_end_in(at, end, part, TAIL_BYTES, err);
    return st == TP_E_CORRUPT
               ? find_end_in(at, end, part, part->size < most ? part->size : most, err)
               : st;
}

/* The ZIP64 record in front of the end at `at`, which has the numbers that do not fit. An archive
 * of exactly 65,535 members need not have one, and *d then stays. */
static tp_status read_end64(struct directory *d, int64_t at, const struct file_part *part,
                            struct tp_err *err)
{
    unsigned char locator[LOCATOR_BYTES] = { 0 }, end64[END64_BYTES] = { 0 };
    const bool may_miss = d->begin != UINT32_MAX && d->size != UINT32_MAX;
    int64_t begin;
    tp_status st;

    if (at < LOCATOR_BYTES)
        return damaged(part, "the ZIP64 locator is missing", err);
    TP_TRY(file_part_read(part, at - LOCATOR_BYTES, locator, sizeof locator, err));
    if (may_miss && get32(locator) != ZIP_LOCATOR)
        return TP_OK;
    begin = get64(locator + 8);
    if (get32(locator) != ZIP_LOCATOR || begin < 0 || begin > at - LOCATOR_BYTES - END64_BYTES)
        return damaged(part, "the ZIP64 locator is wrong", err);
    TP_TRY(file_part_read(part, begin, end64, sizeof end64, err));
    if (get32(end64) != ZIP_END64 || get32(end64 + 16) != 0 || get32(end64 + 20) != 0)
        return damaged(part, "the ZIP64 end of the central directory is wrong", err);
    d->entries = get64(end64 + 32);
    d->size = get64(end64 + 40);
    d->begin = get64(end64 + 48);
    if (d->begin < 0 || d->size < 0 || d->begin > begin || d->size > begin - d->begin)
        st = damaged(part, "the central directory lies outside the file", err);
done:
    return st;
}

static tp_status find_directory(struct directory *d, const struct file_part *part,
                                struct tp_err *err)
{
    unsigned char end[END_BYTES] = { 0 };
    int64_t at = 0;
    tp_status st = find_end(&at, end, part, err);

    if (st)
        return st;
    if (get16(end + 4) != 0 || get16(end + 6) != 0)
        return damaged(part, "it has several volumes", err);
    *d = (struct directory){ get32(end + 16), get32(end + 12), get16(end + 10) };
    if (d->begin == UINT32_MAX || d->size == UINT32_MAX || d->entries == 0xffff)
        TP_TRY(read_end64(d, at, part, err));
    if (d->begin > at || d->size > at - d->begin)
        return damaged(part, "the central directory lies outside the file", err);
    if (d->size > DIRECTORY_BYTES_MAX || d->entries < 0 || d->entries > d->size / ENTRY_BYTES)
        return damaged(part, "the central directory has a wrong number of members", err);
done:
    return st;
}

/* The ZIP64 numbers in the extra field of an entry replace those that do not fit. */
static bool read_extra(int64_t *size, int64_t *stored, int64_t *local, const unsigned char *extra,
                       int64_t n)
{
    int64_t *const numbers[] = { size, stored, local };

    while (n >= 4) {
        int64_t bytes = get16(extra + 2), used = 4;

        if (bytes > n - 4)
            return false;
        for (int i = 0; i < 3 && get16(extra) == 1; i++)
            if (*numbers[i] == UINT32_MAX) {
                if (used + 8 > bytes + 4)
                    return false;
                *numbers[i] = get64(extra + used);
                used += 8;
            }
        extra += 4 + bytes;
        n -= 4 + bytes;
    }
    return true;
}

/* Check the local header of a member at `local`, and find its bytes. */
static tp_status read_local(struct zip_member *m, int64_t local, int64_t directory,
                            const struct file_part *part, struct tp_err *err)
{
    unsigned char head[LOCAL_BYTES + NAME_MAX_BYTES];
    const size_t n = strlen(m->name);
    tp_status st;

    if (local < 0 || local > directory - LOCAL_BYTES - (int64_t)n)
        return damaged(part, "a member lies outside the file", err);
    TP_TRY(file_part_read(part, local, head, LOCAL_BYTES + (int64_t)n, err));
    if (get32(head) != ZIP_LOCAL || get16(head + 8) != 0 || get16(head + 26) != n ||
        memcmp(head + LOCAL_BYTES, m->name, n) != 0)
        return damaged(part, "a local header differs from the central directory", err);
    m->begin = local + LOCAL_BYTES + (int64_t)n + get16(head + 28);
    if (m->begin > directory || m->size > directory - m->begin)
        return damaged(part, "a member lies outside the file", err);
done:
    return st;
}

/* torch.save stores members as they are; other programs that pack an archive again compress them.
 */
static tp_status check_method(const struct zip_member *m, const unsigned char *entry,
                              const struct file_part *part, struct tp_err *err)
{
    if (get16(entry + 8) & 1)
        return tp_fail(err, TP_E_CORRUPT, "%s: member %.200s is encrypted; decrypt the archive",
                       part->path, m->name);
    if (get16(entry + 10) != 0)
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: member %.200s is compressed (method %d of zip), and only stored members "
            "are read; unpack the archive and pack it with 'zip -0 -r', or load it with "
            "torch and save it again",
            part->path, m->name, (int)get16(entry + 10));
    return TP_OK;
}

/* Read the next entry of the central directory; *used is its length. */
static tp_status read_entry(struct zip *z, int64_t *used, const unsigned char *p, int64_t n,
                            const struct directory *d, struct arena *arena, struct tp_err *err)
{
    const struct file_part *part = &z->part;
    struct zip_member *m = &z->members[z->n++];
    int64_t name_bytes, stored, local;

    if (n < ENTRY_BYTES || get32(p) != ZIP_ENTRY)
        return damaged(part, "an entry of the central directory is wrong", err);
    name_bytes = get16(p + 28);
    *used = ENTRY_BYTES + name_bytes + get16(p + 30) + get16(p + 32);
    if (*used > n || name_bytes == 0 || name_bytes > NAME_MAX_BYTES ||
        memchr(p + ENTRY_BYTES, 0, (size_t)name_bytes))
        return damaged(part, "an entry of the central directory is wrong", err);
    if (get16(p + 34) != 0)
        return damaged(part, "it has several volumes", err);
    m->name = arena_printf(arena, "%.*s", (int)name_bytes, (const char *)p + ENTRY_BYTES);
    if (!m->name)
        return no_memory(part, arena, err);
    if (check_method(m, p, part, err))
        return TP_E_CORRUPT;
    m->crc = get32(p + 16);
    stored = get32(p + 20);
    m->size = get32(p + 24);
    local = get32(p + 42);
    if (!read_extra(&m->size, &stored, &local, p + ENTRY_BYTES + name_bytes, get16(p + 30)))
        return damaged(part, "an extra field of the central directory is wrong", err);
    if (m->size < 0 || stored != m->size)
        return damaged(part, "the size of a member is wrong", err);
    return read_local(m, local, d->begin, part, err);
}

static int by_begin(const void *a, const void *b)
{
    const struct zip_member *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct zip_member *)a)->name, ((const struct zip_member *)b)->name);
}

/* No two members share a name or a byte; afterwards they are in the order of names. */
static tp_status check_members(struct zip *z, struct tp_err *err)
{
    if (z->n == 0)
        return damaged(&z->part, "it has no members", err);
    qsort(z->members, (size_t)z->n, sizeof *z->members, by_begin);
    for (int i = 1; i < z->n; i++)
        if (z->members[i - 1].begin + z->members[i - 1].size > z->members[i].begin)
            return damaged(&z->part, "two members overlap", err);
    qsort(z->members, (size_t)z->n, sizeof *z->members, by_name);
    for (int i = 1; i < z->n; i++)
        if (by_name(&z->members[i - 1], &z->members[i]) == 0)
            return damaged(&z->part, "two members have one name", err);
    return TP_OK;
}

tp_status zip_read(struct zip *out, const struct file_part *part, struct arena *arena,
                   struct tp_err *err)
{
    const size_t limit = arena->limit_bytes;
    struct zip z = { .part = *part };
    struct directory d = { 0, 0, 0 };
    unsigned char *bytes = NULL;
    int64_t at = 0, used = 0;
    size_t beside;
    tp_status st;

    TP_TRY(find_directory(&d, part, err));
    /* besides what stays: the bytes of the directory, and the copy of the members in qsort */
    beside = (size_t)d.size + (size_t)d.entries * sizeof *z.members;
    if (limit > 0 && beside + arena->used_bytes >= limit) {
        st = no_memory(part, arena, err);
        goto done;
    }
    arena->limit_bytes -= limit > 0 ? beside : 0;
    bytes = malloc((size_t)d.size + 1);
    z.members = arena_array(arena, (size_t)d.entries + 1, sizeof *z.members);
    if (!bytes || !z.members) {
        st = no_memory(part, arena, err);
        goto done;
    }
    TP_TRY(file_part_read(part, d.begin, bytes, d.size, err));
    for (; z.n < d.entries; at += used)
        TP_TRY(read_entry(&z, &used, bytes + at, d.size - at, &d, arena, err));
    if (at != d.size) {
        st = damaged(part, "the central directory has a wrong length", err);
        goto done;
    }
    TP_TRY(check_members(&z, err));
    *out = z;
done:
    arena->limit_bytes = limit;
    free(bytes);
    return st;
}

const struct zip_member *zip_find(const struct zip *z, const char *name)
{
    struct zip_member key = { .name = name };

    return z->n ? bsearch(&key, z->members, (size_t)z->n, sizeof key, by_name) : NULL;
}

tp_status zip_check_range(const struct file_part *part, int64_t begin, int64_t size, uint32_t crc,
                          const char *what, struct tp_err *err)
{
    unsigned char *buf = malloc(CHECK_BYTES);
    uint32_t found = 0;
    tp_status st = TP_OK;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to check it", part->path);
    for (int64_t at = 0; at < size; at += CHECK_BYTES) {
        int64_t n = size - at < CHECK_BYTES ? size - at : CHECK_BYTES;

        TP_TRY(file_part_read(part, begin + at, buf, n, err));
        found = crc32_gzip_refl(found, buf, (uint64_t)n);
    }
    if (found != crc)
        st = tp_fail(err, TP_E_CORRUPT, "%s: %s has CRC-32 %08x, but the archive says %08x",
                     part->path, what, found, crc);
done:
    free(buf);
    return st;
}

tp_status zip_check(const struct zip *z, const struct zip_member *m, struct tp_err *err)
{
    if (m->crc == 0)
        return TP_OK;
    return zip_check_range(&z->part, m->begin, m->size, m->crc, m->name, err);
}
