/*
 * tests/fuzz/fuzz.h - what the fuzz harnesses share.
 *
 * A harness defines LLVMFuzzerTestOneInput, which libFuzzer calls with one input after the other:
 * it gives the input to a parser of bytes from outside, and uses what the parser accepts. A
 * sanitizer ends the program when the parser does something wrong. Where a checksum protects the
 * bytes, the harness computes it, so that the parser behind it is reached.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* End with a report: the harness found something wrong. */
static inline void fuzz_must(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

/* A failure must have a sentence. */
static inline void fuzz_check_error(tp_status st, const struct tp_err *err)
{
    fuzz_must(st == TP_OK || (st == err->status && err->msg[0] && strlen(err->msg) < TP_ERR_MAX),
              "a failure without a sentence");
}

/* A folder for this process, which may be made by an earlier run of the same harness: run.py says
 * where in the environment; else one in /tmp. */
static inline const char *fuzz_dir(void)
{
    static char made[] = "/tmp/tp-fuzz-XXXXXX";
    static const char *dir;

    if (!dir)
        dir = getenv("FUZZ_DIR");
    if (!dir)
        dir = mkdtemp(made);
    fuzz_must(dir != NULL, "no folder in /tmp");
    return dir;
}

static inline const char *fuzz_path(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    return path;
}

/* Write a file of the folder. */
static inline void fuzz_write(const char *name, const void *data, size_t size)
{
    int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    fuzz_must(fd >= 0 && write(fd, data, size) == (ssize_t)size, "the folder is full");
    close(fd);
}

/* The first byte of an input, and the rest of it; 0 for an empty one. */
static inline uint8_t fuzz_take(const uint8_t **data, size_t *size)
{
    uint8_t byte = *size ? **data : 0;

    *data += *size > 0;
    *size -= *size > 0;
    return byte;
}

#endif
