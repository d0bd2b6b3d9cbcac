/*
 * tests/unit/temp_dir.h - a folder of its own for each test.
 *
 * TestSuite(NAME, .init = temp_dir_make, .fini = temp_dir_remove) gives every test of a suite an
 * empty folder. Criterion runs each test in a process of its own, so one variable is enough.
 */
#ifndef TESTS_UNIT_TEMP_DIR_H
#define TESTS_UNIT_TEMP_DIR_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/file.h"
#include "core/file_tree.h"

static char temp_dir[32];

/* It is in memory where that is possible, because tests wait for many syncs. */
static inline void temp_dir_make(void)
{
    snprintf(temp_dir, sizeof temp_dir, "%s/tp-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    cr_assert_not_null(mkdtemp(temp_dir));
}

static inline void temp_dir_remove(void)
{
    struct tp_err err;

    file_tree_remove(temp_dir, &err);
}

/* FOLDER/name. It stays valid for the next 63 calls. */
static inline const char *temp_path(const char *name)
{
    enum { PATHS = 64, PATH_BYTES = 256 };
    static char paths[PATHS][PATH_BYTES];
    static int next;
    int n;

    next = (next + 1) % PATHS;
    n = snprintf(paths[next], PATH_BYTES, "%s/%s", temp_dir, name);
    cr_assert_lt(n, PATH_BYTES);
    return paths[next];
}

/* Write FOLDER/name, which must not exist. */
static inline void temp_write(const char *name, const void *data, size_t size)
{
    struct tp_err err;

    cr_assert_eq(file_write_new(temp_path(name), data, size, &err), TP_OK, "%s", err.msg);
}

#endif
