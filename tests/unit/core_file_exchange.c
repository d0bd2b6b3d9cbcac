/*
 * tests/unit/core_file_exchange.c - two folders change places, also where the file system cannot do
 * that in one go, and when a rename fails.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/file.h"
#include "core/file_exchange.h"
#include "tests/unit/temp_dir.h"

static char a[64], b[64];
static int exchange_error; /* of renameat2 with flags; 0: the kernel's answer */
static int renames, fail_at, fail_again_at;

/* The C library's calls, as the code under test sees them. */
int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (flags && exchange_error) {
        errno = exchange_error;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

int rename(const char *from, const char *to)
{
    renames++;
    if (renames == fail_at || renames == fail_again_at) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static void make_folders(void)
{
    struct tp_err err;
    char path[96];

    temp_dir_make();
    snprintf(a, sizeof a, "%s/a", temp_dir);
    snprintf(b, sizeof b, "%s/b", temp_dir);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(mkdir(i ? b : a, 0777), 0);
        snprintf(path, sizeof path, "%s/%s", i ? b : a, i ? "of_b" : "of_a");
        cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK);
    }
}

TestSuite(file_exchange, .init = make_folders, .fini = temp_dir_remove);

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return file_exists(path);
}

Test(file_exchange, two_folders_change_places)
{
    struct tp_err err;

    cr_assert_eq(file_exchange(a, b, &err), TP_OK, "%s", err.msg);
    cr_expect(has(a, "of_b") && has(b, "of_a"));
    cr_expect_eq(renames, 0, "it was not done in one go");
}

Test(file_exchange, also_where_the_file_system_cannot_do_it_in_one_go)
{
    static const int errors[] = { EINVAL, ENOSYS };
    struct tp_err err;

    for (int i = 0; i < 2; i++) {
        exchange_error = errors[i];
        cr_assert_eq(file_exchange(a, b, &err), TP_OK, "%s", err.msg);
        cr_expect(has(i ? b : a, "of_b") && has(i ? a : b, "of_a"));
    }
}

Test(file_exchange, after_a_failure_both_have_their_names)
{
    struct tp_err err;

    for (exchange_error = EIO, fail_at = 0; fail_at <= 3; fail_at++, exchange_error = EINVAL) {
        renames = 0;
        cr_assert_eq(file_exchange(a, b, &err), TP_E_IO);
        cr_expect(has(a, "of_a") && has(b, "of_b"), "rename %d: %s", fail_at, err.msg);
    }
}

Test(file_exchange, the_message_says_where_a_folder_is_that_does_not_get_its_name_again)
{
    struct tp_err err;
    char aside[96];

    exchange_error = EINVAL;
    fail_at = 2;
    fail_again_at = 3;
    cr_assert_eq(file_exchange(a, b, &err), TP_E_IO);
    snprintf(aside, sizeof aside, "%s.replaced-%ld", b, (long)getpid());
    cr_expect(has(aside, "of_b") && has(a, "of_a"));
    cr_expect(strstr(err.msg, aside), "%s", err.msg);
}
