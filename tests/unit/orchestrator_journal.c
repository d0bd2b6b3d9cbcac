/* tests/unit/orchestrator_journal.c - the newest good record is found, wherever the file is
 * cut off or damaged. */
#include "orchestrator/state/journal.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"

static char path[64];
static struct tp_err err;

static void setup(void)
{
    temp_dir_make();
    snprintf(path, sizeof path, "%s/journal", temp_dir);
}

TestSuite(journal, .init = setup, .fini = temp_dir_remove);

static void write_records(int n)
{
    struct journal *j = NULL;
    json_t *last;

    cr_assert_eq(journal_open(&j, &last, temp_dir, &err), TP_OK, "%s", err.msg);
    json_decref(last);
    for (int i = 1; i <= n; i++)
        cr_assert_eq(journal_append(j, json_pack("{s:i}", "value", i), &err), TP_OK);
    journal_close(j);
}

static json_int_t last_value(void)
{
    json_t *last = NULL;
    json_int_t v = 0;

    if (journal_peek(&last, temp_dir, &err) == TP_OK)
        v = json_integer_value(json_object_get(last, "value"));
    json_decref(last);
    return v;
}

Test(journal, cut_at_every_byte_it_has_the_records_before)
{
    struct stat sb;
    off_t line;

    write_records(5);
    cr_assert_eq(stat(path, &sb), 0);
    line = sb.st_size / 5;
    cr_assert_eq(last_value(), 5);
    for (off_t size = sb.st_size - 1; size >= 0; size--) {
        cr_assert_eq(truncate(path, size), 0);
        cr_assert_eq(last_value(), size / line, "cut at %ld", (long)size);
    }
}

/* The newest good record counts, because only it knows the newest launch. */
Test(journal, a_flipped_bit_does_not_hide_later_records)
{
    struct stat sb;
    off_t line;
    int fd;

    write_records(4);
    cr_assert_eq(stat(path, &sb), 0);
    line = sb.st_size / 4;
    fd = open(path, O_RDWR);
    for (off_t at = 0; at < sb.st_size; at++) {
        unsigned char byte, bad;

        cr_assert_eq(pread(fd, &byte, 1, at), 1);
        bad = byte ^ 4;
        cr_assert_eq(pwrite(fd, &bad, 1, at), 1);
        /* one kind of blank instead of another changes nothing; other flips are found */
        cr_assert_leq(last_value(), 4);
        if (at % line >= 20 && at < 2 * line)
            cr_assert_eq(last_value(), 4, "byte %ld", (long)at);
        else if (at % line >= 20 && at >= 3 * line)
            cr_assert_eq(last_value(), 3, "byte %ld", (long)at);
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

Test(journal, it_appends_after_a_torn_record)
{
    struct stat sb;

    write_records(3);
    cr_assert_eq(stat(path, &sb), 0);
    cr_assert_eq(truncate(path, sb.st_size - 7), 0);
    write_records(1);
    cr_expect_eq(last_value(), 1);
    cr_assert_eq(stat(path, &sb), 0);
}

Test(journal, it_appends_after_damage_in_the_middle)
{
    struct stat before, after;
    int fd;

    write_records(4);
    cr_assert_eq(stat(path, &before), 0);
    fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, "#", 1, before.st_size / 4 + 30), 1);
    close(fd);
    write_records(1);
    cr_assert_eq(stat(path, &after), 0);
    cr_expect_gt(after.st_size, before.st_size, "good records were removed");
    cr_expect_eq(last_value(), 1);
}

Test(journal, a_long_one_is_replaced_by_its_last_record)
{
    enum { RECORD = 100000, RECORDS = 120 };
    struct journal *j = NULL;
    char *filler = calloc(1, RECORD + 1), old[80];
    json_t *last;
    struct stat sb;

    for (int i = 0; i < RECORD; i++)
        filler[i] = 'x';
    cr_assert_eq(journal_open(&j, &last, temp_dir, &err), TP_OK, "%s", err.msg);
    for (int i = 1; i <= RECORDS; i++) {
        json_t *record = json_pack("{s:i,s:s}", "value", i, "filler", filler);

        cr_assert_eq(journal_append(j, record, &err), TP_OK);
        cr_assert_eq(stat(path, &sb), 0);
        cr_assert_leq(sb.st_size, 5 << 20);
        cr_assert_eq(last_value(), i);
    }
    journal_close(j);
    snprintf(old, sizeof old, "%s.old", path);
    cr_expect_eq(stat(old, &sb), 0);
    cr_assert_eq(journal_open(&j, &last, temp_dir, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(json_integer_value(json_object_get(last, "n")), RECORDS);
    json_decref(last);
    cr_assert_eq(journal_append(j, json_pack("{s:i}", "value", 7), &err), TP_OK);
    journal_close(j);
    cr_assert_eq(journal_peek(&last, temp_dir, &err), TP_OK);
    cr_expect_eq(json_integer_value(json_object_get(last, "n")), RECORDS + 1, "numbers continue");
    json_decref(last);
    free(filler);
}

Test(journal, only_one_process_can_open_it)
{
    struct journal *j = NULL, *second = NULL;
    json_t *last;

    cr_assert_eq(journal_open(&j, &last, temp_dir, &err), TP_OK);
    json_decref(last);
    cr_expect_eq(journal_open(&second, &last, temp_dir, &err), TP_E_EXISTS);
    cr_expect_null(second);
    journal_close(j);
    cr_assert_eq(journal_open(&j, &last, temp_dir, &err), TP_OK);
    json_decref(last);
    journal_close(j);
}

/* A tp-run that was killed between fork and exec leaves a process that has its lock for a moment.
 */
Test(journal, it_waits_for_what_a_process_that_was_killed_has_left)
{
    struct journal *j = NULL;
    json_t *last;
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        if (journal_open(&j, &last, temp_dir, &err) != TP_OK)
            _exit(1);
        if (fork() == 0)
            usleep(500 * 1000);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(journal_open(&j, &last, temp_dir, &err), TP_OK, "%s", err.msg);
    json_decref(last);
    journal_close(j);
}

Test(journal, the_run_record_of_an_earlier_version_is_found)
{
    json_t *now = json_pack("{s:{s:i}}", "record", "a", 1);
    json_t *before = json_pack("{s:{s:i}}", "book", "a", 2);

    cr_expect_eq(json_integer_value(json_object_get(journal_run_record(now), "a")), 1);
    cr_expect_eq(json_integer_value(json_object_get(journal_run_record(before), "a")), 2);
    json_decref(now);
    json_decref(before);
}
