/* torch/zip_plan.c - see torch/zip_plan.h. The format: PKWARE's APPNOTE.TXT, sections 4.3, 4.4. */
#include "torch/zip_plan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "torch/crc32.h"

enum {
    LOCAL_BYTES = 30,
    ENTRY_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    EXTRA_BYTES = 4,        /* head of an extra field */
    ZIP64_LOCAL_BYTES = 20, /* extra field with both sizes */
    ZIP64_ENTRY_BYTES = 28, /* the same with the place of the header */
    NAME_MAX_BYTES = 1024,
    VERSION = 20, /* needed to read stored members; with ZIP64 45 */
    VERSION_ZIP64 = 45,
    DATE = 0x21,      /* the first that there is, 1980-01-01 */
    PADDING = 0x4246, /* extra field "FB", by which torch.save aligns */
    HEADER_ROOM =
        LOCAL_BYTES + NAME_MAX_BYTES + ZIP64_ENTRY_BYTES + EXTRA_BYTES + 2 * ZIP_PLAN_ALIGN,
};

void zip_plan_free(struct zip_plan *p)
{
    free(p->members);
    *p = (struct zip_plan){ 0 };
}

tp_status zip_plan_add(struct zip_plan *p, const char *name, const void *data, int64_t size,
                       struct tp_err *err)
{
    if (strlen(name) > NAME_MAX_BYTES)
        return tp_fail(err, TP_E_INTERNAL, "%s: is too long for a member of an archive", name);
    if (p->n == p->room) {
        const int room = p->room ? 2 * p->room : 16;
        struct zip_plan_member *grown = realloc(p->members, (size_t)room * sizeof *grown);

        if (!grown)
            return tp_fail(err, TP_E_NOMEM, "no memory for an archive of %d members", room);
        p->members = grown;
        p->room = room;
    }
    p->members[p->n++] = (struct zip_plan_member){ .name = name, .data = data, .size = size };
    return TP_OK;
}

/* ---- places ---- */

static bool is_large(int64_t n)
{
    return n >= UINT32_MAX;
}

static int64_t entry_extra(const struct zip_plan_member *m)
{
    return is_large(m->size) || is_large(m->local) ? ZIP64_ENTRY_BYTES : 0;
}

static bool needs_end64(const struct zip_plan *p)
{
    return p->n >= UINT16_MAX || is_large(p->directory);
}

/* The extra field of a local header that fills it up so that the member's bytes are aligned. */
static int64_t padding_of(const struct zip_plan_member *m, int64_t *zip64)
{
    int64_t end = m->local + LOCAL_BYTES + (int64_t)strlen(m->name), padding;

    *zip64 = is_large(m->size) ? ZIP64_LOCAL_BYTES : 0;
    end += *zip64;
    padding = (ZIP_PLAN_ALIGN - end % ZIP_PLAN_ALIGN) % ZIP_PLAN_ALIGN;
    return padding > 0 && padding < EXTRA_BYTES ? padding + ZIP_PLAN_ALIGN : padding;
}

void zip_plan_place(struct zip_plan *p)
{
    int64_t at = 0, zip64;

    for (int i = 0; i < p->n; i++) {
        struct zip_plan_member *m = &p->members[i];
        int64_t padding;

        m->local = at;
        padding = padding_of(m, &zip64);
        m->begin = at + LOCAL_BYTES + (int64_t)strlen(m->name) + zip64 + padding;
        m->crc_at[0] = at + 14;
        at = m->begin + m->size;
    }
    p->directory = at;
    for (int i = 0; i < p->n; i++) {
        struct zip_plan_member *m = &p->members[i];

        m->crc_at[1] = at + 16;
        at += ENTRY_BYTES + (int64_t)strlen(m->name) + entry_extra(m);
    }
    p->size = at + END_BYTES + (needs_end64(p) ? END64_BYTES + LOCATOR_BYTES : 0);
}

/* ---- bytes ---- */

/* Append the n low bytes of v to what *to points to. */
static void put(unsigned char **to, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        *(*to)++ = (unsigned char)(v >> (8 * i));
}

static void put_text(unsigned char **to, const char *text)
{
    const size_t n = strlen(text);

    memcpy(*to, text, n);
    *to += n;
}

static uint64_t fit32(int64_t n)
{
    return is_large(n) ? UINT32_MAX : (uint64_t)n;
}

