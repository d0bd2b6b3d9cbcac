/* tests/unit/core_private_dir.c - directories that only their user can change. */
#include "core/private_dir.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"

static struct tp_err err;

TestSuite(private_dir, .init = temp_dir_make, .fini = temp_dir_remove);

Test(private_dir, names_are_random_and_the_directory_has_mode_0700)
{
    char a[PATH_MAX], b[PATH_MAX];
    struct stat sb;
    int fd;

    cr_assert_eq(private_dir_name(a, temp_dir, "x-", &err), TP_OK, "%s", err.msg);
    cr_assert_eq(private_dir_name(b, temp_dir, "x-", &err), TP_OK, "%s", err.msg);
    cr_expect_str_neq(a, b);
    cr_expect_eq(strlen(a), strlen(temp_dir) + 3 + 16);
    umask(0);
    cr_assert_eq(private_dir_make(&fd, a, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(stat(a, &sb), 0);
    cr_expect_eq(sb.st_mode & 07777, 0700);
    cr_expect_eq(private_dir_make(&fd, a, &err), TP_E_EXISTS);
    close(fd);
}

Test(private_dir, links_files_and_open_directories_are_refused)
{
    int fd = -1;

    cr_expect_eq(private_dir_open(&fd, temp_path("none"), &err), TP_E_NOTFOUND);
    cr_assert_eq(symlink(temp_dir, temp_path("link")), 0);
    cr_expect_eq(private_dir_open(&fd, temp_path("link"), &err), TP_E_USAGE);
    cr_expect_eq(private_dir_ensure(&fd, temp_path("link"), &err), TP_E_USAGE);
    temp_write("file", "x", 1);
    cr_expect_eq(private_dir_open(&fd, temp_path("file"), &err), TP_E_USAGE);
    cr_assert_eq(mkdir(temp_path("open"), 0700), 0);
    for (unsigned mode = 0; mode < 0777; mode++) {
        tp_status st;

        cr_assert_eq(chmod(temp_path("open"), mode | 0700), 0);
        st = private_dir_open(&fd, temp_path("open"), &err);
        cr_expect_eq(st, mode & 022 ? TP_E_USAGE : TP_OK, "mode %o", mode);
        if (st == TP_OK)
            close(fd);
    }
}

Test(private_dir, a_missing_directory_is_made_with_its_parents)
{
    int fd;

    cr_assert_eq(private_dir_ensure(&fd, temp_path("a/b/c"), &err), TP_OK, "%s", err.msg);
    close(fd);
    cr_assert_eq(private_dir_ensure(&fd, temp_path("a/b/c"), &err), TP_OK, "%s", err.msg);
    close(fd);
}

/* A folder that may be written to but not opened cannot be synced. */
Test(private_dir, a_failure_to_make_a_directory_leaves_no_closed_descriptor)
{
    int status = -1;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        int fd = -1;

        if (chmod(temp_dir, 0300) != 0 ||
            (geteuid() == 0 && (chown(temp_dir, 65534, 65534) != 0 || setuid(65534) != 0)))
            _exit(2);
        if (private_dir_ensure(&fd, temp_path("a"), &err) != TP_E_IO)
            _exit(3);
        _exit(fd != -1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    chmod(temp_dir, 0700);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
}

Test(private_dir, files_are_read_and_replaced_and_links_are_not_followed)
{
    struct arena arena = { 0 };
    char *text;
    size_t n;
    int dir, fd;

    cr_assert_eq(private_dir_make(&dir, temp_path("d"), &err), TP_OK);
    cr_expect_eq(private_dir_read(&text, &n, dir, "d", "f", 99, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(private_dir_replace(dir, "d", "f", "one", 3, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(private_dir_replace(dir, "d", "f", "three", 5, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(private_dir_read(&text, &n, dir, "d", "f", 99, &arena, &err), TP_OK);
    cr_expect(n == 5 && strcmp(text, "three") == 0);
    cr_expect_eq(private_dir_read(&text, &n, dir, "d", "f", 4, &arena, &err), TP_E_CORRUPT);
    cr_assert_eq(symlinkat("f", dir, "link"), 0);
    cr_expect_eq(private_dir_file(&fd, dir, "d", "link", O_RDONLY, &err), TP_E_USAGE);
    cr_assert_eq(mkfifo(temp_path("d/pipe"), 0600), 0);
    cr_expect_eq(private_dir_file(&fd, dir, "d", "pipe", O_RDONLY, &err), TP_E_USAGE);
    arena_free(&arena);
    close(dir);
}

/* The directory was taken away, and another one has its name. */
Test(private_dir, only_the_directory_that_was_opened_is_removed)
{
    int dir, other;
    struct private_dir_id id;

    cr_assert_eq(private_dir_make(&dir, temp_path("d"), &err), TP_OK);
    id = private_dir_id(dir);
    cr_expect(private_dir_is(dir, &id));
    cr_expect(!private_dir_is(dir, &(struct private_dir_id){ 0 }));
    cr_assert_eq(rename(temp_path("d"), temp_path("away")), 0);
    cr_assert_eq(private_dir_make(&other, temp_path("d"), &err), TP_OK);
    cr_expect(!private_dir_is(other, &id));
    temp_write("d/keep", "x", 1);
    cr_expect_eq(private_dir_remove(dir, temp_path("d"), &err), TP_E_IO);
    cr_expect(strstr(err.msg, "was replaced"), "%s", err.msg);
    cr_expect(file_exists(temp_path("d/keep")));
    cr_assert_eq(symlink(temp_dir, temp_path("d/up")), 0);
    cr_expect_eq(private_dir_remove(other, temp_path("d"), &err), TP_OK, "%s", err.msg);
    cr_expect(!file_exists(temp_path("d")) && file_exists(temp_path("away")));
}

Test(private_dir, directories_of_other_users_are_neither_entered_nor_removed)
{
    int dir;

    if (geteuid() != 0)
        cr_skip("only root can make a directory of another user");
    cr_assert_eq(private_dir_make(&dir, temp_path("d"), &err), TP_OK);
    cr_assert_eq(mkdir(temp_path("d/theirs"), 0777), 0);
    temp_write("d/theirs/file", "x", 1);
    cr_assert_eq(chown(temp_path("d/theirs"), 65534, 65534), 0);
    cr_expect_eq(private_dir_remove(dir, temp_path("d"), &err), TP_E_IO);
    cr_expect(strstr(err.msg, "belongs to another user"), "%s", err.msg);
    cr_expect(file_exists(temp_path("d/theirs/file")));
    cr_assert_eq(chown(temp_path("d"), 65534, 65534), 0);
    cr_expect_eq(private_dir_open(&dir, temp_path("d"), &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "belongs to user 65534"), "%s", err.msg);
}
