/* trainer/data/token_file.c - see trainer/data/token_file.h. */
#include "trainer/data/token_file.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"

static const char magic[9] = "MMIDIDX\0"; /* and the string's own zero */

enum { HEADER_BYTES = sizeof magic + 8 + 1 + 8 + 8, VERSION = 1 };

static const struct {
    const char *name;
    int bytes;
} types[] = {
    [TOKEN_U8] = { "u8", 1 },   [TOKEN_I8] = { "i8", 1 },   [TOKEN_I16] = { "i16", 2 },
    [TOKEN_I32] = { "i32", 4 }, [TOKEN_I64] = { "i64", 8 }, [TOKEN_U16] = { "u16", 2 },
};

/* ---- files ---- */

struct open_file {
    const char *path;
    int fd;
    int64_t size;
};

static tp_status open_one(struct open_file *f, const char *path, struct tp_err *err)
{
    tp_status st = file_open_read(&f->fd, &f->size, path, err);

    f->path = path;
    if (st)
        f->fd = -1;
    if (st == TP_E_CORRUPT) /* not a regular file: the request is wrong, nothing is damaged */
        st = err->status = TP_E_USAGE;
    return st;
}

static void close_one(struct open_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

/* Read n bytes, which the file had when it was opened. A mapping of it would be faster by nothing
 * that counts, and end the process without a word when the file is cut meanwhile. */
static tp_status read_at(const struct open_file *f, int64_t at, void *out, size_t n,
                         struct tp_err *err)
{
    tp_status st = file_read_at(f->fd, f->path, at, out, n, err);
    struct stat now;

    if (st == TP_E_CORRUPT && fstat(f->fd, &now) == 0 && now.st_size < f->size)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has %lld bytes, but had %lld when this run began: it was cut while it "
                       "was read; restore it and run again",
                       f->path, (long long)now.st_size, (long long)f->size);
    return st;
}

/* ---- the index ---- */

struct index {
    enum token_file_type type;
    int64_t sequences, documents;
    int64_t sizes_at, pointers_at, documents_at; /* in the file */
};

/* An array of numbers of the index, of which a part is in memory. */
struct column {
    const struct open_file *file;
    int64_t from, to; /* the bytes of the file that are in memory */
    unsigned char bytes[32 << 10];
};

/* A little-endian number of `width` bytes; nothing in an index is aligned. */
static uint64_t number(const unsigned char *at, int width)
{
    uint64_t x = 0;

    memcpy(&x, at, (size_t)width);
    return x;
}

static tp_status number_at(uint64_t *out, struct column *c, int64_t at, int width,
                           struct tp_err *err)
{
    const int64_t left = c->file->size - at, room = (int64_t)sizeof c->bytes;
    tp_status st;

    if (at < c->from || at + width > c->to) {
        const int64_t n = left < room ? left : room;

        st = read_at(c->file, at, c->bytes, (size_t)n, err);
        if (st)
            return st;
        c->from = at;
        c->to = at + n;
    }
    *out = number(c->bytes + (at - c->from), width);
    return TP_OK;
}

static tp_status read_type(enum token_file_type *out, const struct open_file *m, int code,
                           struct tp_err *err)
{
    static const int types_by_code[] = { -1,        TOKEN_U8, TOKEN_I8, TOKEN_I16, TOKEN_I32,
                                         TOKEN_I64, -1,       -1,       TOKEN_U16 };
    int n_codes = sizeof types_by_code / sizeof types_by_code[0];

    if (code == 6 || code == 7)
        return tp_fail(err, TP_E_USAGE, "%s: its elements are %s, but tokens are integers", m->path,
                       code == 6 ? "f64" : "f32");
    if (code >= n_codes || types_by_code[code] < 0)
        return tp_fail(err, TP_E_CORRUPT, "%s: element type %d is not one of Megatron's (1 to 8)",
                       m->path, code);
    *out = (enum token_file_type)types_by_code[code];
    return TP_OK;
}

/* The header, and that the file is as long as it says. */
static tp_status read_header(struct index *x, const struct open_file *m, struct tp_err *err)
{
    unsigned char head[HEADER_BYTES];
    uint64_t version, sequences, documents;
    int64_t per_sequence = 4 + 8, rest;
    tp_status st = m->size < HEADER_BYTES ? TP_OK : read_at(m, 0, head, sizeof head, err);

    if (st)
        return st;
    if (m->size < HEADER_BYTES || memcmp(head, magic, sizeof magic) != 0)
        return tp_fail(
            err, TP_E_USAGE,
            "%s: is not an index of Megatron's token files: it does not begin with MMIDIDX",
            m->path);
    version = number(head + sizeof magic, 8);
    if (version != VERSION)
        return tp_fail(err, TP_E_USAGE, "%s: is of version %llu, expected %d", m->path,
                       (unsigned long long)version, VERSION);
    if ((st = read_type(&x->type, m, (int)number(head + sizeof magic + 8, 1), err)))
        return st;
    sequences = number(head + sizeof magic + 9, 8);
    documents = number(head + sizeof magic + 17, 8);
    rest = m->size - HEADER_BYTES;
    if (sequences > (uint64_t)(rest / per_sequence) ||
        documents > (uint64_t)((rest - (int64_t)sequences * per_sequence) / 8))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: says it has %llu sequences and %llu document indices, but its %lld "
                       "bytes have no room for them",
                       m->path, (unsigned long long)sequences, (unsigned long long)documents,
                       (long long)m->size);
    x->sequences = (int64_t)sequences;
    x->documents = (int64_t)documents;
    x->sizes_at = HEADER_BYTES;
    x->pointers_at = x->sizes_at + 4 * x->sequences;
    x->documents_at = x->pointers_at + 8 * x->sequences;
    return TP_OK;
}

