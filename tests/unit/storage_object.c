/* tests/unit/storage_object.c - objects: exact reads by ranges, and what is refused. */
#include "storage/object.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"

static struct tp_err err;

TestSuite(object, .init = temp_dir_make, .fini = temp_dir_remove);

Test(object, a_local_file_is_read_by_ranges)
{
    const char *path = temp_path("a");
    char buf[4] = "";
    struct object o = OBJECT_NONE;
    int64_t size = 0;

    temp_write("a", "0123456789", 10);
    cr_assert_eq(object_open(&o, &size, path, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(size, 10);
    cr_expect_eq(object_read_at(&o, path, 6, buf, 4, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(memcmp(buf, "6789", 4), 0);
    cr_expect_eq(object_read_at(&o, path, 7, buf, 4, &err), TP_E_CORRUPT);
    cr_expect_not_null(strstr(err.msg, path));
    object_close(&o);
    cr_expect_eq(o.fd, -1);
}

Test(object, links_and_folders_are_not_objects)
{
    const char *path = temp_path("a"), *link = temp_path("b");
    struct object o = OBJECT_NONE;
    int64_t size = 0;

    cr_expect_eq(object_open(&o, &size, path, &err), TP_E_NOTFOUND);
    temp_write("a", "x", 1);
    cr_assert_eq(symlink(path, link), 0);
    cr_expect_eq(object_open(&o, &size, link, &err), TP_E_CORRUPT);
    cr_expect_eq(object_open(&o, &size, temp_dir, &err), TP_E_CORRUPT);
    cr_expect_eq(o.fd, -1);
}
