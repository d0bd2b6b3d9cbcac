/* tests/unit/reshard_file_table.c - more files than may be open: each is synced before it is
 * closed. */
#include "reshard/formats/pieces/file_table.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/unit/temp_dir.h"

TestSuite(file_table, .init = temp_dir_make, .fini = temp_dir_remove);

enum { OPEN = 128, FILES = 200, FDS = 256 };

static bool unsynced[FDS]; /* descriptors that were written to */
static int n_syncs, fails_at = -1, n_lost;

/* In the place of the C library's. A descriptor that is closed before a sync has lost the error of
 * its bytes. */
int fsync(int fd)
{
    if (n_syncs++ == fails_at) {
        errno = EIO;
        return -1;
    }
    if (fd < FDS)
        unsynced[fd] = false;
    return (int)syscall(SYS_fsync, fd);
}

int close(int fd)
{
    if (fd >= 0 && fd < FDS && unsynced[fd]) {
        n_lost++;
        unsynced[fd] = false;
    }
    return (int)syscall(SYS_close, fd);
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
        char name[16];
        struct tp_err err;
        int number;

        snprintf(name, sizeof name, "%03d", i);
        cr_assert_eq(file_table_add(t, &number, temp_path(name), &err), TP_OK);
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

Test(file_table, a_sync_that_fails_before_a_file_is_closed_is_reported_with_its_name)
{
    struct file_table *t = table();
    struct tp_err err = { 0 };

    fails_at = 0;
    for (int i = 0; i < OPEN; i++)
        cr_assert_eq(write_to(t, i, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(n_syncs, 0, "few files stay open");
    cr_expect_eq(write_to(t, OPEN, &err), TP_E_IO);
    cr_expect_not_null(strstr(err.msg, temp_path("000")), "%s", err.msg);
    file_table_free(t);
}
