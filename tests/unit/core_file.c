/*
 * tests/unit/core_file.c - files are read and written whole, and replaced at once or not at all;
 * directories are removed.
 * covers: core/file_tree
 */
#include "core/file.h"
#include "core/file_tree.h"
#include "tests/unit/temp_dir.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[PATH_MAX];
static struct tp_err err;
static struct arena arena;

static void make_dir(void)
{
    temp_dir_make();
    snprintf(path, sizeof path, "%s/file", temp_dir);
}

static void drop_dir(void)
{
    arena_free(&arena);
    temp_dir_remove();
}

TestSuite(file, .init = make_dir, .fini = drop_dir);

static const char *in_dir(const char *name)
{
    return arena_printf(&arena, "%s/%s", temp_dir, name);
}

/* Number of names in the folder. */
static int count_names(void)
{
    DIR *d = opendir(temp_dir);
    int n = 0;

    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

Test(file, what_was_written_is_read)
{
    char *data;
    size_t size;
    char part[4] = "";
    int64_t length;
    int fd;

    cr_assert_eq(file_write_new(path, "0123456789", 10, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_read_all(&data, &size, path, 10, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert(size == 10 && strcmp(data, "0123456789") == 0);
    cr_assert_eq(file_open_read(&fd, &length, path, &err), TP_OK);
    cr_assert_eq(length, 10);
    cr_assert_eq(file_read_at(fd, path, 6, part, 3, &err), TP_OK);
    cr_assert_str_eq(part, "678");
    cr_assert_eq(file_read_at(fd, path, 8, part, 3, &err), TP_E_CORRUPT, "past the end");
    close(fd);
}

Test(file, a_new_file_does_not_overwrite_an_existing_one)
{
    char *data;
    size_t size;

    cr_assert_eq(file_write_new(path, "old", 3, &err), TP_OK);
    cr_assert_eq(file_write_new(path, "new", 3, &err), TP_E_IO);
    cr_assert_eq(file_read_all(&data, &size, path, 10, &arena, &err), TP_OK);
    cr_assert_str_eq(data, "old");
}

Test(file, replace_leaves_the_new_content_and_no_temporary_file)
{
    char *data;
    size_t size;

    cr_assert_eq(file_replace(path, "old", 3, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_replace(path, "newer", 5, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_read_all(&data, &size, path, 10, &arena, &err), TP_OK);
    cr_assert_str_eq(data, "newer");
    cr_assert_eq(count_names(), 1);
}

Test(file, replace_refuses_a_directory_and_a_fifo)
{
    cr_assert_eq(file_make_dirs(in_dir("d"), &err), TP_OK);
    cr_assert_eq(file_replace(in_dir("d"), "x", 1, &err), TP_E_EXISTS);
    cr_assert_eq(mkfifo(in_dir("fifo"), 0600), 0);
    cr_assert_eq(file_replace(in_dir("fifo"), "x", 1, &err), TP_E_EXISTS);
    cr_assert_eq(count_names(), 2);
}

Test(file, only_regular_files_of_a_bounded_size_are_read)
{
    char *data;
    size_t size;

    cr_assert_eq(file_write_new(path, "0123456789", 10, &err), TP_OK);
    cr_expect_eq(file_read_all(&data, &size, path, 9, &arena, &err), TP_E_CORRUPT, "too long");
    cr_expect_eq(file_read_all(&data, &size, temp_dir, 9, &arena, &err), TP_E_CORRUPT,
                 "a directory");
    cr_expect_eq(file_read_all(&data, &size, in_dir("none"), 9, &arena, &err), TP_E_NOTFOUND);
    cr_expect_eq(file_read_all(&data, &size, in_dir("file/x"), 9, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(mkfifo(in_dir("fifo"), 0600), 0);
    cr_expect_eq(file_read_all(&data, &size, in_dir("fifo"), 9, &arena, &err), TP_E_CORRUPT,
                 "a FIFO, without waiting for a writer");
}

Test(file, links_are_followed_except_in_our_own_folders)
{
    char *data;
    size_t size;
    int64_t length;
    int fd;

    cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK);
    cr_assert_eq(symlink(path, in_dir("link")), 0);
    cr_expect_eq(file_read_all(&data, &size, in_dir("link"), 9, &arena, &err), TP_OK);
    cr_expect_eq(file_read_own(&data, &size, in_dir("link"), 9, &arena, &err), TP_E_CORRUPT);
    cr_expect_eq(file_open_own(&fd, &length, in_dir("link"), &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "symbolic link"), "%s", err.msg);
    cr_expect_eq(file_read_own(&data, &size, path, 9, &arena, &err), TP_OK);
}

Test(file, trees_are_made_and_removed_without_following_links)
{
    const char *deep = in_dir("a/b/c");

    cr_assert_eq(file_make_dirs(deep, &err), TP_OK, "%s", err.msg);
    cr_assert(file_is_dir(deep));
    cr_assert_eq(file_make_dirs(deep, &err), TP_OK, "they may exist");
    cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK);
    cr_assert_eq(file_make_dirs(path, &err), TP_E_EXISTS);
    cr_assert_eq(symlink(temp_dir, in_dir("a/b/up")), 0);
    cr_assert_eq(file_tree_remove(in_dir("a"), &err), TP_OK, "%s", err.msg);
    cr_assert(!file_exists(in_dir("a")) && file_exists(path));
    cr_assert_eq(file_tree_remove(in_dir("a"), &err), TP_OK, "it may be gone already");
}

Test(file, a_full_disk_is_an_error)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    cr_assert_geq(fd, 0);
    cr_expect_eq(file_write_at(fd, "/dev/full", 0, "x", 1, &err), TP_E_IO);
    cr_expect(strstr(err.msg, "No space left"), "%s", err.msg);
    close(fd);
}

Test(file, a_working_folder_that_may_not_be_entered_is_on_no_known_file_system, .timeout = 60)
{
    int status = -1;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        alarm(20); /* a relative path has no folder above it that can be looked at */
        if (chdir(temp_dir) != 0 || chmod(temp_dir, 0) != 0 || (geteuid() == 0 && setuid(65534)))
            _exit(2);
        _exit(file_same_system("/", "a/b"));
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    chmod(temp_dir, 0700);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
}

Test(file, plain_names_have_no_path_and_no_control_characters)
{
    char text[NAME_MAX + 2];

    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    cr_expect(file_name_is_plain("rank-00000.h5") && file_name_is_plain("...") &&
              file_name_is_plain(text + 1));
    cr_expect(!file_name_is_plain("") && !file_name_is_plain(".") && !file_name_is_plain("..") &&
              !file_name_is_plain("a/b") && !file_name_is_plain("a\nb") &&
              !file_name_is_plain("\x7f") && !file_name_is_plain(text));
}

Test(file, the_folder_of_a_path)
{
    static const char *const cases[][2] = { { "a/b.pt", "a" },    { "/b.pt", "/" },
                                            { "b.pt", "." },      { "a/b//", "a" },
                                            { "./b", "." },       { "/", "/" },
                                            { "/a/b/c", "/a/b" }, { "s3://b/k/x.pt", "s3://b/k" } };
    char dir[PATH_MAX];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file_parent(dir, cases[i][0]);
        cr_expect_str_eq(dir, cases[i][1], "%s", cases[i][0]);
    }
}