/* What local header and entry have in common, from the version that is needed on. */
static void put_common(unsigned char **to, const struct zip_plan_member *m, bool zip64,
                       int64_t extra)
{
    put(to, zip64 ? VERSION_ZIP64 : VERSION, 2);
    put(to, 0, 2); /* flags */
    put(to, 0, 2); /* stored */
    put(to, 0, 2); /* time */
    put(to, DATE, 2);
    put(to, m->data ? crc32_of(m->data, (size_t)m->size) : 0, 4);
    put(to, zip64 ? UINT32_MAX : fit32(m->size), 4);
    put(to, zip64 ? UINT32_MAX : fit32(m->size), 4);
    put(to, strlen(m->name), 2);
    put(to, (uint64_t)extra, 2);
}

static tp_status write_local(const struct zip_plan_member *m, int fd, const char *path,
                             int64_t base, struct tp_err *err)
{
    unsigned char bytes[HEADER_ROOM] = { 0 }, *to = bytes;
    int64_t zip64, padding = padding_of(m, &zip64);
    tp_status st;

    put(&to, 0x04034b50, 4);
    put_common(&to, m, zip64 > 0, zip64 + padding);
    put_text(&to, m->name);
    if (zip64) {
        put(&to, 1, 2);
        put(&to, ZIP64_LOCAL_BYTES - EXTRA_BYTES, 2);
        put(&to, (uint64_t)m->size, 8);
        put(&to, (uint64_t)m->size, 8);
    }
    if (padding) {
        put(&to, PADDING, 2);
        put(&to, (uint64_t)padding - EXTRA_BYTES, 2);
    }
    st = file_write_at(fd, path, base + m->local, bytes, (size_t)(m->begin - m->local), err);
    if (!st && m->data)
        st = file_write_at(fd, path, base + m->begin, m->data, (size_t)m->size, err);
    return st;
}

static void put_entry(unsigned char **to, const struct zip_plan_member *m)
{
    const bool zip64 = entry_extra(m) > 0;

    put(to, 0x02014b50, 4);
    put(to, zip64 ? VERSION_ZIP64 : VERSION, 2);
    put_common(to, m, zip64, entry_extra(m));
    put(to, 0, 2); /* comment */
    put(to, 0, 2); /* volume */
    put(to, 0, 2); /* internal attributes */
    put(to, 0, 4); /* external attributes */
    put(to, zip64 ? UINT32_MAX : (uint64_t)m->local, 4);
    put_text(to, m->name);
    if (zip64) {
        put(to, 1, 2);
        put(to, ZIP64_ENTRY_BYTES - EXTRA_BYTES, 2);
        put(to, (uint64_t)m->size, 8);
        put(to, (uint64_t)m->size, 8);
        put(to, (uint64_t)m->local, 8);
    }
}

/* The records after the entries, which end at `end`. */
static void put_end(unsigned char **to, const struct zip_plan *p, int64_t end)
{
    const bool end64 = needs_end64(p);
    const uint64_t n = (uint64_t)p->n, bytes = (uint64_t)(end - p->directory);

    if (end64) {
        put(to, 0x06064b50, 4);
        put(to, END64_BYTES - 12, 8);
        put(to, VERSION_ZIP64, 2);
        put(to, VERSION_ZIP64, 2);
        put(to, 0, 8); /* volumes */
        put(to, n, 8);
        put(to, n, 8);
        put(to, bytes, 8);
        put(to, (uint64_t)p->directory, 8);
        put(to, 0x07064b50, 4);
        put(to, 0, 4);
        put(to, (uint64_t)end, 8);
        put(to, 1, 4);
    }
    put(to, 0x06054b50, 4);
    put(to, 0, 4); /* volumes */
    put(to, end64 ? UINT16_MAX : n, 2);
    put(to, end64 ? UINT16_MAX : n, 2);
    put(to, end64 ? UINT32_MAX : bytes, 4);
    put(to, end64 ? UINT32_MAX : (uint64_t)p->directory, 4);
    put(to, 0, 2); /* comment */
}

static tp_status write_directory(const struct zip_plan *p, int fd, const char *path, int64_t base,
                                 struct tp_err *err)
{
    unsigned char *bytes = malloc((size_t)(p->size - p->directory)), *to = bytes;
    tp_status st;

    if (!bytes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its directory", path);
    for (int i = 0; i < p->n; i++)
        put_entry(&to, &p->members[i]);
    put_end(&to, p, p->directory + (to - bytes));
    st = file_write_at(fd, path, base + p->directory, bytes, (size_t)(to - bytes), err);
    free(bytes);
    return st;
}

tp_status zip_plan_write(const struct zip_plan *p, int fd, const char *path, int64_t base,
                         struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < p->n && !st; i++)
        st = write_local(&p->members[i], fd, path, base, err);
    return st ? st : write_directory(p, fd, path, base, err);
}
