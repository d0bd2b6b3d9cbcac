/*
 * trainer/data/token_file.h - a long row of tokens in files: a pair PREFIX.bin and PREFIX.idx as
 * Megatron-LM's preprocessing writes it, or raw bytes, each one a token.
 *
 * PREFIX.bin is the tokens of all documents, one after the other. PREFIX.idx, little-endian:
 *
 *     "MMIDIDX\0\0"          9 bytes
 *     version                u64: 1
 *     type                   u8: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floats)
 *     sequences, documents   u64, u64
 *     sizes                  i32[sequences] tokens of each
 *     pointers               i64[sequences] byte in PREFIX.bin where each begins
 *     document indices       i64[documents] first sequence of each, and the number of sequences
 *
 * Everything in them is checked before it is used: they come from elsewhere. They are read, not
 * mapped, so a file that is cut while a run reads it is an error and no signal. Sequences follow
 * each other without a gap, which is how that program writes them, so a run reads one long row and
 * documents do not matter to it.
 */
#ifndef TRAINER_DATA_TOKEN_FILE_H
#define TRAINER_DATA_TOKEN_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

enum token_file_type { TOKEN_U8, TOKEN_I8, TOKEN_I16, TOKEN_I32, TOKEN_I64, TOKEN_U16 };

struct token_file {
    enum token_file_type type;
    int64_t n;           /* tokens */
    int64_t documents;   /* of a pair */
    bool is_bytes;       /* raw bytes, not a pair */
    bool asked;          /* as `bytes:FILE`, so any file will do */
    char path[PATH_MAX]; /* of the .bin, or of the bytes; "": it is closed */
    int fd;
    int64_t size_bytes; /* n times a token's size */
};

/* "bytes:" before a path: its raw bytes, whatever the file is. */
#define TOKEN_FILE_BYTES "bytes:"

/* The path of the file that `path` names: without "bytes:". */
const char *token_file_path(const char *path);

/* Open `bytes:FILE`, the pair with the prefix `path` (its .bin or .idx is taken as the prefix too),
 * or the file `path` as bytes. TP_E_NOTFOUND: there is no such file, or only one of the pair.
 * TP_E_USAGE: not a regular file, empty, not such a pair, of floats; or, without "bytes:", a file
 * whose name says that it is not text (.jsonl, .parquet, .gz): the message says what to do.
 * TP_E_CORRUPT: an index that contradicts itself or its .bin. */
tp_status token_file_open(struct token_file *t, const char *path, struct tp_err *err);
void token_file_close(struct token_file *t);

/* Tokens first .. first + n - 1, whatever they are; the file had them when it was opened.
 * TP_E_CORRUPT: it is shorter now; the message has both sizes. TP_E_IO. */
tp_status token_file_read(const struct token_file *t, int64_t first, int64_t n, int64_t *out,
                          struct tp_err *err);

#endif
