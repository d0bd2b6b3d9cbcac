/* tests/unit/ckpt_access.c - who can lock a root is who can write to it. */
#include "ckpt/access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/root_lock.h"
#include "ckpt/transaction.h"
#include "tests/unit/temp_dir.h"

static void begin(void)
{
    temp_dir_make();
    umask(022);
}

TestSuite(access, .init = begin, .fini = temp_dir_remove);

static mode_t mode_of(const char *path)
{
    struct stat sb;

    cr_assert_eq(stat(path, &sb), 0, "%s", path);
    return sb.st_mode & 0777;
}

static void take_lock(void)
{
    struct tp_err err = { 0 };
    int fd = -1;

    cr_assert_eq(root_lock(&fd, temp_dir, &(struct root_lock_wait){ 0 }, &err), TP_OK, "%s",
                 err.msg);
    close(fd);
}

Test(access, the_lock_has_the_write_bits_of_the_root)
{
    static const mode_t modes[][2] = { { 0755, 0600 }, { 0700, 0600 }, { 0775, 0660 },
                                       { 0777, 0666 }, { 0757, 0606 }, { 0755, 0600 } };

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        cr_assert_eq(chmod(temp_dir, modes[i][0]), 0);
        take_lock();
        cr_expect_eq(mode_of(temp_path("lock")), modes[i][1], "root %o: lock %o, expected %o",
                     modes[i][0], mode_of(temp_path("lock")), modes[i][1]);
    }
}

Test(access, a_lock_that_everyone_can_read_is_tightened)
{
    cr_assert_eq(chmod(temp_dir, 0755), 0);
    temp_write("lock", "", 0);
    cr_assert_eq(chmod(temp_path("lock"), 0644), 0);
    take_lock();
    cr_expect_eq(mode_of(temp_path("lock")), 0600);
}

Test(access, a_step_is_private_until_its_commit)
{
    const struct ckpt_begin_request request = { .root = temp_dir, .step = 1, .exclusive = true };
    struct ckpt_begin_request again = request;
    struct ckpt_transaction t;
    struct tp_err err = { 0 };
    char tmp[PATH_MAX];
    int fd;

    cr_assert_eq(chmod(temp_dir, 0755), 0);
    cr_assert_eq(ckpt_begin(&t, &request, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(mode_of(t.tmp.path), 0700);
    snprintf(tmp, sizeof tmp, "%s", t.tmp.path);
    ckpt_suspend(&t);

    cr_assert_eq(chmod(tmp, 0755), 0); /* as an earlier version left it */
    again.resume = tmp;
    cr_assert_eq(ckpt_begin(&t, &again, &err), TP_OK, "%s", err.msg);
    cr_assert(t.resumed);
    cr_expect_eq(mode_of(tmp), 0700);

    fd = openat(t.tmp.lock_fd, MANIFEST_FILE, O_WRONLY | O_CREAT, 0666);
    cr_assert_geq(fd, 0);
    close(fd);
    access_publish(t.tmp.lock_fd, MANIFEST_FILE);
    cr_expect_eq(mode_of(tmp), 0755);
    ckpt_abort(&t);
}
