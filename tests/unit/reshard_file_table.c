/* tests/unit/reshard_file_table.c - more files than may be open: each that was written is synced
 * before it is closed, many at once; few that are read are opened again. */
#include "reshard/formats/pieces/file_table.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/unit/temp_dir.h"

TestSuite(file_table, .init = temp_dir_make, .fini = temp_dir_remove);

enum { OPEN = 128, FILES = 200, FDS = 256, OPEN_TO_READ = 42 };

static bool unsynced[FDS]; /* descriptors that were written to */
static atomic_int n_syncs;
static ino_t fails_on; /* the file whose sync fails; 0: none */
static int n_lost, n_closed;

/* In the place of the C library's. A descriptor that is closed before a sync has lost the error of
 * its bytes. */
int fsync(int fd)
{
    struct stat sb;

    n_syncs++;
    if (fails_on && fstat(fd, &sb) == 0 && sb.st_ino == fails_on) {
        errno = EIO;
        return -1;
    }
    if (fd < FDS)
        unsynced[fd] = false;
    return (int)syscall(SYS_fsync, fd);
}

int close(int fd)
{
    n_closed++;
    if (fd >= 0 && fd < FDS && unsynced[fd]) {
        n_lost++;
        unsynced[fd] = false;
    }
    return (int)syscall(SYS_close, fd);
}

static const char *name_of(int file)
{
    static char name[16];

    snprintf(name, sizeof name, "%03d", file);
    return name;
}

/* A process that may open 256 files, so that a table has 128 of them open. */
static struct file_table *table(void)
{
    const struct rlimit limit = { FDS, FDS };
    struct file_table *t;

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    t = file_table_new_writable();
    cr_assert_not_null(t);
    for (int i = 0; i < FILES; i++) {
        struct tp_err err;
        int number;

        cr_assert_eq(file_table_add(t, &number, temp_path(name_of(i)), &err), TP_OK);
    }
    return t;
}

static tp_status write_to(struct file_table *t, int file, struct tp_err *err)
{
    struct file_part part;
    tp_status st = file_table_use(t, file, &part, err);

    if (st)
        return st;
    cr_assert_lt(part.object.fd, FDS);
    cr_assert_eq(pwrite(part.object.fd, "x", 1, 0), 1);
    unsynced[part.object.fd] = true;
    file_table_release(t, file);
    return TP_OK;
}

Test(file_table, no_file_is_closed_between_its_last_write_and_a_sync)
{
    struct file_table *t = table();
    struct tp_err err = { 0 };

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < FILES; i++)
            cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(file_table_sync(t, &err), TP_OK, "%s", err.msg);
    }
    file_table_free(t);
    cr_expect_eq(n_lost, 0, "%d files were closed before they were synced", n_lost);
}

Test(file_table, files_are_synced_together_before_one_is_opened_beyond_the_limit)
{
    struct file_table *t = table();
    struct tp_err err = { 0 };

    for (int i = 0; i < OPEN; i++)
        cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(n_syncs, 0, "few files stay open");
    for (int i = OPEN; i < FILES; i++) {
        cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(n_syncs, OPEN, "%d syncs when file %d is opened", n_syncs, i);
    }
    cr_assert_eq(file_table_sync(t, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(n_syncs, FILES, "each file is synced once");
    file_table_free(t);
}

Test(file_table, a_file_in_use_is_neither_synced_nor_closed)
{
    struct file_table *t = table();
    struct tp_err err = { 0 };
    struct file_part part;

    cr_assert_eq(file_table_use(t, 5, &part, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < FILES; i++)
        if (i != 5)
            cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(n_syncs, OPEN - 1);
    cr_assert_eq(pwrite(part.object.fd, "x", 1, 0), 1, "it is open");
    unsynced[part.object.fd] = true;
    file_table_release(t, 5);
    cr_assert_eq(file_table_sync(t, &err), TP_OK, "%s", err.msg);
    file_table_free(t);
    cr_expect_eq(n_lost, 0);
}

/* Each of them, wherever it is among those that are synced together. */
Test(file_table, a_sync_that_fails_before_files_are_closed_is_reported_with_the_name)
{
    static const int bad[] = { 0, 1, 77, OPEN - 1 };

    for (int k = 0; k < 4; k++) {
        struct file_table *t = table();
        struct tp_err err = { 0 };
        struct stat sb;

        fails_on = 0;
        n_syncs = 0;
        for (int i = 0; i < OPEN; i++)
            cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(n_syncs, 0, "few files stay open");
        cr_assert_eq(stat(temp_path(name_of(bad[k])), &sb), 0);
        fails_on = sb.st_ino;
        cr_expect_eq(write_to(t, OPEN, &err), TP_E_IO);
        cr_expect_not_null(strstr(err.msg, temp_path(name_of(bad[k]))), "%s", err.msg);
        memset(unsynced, 0, sizeof unsynced);
        file_table_free(t);
    }
}

/* Make the first n files. */
static void write_files(int n)
{
    struct file_table *t = table();
    struct tp_err err = { 0 };

    for (int i = 0; i < n; i++)
        cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_table_sync(t, &err), TP_OK, "%s", err.msg);
    file_table_free(t);
}

/* A table of n files to read, of a process that may open 256 files. */
static struct file_table *table_to_read(int n)
{
    struct file_table *t;
    struct tp_err err = { 0 };

    write_files(n);
    t = file_table_new();
    cr_assert_not_null(t);
    for (int i = 0, number; i < n; i++)
        cr_assert_eq(file_table_add(t, &number, temp_path(name_of(i)), &err), TP_OK);
    n_closed = 0;
    return t;
}

/* Read a byte of each file in turn, `passes` times, as of tensors that are cut among ranks. */
static void read_in_turn(struct file_table *t, int n, int passes)
{
    for (int i = 0; i < n * passes; i++) {
        const struct file_table_range byte = { t, i % n, 0, 1 };
        struct tp_err err = { 0 };
        char x = 0;

        cr_assert_eq(file_table_range_read(&byte, 0, &x, 1, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(x, 'x');
    }
}

Test(file_table, files_that_may_be_open_together_are_opened_once)
{
    struct file_table *t = table_to_read(OPEN_TO_READ);

    read_in_turn(t, OPEN_TO_READ, 10);
    cr_expect_eq(n_closed, 0);
    file_table_free(t);
}

Test(file_table, of_more_files_that_are_read_in_turn_most_stay_open)
{
    enum { N = OPEN_TO_READ + 8, PASSES = 50 };
    struct file_table *t = table_to_read(N);

    read_in_turn(t, N, PASSES);
    cr_expect_geq(n_closed, N - OPEN_TO_READ);
    cr_expect_lt(n_closed, N * PASSES / 2, "%d of %d reads opened a file", n_closed, N * PASSES);
    file_table_free(t);
}

Test(file_table, a_range_that_reaches_beyond_its_end_is_refused)
{
    struct file_table *t = table_to_read(1);
    const struct file_table_range byte = { t, 0, 0, 1 };
    struct tp_err err = { 0 };
    char two[2];

    cr_expect_eq(file_table_range_read(&byte, 0, two, 2, &err), TP_E_CORRUPT);
    file_table_free(t);
}
