/* torch/torch_file.c - see torch/torch_file.h. */
#include "torch/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { MEMBER_NAME_MAX = 4200, BYTE_ORDER_MAX = 16 };

static tp_status read_pickle(const struct pickle_value **out, const struct file_part *part,
                             int64_t begin, int64_t size, struct arena *arena, struct tp_err *err)
{
    const size_t limit = arena->limit_bytes;
    char has[SIZE_TEXT_MAX], left[SIZE_TEXT_MAX];
    char *bytes;
    tp_status st;

    if (size > PICKLE_BYTES_MAX)
        return tp_fail(err, TP_E_CORRUPT, "%s: its pickle has %lld bytes; the limit is %d",
                       part->path, (long long)size, PICKLE_BYTES_MAX);
    if (limit > 0 && (size_t)size + arena->used_bytes >= limit)
        return tp_fail(err, TP_E_BUDGET,
                       "%s: its pickle has %s, more than the %s that are left of --mem; "
                       "give more, unless the file is hostile",
                       part->path, size_format(has, size), size_format(left, (int64_t)limit));
    bytes = malloc((size_t)size + 1);
    if (!bytes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its pickle", part->path);
    st = file_part_read(part, begin, bytes, size, err);
    if (limit > 0)
        arena->limit_bytes -= (size_t)size;
    if (!st)
        st = pickle_read(out, bytes, (size_t)size, part->path, arena, err);
    arena->limit_bytes = limit;
    free(bytes);
    return st;
}

/* The member PREFIX/data.pkl, of which there is one; sets the prefix. */
static tp_status find_pickle(const struct zip_member **out, struct torch_file *f,
                             struct arena *arena, struct tp_err *err)
{
    *out = NULL;
    for (int i = 0; i < f->zip.n; i++) {
        const char *name = f->zip.members[i].name, *slash = strchr(name, '/');

        if (!slash || strcmp(slash, "/data.pkl") != 0)
            continue;
        if (*out)
            return tp_fail(err, TP_E_CORRUPT, "%s: has two pickles, %s and %s", f->zip.part.path,
                           (*out)->name, name);
        *out = &f->zip.members[i];
        f->prefix = arena_printf(arena, "%.*s", (int)(slash - name + 1), name);
    }
    if (!*out)
        return tp_fail(err, TP_E_CORRUPT, "%s: is not a file of torch.save: it has no data.pkl",
                       f->zip.part.path);
    return f->prefix ? TP_OK
                     : tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", f->zip.part.path);
}

static const struct zip_member *find_member(const struct torch_file *f, const char *folder,
                                            const char *name)
{
    char path[MEMBER_NAME_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s", f->prefix, folder, name);

    return n < 0 || n >= (int)sizeof path ? NULL : zip_find(&f->zip, path);
}

static tp_status check_byte_order(const struct torch_file *f, struct tp_err *err)
{
    const struct zip_member *m = find_member(f, "", "byteorder");
    char order[BYTE_ORDER_MAX] = "";
    tp_status st;

    if (!m)
        return TP_OK; /* torch before 2.0, which wrote little-endian files only */
    if (m->size >= BYTE_ORDER_MAX)
        return tp_fail(err, TP_E_CORRUPT, "%s: its byte order is unknown", f->zip.part.path);
    st = file_part_read(&f->zip.part, m->begin, order, m->size, err);
    if (!st && strcmp(order, "little") != 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: was written on a big-endian machine, which is not supported",
                     f->zip.part.path);
    return st;
}

/* The archive was not read: whether because torch before 1.6 wrote the file, or a newer one when it
 * was asked to, which begins with a number in a pickle. */
static tp_status explain_old(tp_status st, const struct file_part *part, struct tp_err *err)
{
    static const char old[] = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";
    char head[sizeof old - 1];
    struct tp_err ignored;

    if (st != TP_E_CORRUPT || part->size < (int64_t)sizeof head ||
        file_part_read(part, 0, head, sizeof head, &ignored) || memcmp(head, old, sizeof head) != 0)
        return st;
    return tp_fail(
        err, TP_E_CORRUPT,
        "%s: is in the format of torch.save of before torch 1.6, which is not read; load "
        "it with torch and save it again",
        part->path);
}

tp_status torch_file_read(struct torch_file *out, const struct file_part *part, struct arena *arena,
                          struct tp_err *err)
{
    struct torch_file f = { .prefix = NULL };
    const struct zip_member *pickle = NULL;
    tp_status st;

    st = zip_read(&f.zip, part, arena, err);
    TP_TRY(explain_old(st, part, err));
    TP_TRY(find_pickle(&pickle, &f, arena, err));
    TP_TRY(check_byte_order(&f, err));
    TP_TRY(zip_check(&f.zip, pickle, err));
    TP_TRY(read_pickle(&f.root, part, pickle->begin, pickle->size, arena, err));
    *out = f;
done:
    return st;
}

const struct zip_member *torch_file_storage(const struct torch_file *f, const char *key)
{
    return strchr(key, '/') ? NULL : find_member(f, "data/", key);
}

tp_status torch_file_read_pickle(const struct pickle_value **out, const struct file_part *part,
                                 struct arena *arena, struct tp_err *err)
{
    return read_pickle(out, part, 0, part->size, arena, err);
}
