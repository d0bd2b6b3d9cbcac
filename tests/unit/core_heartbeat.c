/* tests/unit/core_heartbeat.c - the watcher reads what the rank reported. */
#include "core/heartbeat.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "tests/unit/temp_dir.h"

static struct tp_err err;

/* The open file of a rank; -1: there is none. The test's process closes it. */
static int file_of(int rank)
{
    int folder = open(temp_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
    tp_status st = heartbeat_find(&fd, folder, rank, &err);

    close(folder);
    cr_assert(st == TP_OK || st == TP_E_NOTFOUND, "%s", err.msg);
    return fd;
}

TestSuite(heartbeat, .init = temp_dir_make, .fini = temp_dir_remove);

Test(heartbeat, reader_sees_what_the_writer_reported)
{
    struct heartbeat *s = NULL;
    struct heartbeat_status m;
    int file;

    cr_assert_eq(heartbeat_open(&s, temp_dir, 3, 8, &err), TP_OK, "%s", err.msg);
    file = file_of(3);
    cr_assert_eq(heartbeat_read(&m, file, 3, &err), TP_OK, "%s", err.msg);
    cr_expect(m.step == -1 && isnan(m.loss) && m.phase == HEARTBEAT_INIT && m.world == 8);
    cr_expect_eq(m.pid, getpid());
    cr_expect_gt(m.pid_start, 0);
    heartbeat_phase(s, HEARTBEAT_TRAIN);
    heartbeat_collective(s, true);
    heartbeat_collective(s, false);
    heartbeat_collective(s, true);
    heartbeat_step(s, 41, 2.5);
    heartbeat_step(s, 42, 2.25);
    heartbeat_saved(s, 40);
    heartbeat_gpus_missing(s, 2);
    cr_assert_eq(heartbeat_read(&m, file, 3, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(m.gpu_failed, 0);
    heartbeat_gpu_failed(s);
    cr_expect(m.gpu_bytes == 0 && m.gpu_full == 0);
    heartbeat_gpu_memory(s, INT64_C(80) << 30);
    heartbeat_gpu_full(s);
    cr_assert_eq(heartbeat_read(&m, file, 3, &err), TP_OK, "%s", err.msg);
    cr_expect(m.step == 42 && m.loss == 2.25 && m.phase == HEARTBEAT_TRAIN && m.saved == 40);
    cr_expect(m.gpus_missing == 2 && m.gpu_failed == 1);
    cr_expect(m.gpu_bytes == INT64_C(80) << 30 && m.gpu_full == 1);
    cr_expect(m.entered == 2 && m.left == 1 && m.step_len_ns > 0);
    heartbeat_close(s, true);
    cr_assert_eq(heartbeat_read(&m, file, 3, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(m.phase, HEARTBEAT_DONE);
}

/* Each look finds all losses since the previous look that the history still holds. */
Test(heartbeat, no_loss_is_missed_between_two_looks)
{
    struct heartbeat *s = NULL;
    struct heartbeat_status m;
    struct heartbeat_loss e[HEARTBEAT_HISTORY];
    int file;
    unsigned seed = (unsigned)getpid();
    int64_t written = 0, known = 0;

    fprintf(stderr, "seed %u\n", seed);
    cr_assert_eq(heartbeat_open(&s, temp_dir, 0, 1, &err), TP_OK, "%s", err.msg);
    file = file_of(0);
    for (int look = 0; look < 200; look++) {
        int steps = rand_r(&seed) % (look % 10 == 9 ? 2 * HEARTBEAT_HISTORY : 40), n;

        for (int i = 0; i < steps; i++) {
            written++;
            heartbeat_step(s, written, 0.5 * (double)written);
        }
        cr_assert_eq(heartbeat_read(&m, file, 0, &err), TP_OK, "%s", err.msg);
        n = heartbeat_losses(e, HEARTBEAT_HISTORY, file, &m, known);
        cr_assert_eq(n, steps < HEARTBEAT_HISTORY ? steps : HEARTBEAT_HISTORY);
        for (int i = 0; i < n; i++) {
            cr_assert_eq(e[i].step, written - n + 1 + i);
            cr_assert_eq(e[i].loss, 0.5 * (double)e[i].step);
        }
        known = written;
    }
    m.history = INT64_MAX; /* a damaged file */
    cr_expect_eq(heartbeat_losses(e, HEARTBEAT_HISTORY, file, &m, 0), 0);
    m.history = 0;
    cr_expect_eq(heartbeat_losses(e, HEARTBEAT_HISTORY, file, &m, 0), 0);
    heartbeat_close(s, true);
}

Test(heartbeat, another_ranks_file_garbage_and_short_files_are_refused)
{
    struct heartbeat *s = NULL;
    struct heartbeat_status m;
    char path[PATH_MAX], junk[HEARTBEAT_BYTES];
    int file;

    cr_assert_eq(heartbeat_open(&s, temp_dir, 1, 4, &err), TP_OK, "%s", err.msg);
    file = file_of(1);
    cr_expect_eq(heartbeat_read(&m, file, 2, &err), TP_E_CORRUPT);
    cr_expect_eq(file_of(9), -1);
    snprintf(path, sizeof path, "%s/rank-00009", temp_dir);
    memset(junk, 0x5a, sizeof junk);
    cr_assert_eq(file_write_new(path, junk, sizeof junk, &err), TP_OK);
    file = file_of(9);
    cr_expect_eq(heartbeat_read(&m, file, 9, &err), TP_E_CORRUPT);
    cr_assert_eq(truncate(path, 100), 0);
    cr_expect_eq(heartbeat_read(&m, file, 9, &err), TP_E_CORRUPT);
    heartbeat_close(s, true);
}

/* Programs of others write these files too. */
Test(heartbeat, a_number_that_no_rank_reports_is_refused)
{
    static const size_t words[] = {
        offsetof(struct heartbeat_status, pid),      offsetof(struct heartbeat_status, step),
        offsetof(struct heartbeat_status, step_ns),  offsetof(struct heartbeat_status, entered),
        offsetof(struct heartbeat_status, wait_ns),  offsetof(struct heartbeat_status, saved),
        offsetof(struct heartbeat_status, bad_step), offsetof(struct heartbeat_status, history),
    };
    static const int64_t wrong[] = { INT64_MIN, -2, INT64_MAX, HEARTBEAT_NUMBER_MAX + 1 };
    struct heartbeat *s = NULL;
    struct heartbeat_loss losses[4];
    struct heartbeat_status good, m;
    char path[PATH_MAX];
    int fd;

    cr_assert_eq(heartbeat_open(&s, temp_dir, 0, 1, &err), TP_OK, "%s", err.msg);
    heartbeat_close(s, true);
    snprintf(path, sizeof path, "%s/rank-00000", temp_dir);
    fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_eq(heartbeat_read(&good, fd, 0, &err), TP_OK, "%s", err.msg);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            m = good;
            memcpy((char *)&m + words[i], &wrong[k], sizeof wrong[k]);
            cr_assert_eq(pwrite(fd, &m, sizeof m, 0), sizeof m);
            cr_expect_eq(heartbeat_read(&m, fd, 0, &err), TP_E_CORRUPT, "%zu, %zu", i, k);
        }
    good.step = HEARTBEAT_NUMBER_MAX;
    good.history = HEARTBEAT_HISTORY + 1;
    cr_expect_eq(heartbeat_losses(losses, 4, fd, &good, -1), 0, "the file is shorter");
    close(fd);
}

Test(heartbeat, without_a_directory_every_call_does_nothing)
{
    struct heartbeat *s = (struct heartbeat *)1;

    cr_assert_eq(heartbeat_open(&s, NULL, 0, 1, &err), TP_OK);
    cr_assert_null(s);
    heartbeat_phase(s, HEARTBEAT_TRAIN);
    heartbeat_collective(s, true);
    heartbeat_step(s, 1, 1.0);
    heartbeat_saved(s, 1);
    heartbeat_close(s, true);
    cr_expect_eq(heartbeat_open(&s, "/nonexistent/dir", 0, 1, &err), TP_E_NOTFOUND);
}

Test(heartbeat, a_folder_that_others_can_write_to_is_refused)
{
    struct heartbeat *s = NULL;

    cr_assert_eq(chmod(temp_dir, 0777), 0);
    cr_expect_eq(heartbeat_open(&s, temp_dir, 0, 1, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "other users can write"), "%s", err.msg);
    cr_assert_eq(chmod(temp_dir, 0700), 0);
    cr_expect_eq(heartbeat_open(&s, temp_dir, 0, 1, &err), TP_OK);
    heartbeat_close(s, true);
}

/* A cleaner removes the file, or the rank is started again: the watcher notices. */
Test(heartbeat, a_file_that_was_removed_can_still_be_read)
{
    struct heartbeat *s = NULL, *again = NULL;
    struct heartbeat_status m;
    char path[PATH_MAX];
    int file;

    cr_assert_eq(heartbeat_open(&s, temp_dir, 0, 1, &err), TP_OK);
    file = file_of(0);
    cr_expect(!heartbeat_is_replaced(file));
    snprintf(path, sizeof path, "%s/rank-00000", temp_dir);
    cr_assert_eq(unlink(path), 0);
    cr_expect(heartbeat_is_replaced(file));
    heartbeat_step(s, 5, 1.0);
    cr_assert_eq(heartbeat_read(&m, file, 0, &err), TP_OK);
    cr_expect_eq(m.step, 5);
    cr_assert_eq(heartbeat_open(&again, temp_dir, 0, 1, &err), TP_OK);
    cr_expect(!heartbeat_is_replaced(file_of(0)));
    heartbeat_close(s, true);
    heartbeat_close(again, true);
}

enum { STEPS = 20000, STEP_NS = 20000 };

static atomic_bool has_looked;

/* Each step is short, but takes longer than a watcher needs to read it. */
static void *write_steps(void *arg)
{
    while (!atomic_load(&has_looked)) /* a busy machine may run the watcher after the last step */
        sched_yield();
    for (int64_t i = 0; i < STEPS; i++) {
        int64_t end = clock_ns() + STEP_NS;

        heartbeat_step(arg, i, (double)i);
        while (clock_ns() < end)
            continue;
    }
    return NULL;
}

Test(heartbeat, step_and_loss_are_read_as_a_pair_while_they_change)
{
    struct heartbeat *s = NULL;
    struct heartbeat_status m;
    int file;
    pthread_t writer;
    int64_t seen = 0, last = -1;

    cr_assert_eq(heartbeat_open(&s, temp_dir, 0, 1, &err), TP_OK);
    file = file_of(0);
    pthread_create(&writer, NULL, write_steps, s);
    while (last < STEPS - 1) {
        cr_assert_eq(heartbeat_read(&m, file, 0, &err), TP_OK, "%s", err.msg);
        cr_assert_geq(m.step, last, "steps never go back");
        /* a loss is stored before its step, so the loss may be of the next step */
        if (m.step >= 0)
            cr_assert(m.loss - (double)m.step >= 0 && m.loss - (double)m.step <= 1,
                      "step %ld has loss %g", (long)m.step, m.loss);
        last = m.step;
        seen++;
        atomic_store(&has_looked, true);
    }
    pthread_join(writer, NULL);
    heartbeat_close(s, true);
    cr_expect_gt(seen, 1);
}