/* That sequences follow each other from byte 0 to the end of the .bin; *n gets their tokens. */
static tp_status check_sequences(int64_t *n, const struct index *x, const struct open_file *idx,
                                 const struct open_file *bin, struct tp_err *err)
{
    struct column sizes = { .file = idx }, pointers = { .file = idx };
    const int width = types[x->type].bytes;
    int64_t room = bin->size / width, sum = 0;
    tp_status st = TP_OK;

    for (int64_t i = 0; i < x->sequences; i++) {
        uint64_t found[2] = { 0 };
        int64_t size, pointer;

        TP_TRY(number_at(&found[0], &sizes, x->sizes_at + 4 * i, 4, err));
        TP_TRY(number_at(&found[1], &pointers, x->pointers_at + 8 * i, 8, err));
        size = (int32_t)found[0];
        pointer = (int64_t)found[1];
        if (size < 0 || size > room - sum)
            return tp_fail(
                err, TP_E_CORRUPT,
                "%s: sequence %lld has %d tokens, but only %lld of the %lld in %s are left",
                idx->path, (long long)i, (int)size, (long long)(room - sum), (long long)room,
                bin->path);
        if (pointer != sum * width)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: sequence %lld begins at byte %lld, expected %lld, where the one "
                           "before it ends",
                           idx->path, (long long)i, (long long)pointer, (long long)(sum * width));
        sum += size;
    }
    if (sum * width != bin->size)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s has %lld bytes, but %s lists %lld tokens of type %s: %lld bytes",
                       bin->path, (long long)bin->size, idx->path, (long long)sum,
                       types[x->type].name, (long long)(sum * width));
    *n = sum;
done:
    return st;
}

static tp_status check_documents(const struct index *x, const struct open_file *idx,
                                 struct tp_err *err)
{
    struct column documents = { .file = idx };
    int64_t before = 0;
    tp_status st = TP_OK;

    for (int64_t i = 0; i < x->documents; i++) {
        uint64_t found = 0;
        int64_t first;

        TP_TRY(number_at(&found, &documents, x->documents_at + 8 * i, 8, err));
        first = (int64_t)found;
        if (first < before || first > x->sequences)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: document %lld begins at sequence %lld, expected %lld to %lld",
                           idx->path, (long long)i, (long long)first, (long long)before,
                           (long long)x->sequences);
        before = first;
    }
done:
    return st;
}

/* ---- opening ---- */

static tp_status open_pair(struct token_file *t, const char *bin_path, const char *idx_path,
                           struct tp_err *err)
{
    struct open_file idx = { .fd = -1 }, bin = { .fd = -1 };
    struct index x = { 0 };
    int64_t n = 0;
    tp_status st;

    TP_TRY(open_one(&idx, idx_path, err));
    TP_TRY(read_header(&x, &idx, err));
    TP_TRY(open_one(&bin, bin_path, err));
    TP_TRY(check_sequences(&n, &x, &idx, &bin, err));
    TP_TRY(check_documents(&x, &idx, err));
    if (n == 0) {
        st = tp_fail(err, TP_E_USAGE, "%s: holds no tokens", bin_path);
        goto done;
    }
    /* the last of the indices is where the documents end */
    *t = (struct token_file){ .type = x.type,
                              .n = n,
                              .documents = x.documents > 0 ? x.documents - 1 : 0,
                              .fd = bin.fd,
                              .size_bytes = bin.size };
    snprintf(t->path, sizeof t->path, "%s", bin_path);
    bin.fd = -1; /* t has it now */
done:
    close_one(&idx);
    close_one(&bin);
    return st;
}

static bool path_join(char *out, const char *path, size_t n, const char *end)
{
    return snprintf(out, PATH_MAX, "%.*s%s", (int)n, path, end) < PATH_MAX;
}

/* Endings of names that say that the bytes are not text to train on, and what to do. */
static tp_status check_ending(const char *path, struct tp_err *err)
{
    static const char tokenize[] = "tokenize it with Megatron-LM's tools/preprocess_data.py, which "
                                   "writes a .bin and an .idx file, and give their prefix";
    static const char convert[] = "convert it to JSON lines, tokenize these with Megatron-LM's "
                                  "tools/preprocess_data.py, and give the prefix of the .bin and "
                                  ".idx files";
    static const char decompress[] = "decompress it first";
    static const char array[] = "write its tokens as a pair of .bin and .idx files, and give their "
                                "prefix";
    static const struct {
        const char *end, *what, *advice;
    } kinds[] = {
        { ".jsonl", "JSON lines", tokenize },
        { ".json", "JSON", tokenize },
        { ".csv", "a table", convert },
        { ".tsv", "a table", convert },
        { ".parquet", "a table", convert },
        { ".arrow", "a table", convert },
        { ".feather", "a table", convert },
        { ".tfrecord", "TensorFlow records", convert },
        { ".npy", "a NumPy array", array },
        { ".npz", "NumPy arrays", array },
        { ".pt", "PyTorch tensors", array },
        { ".pth", "PyTorch tensors", array },
        { ".pkl", "Python objects", array },
        { ".h5", "HDF5 arrays", array },
        { ".hdf5", "HDF5 arrays", array },
        { ".gz", "compressed", decompress },
        { ".zst", "compressed", decompress },
        { ".xz", "compressed", decompress },
        { ".bz2", "compressed", decompress },
        { ".zip", "an archive", decompress },
        { ".tar", "an archive", decompress },
        { ".tgz", "an archive", decompress },
        { ".safetensors", "weights", "give them as --model" },
    };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (text_ends_with(path, kinds[i].end))
            return tp_fail(err, TP_E_USAGE,
                           "%s: is %s, not text; %s (bytes:%s trains on its raw bytes)", path,
                           kinds[i].what, kinds[i].advice, path);
    return TP_OK;
}

static tp_status open_bytes(struct token_file *t, const char *path, bool asked, struct tp_err *err)
{
    struct open_file f;
    tp_status st = asked || !file_exists(path) ? TP_OK : check_ending(path, err);

    if (st || (st = open_one(&f, path, err)))
        return st;
    *t = (struct token_file){ .type = TOKEN_U8,
                              .n = f.size,
                              .is_bytes = true,
                              .asked = asked,
                              .fd = f.fd,
                              .size_bytes = f.size };
    snprintf(t->path, sizeof t->path, "%s", path);
    return TP_OK;
}

/* One file of a pair without the other. */
static tp_status fail_alone(const char *there, const char *missing, struct tp_err *err)
{
    return tp_fail(
        err, TP_E_NOTFOUND,
        "%s exists, but its pair %s does not; Megatron-LM's tools/preprocess_data.py writes "
        "both (bytes:%s trains on its raw bytes)",
        there, missing, there);
}

const char *token_file_path(const char *path)
{
    size_t n = strlen(TOKEN_FILE_BYTES);

    return strncmp(path, TOKEN_FILE_BYTES, n) == 0 ? path + n : path;
}

tp_status token_file_open(struct token_file *t, const char *path, struct tp_err *err)
{
    char bin[PATH_MAX], idx[PATH_MAX];
    bool named = text_ends_with(path, ".bin") || text_ends_with(path, ".idx");
    size_t n = strlen(path) - (named ? 4 : 0);

    if (strlen(path) + 8 > PATH_MAX || !path_join(bin, path, n, ".bin") ||
        !path_join(idx, path, n, ".idx"))
        return tp_fail(err, TP_E_USAGE, "%.60s...: a path of more than %d characters", path,
                       PATH_MAX - 8);
    if (token_file_path(path) != path)
        return open_bytes(t, token_file_path(path), true, err);
    if (file_exists(idx) && file_exists(bin) && (named || !file_exists(path)))
        return open_pair(t, bin, idx, err);
    if (file_exists(idx) != file_exists(bin) && (named || !file_exists(path)))
        return fail_alone(file_exists(idx) ? idx : bin, file_exists(idx) ? bin : idx, err);
    return open_bytes(t, path, false, err);
}

void token_file_close(struct token_file *t)
{
    if (t->path[0])
        close(t->fd);
    *t = (struct token_file){ 0 };
}

/* ---- reading ---- */

static int64_t token_at(const void *bytes, enum token_file_type type, int64_t i)
{
    switch (type) {
    case TOKEN_U8:
        return ((const uint8_t *)bytes)[i];
    case TOKEN_I8:
        return ((const int8_t *)bytes)[i];
    case TOKEN_I16:
        return ((const int16_t *)bytes)[i];
    case TOKEN_I32:
        return ((const int32_t *)bytes)[i];
    case TOKEN_I64:
        return ((const int64_t *)bytes)[i];
    case TOKEN_U16:
        return ((const uint16_t *)bytes)[i];
    }
    return -1;
}

tp_status token_file_read(const struct token_file *t, int64_t first, int64_t n, int64_t *out,
                          struct tp_err *err)
{
    const struct open_file f = { t->path, t->fd, t->size_bytes };
    const int width = types[t->type].bytes;
    int64_t bytes[4096]; /* aligned for every type */
    int64_t run;

    for (int64_t i = 0; i < n; i += run) {
        tp_status st;

        run = (int64_t)sizeof bytes / width;
        if (run > n - i)
            run = n - i;
        st = read_at(&f, (first + i) * width, bytes, (size_t)(run * width), err);
        if (st)
            return st;
        for (int64_t k = 0; k < run; k++)
            out[i + k] = token_at(bytes, t->type, k);
    }
    return TP_OK;
}
