/*
 * tests/unit/ckpt_transaction.c - a step appears complete or not at all; steps are found and
 * pruned.
 *
 * covers: ckpt/epoch ckpt/prune ckpt/root ckpt/temporary
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/epoch.h"
#include "ckpt/prune.h"
#include "ckpt/root.h"
#include "ckpt/verify.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "tests/unit/fixture.h"
#include "tests/unit/temp_dir.h"

static char root[64];

static void make_root(void)
{
    temp_dir_make();
    snprintf(root, sizeof root, "%s/root", temp_dir);
}

TestSuite(transaction, .init = make_root, .fini = temp_dir_remove);

static struct tensor tensors[] = {
    { .name = "w",
      .group = "param",
      .ndim = 2,
      .shape = { 6, 4 },
      .placement = { .dim = -1, .unit = 1, .blocks = 1 } },
};

static struct layout one_tensor(void)
{
    static struct arena arena;
    struct spec s = spec_default();
    struct tp_err err;
    struct layout l;

    cr_assert_eq(layout_make(&l, &s, 1, tensors, 1, &arena, &err), TP_OK);
    return l;
}

static tp_status save(int64_t step, uint64_t seed, bool force, struct tp_err *err)
{
    struct layout l = one_tensor();

    return fixture_checkpoint(root, step, &l, NULL, seed, force, err);
}

static tp_status begin(struct ckpt_transaction *t, int64_t step, int64_t epoch, struct tp_err *err)
{
    const struct ckpt_begin_request request = { .root = root, .step = step, .epoch = epoch };

    return ckpt_begin(t, &request, err);
}

/* Begin as tp-reshard does: as the only writer, and resuming `resume` unless it is NULL. */
static tp_status begin_alone(struct ckpt_transaction *t, int64_t step, const char *resume,
                             struct tp_err *err)
{
    const struct ckpt_begin_request request = {
        .root = root, .step = step, .exclusive = true, .resume = resume
    };

    return ckpt_begin(t, &request, err);
}

static tp_status prune(const char *dir, int keep, int64_t keep_every, bool dry_run,
                       struct tp_err *err)
{
    const struct ckpt_prune_request request = {
        .root = dir, .keep = keep, .keep_every = keep_every, .dry_run = dry_run, .verify_jobs = 1
    };
    struct ckpt_pruned pruned;
    struct arena arena = { 0 };
    tp_status st = ckpt_prune(&pruned, &request, &arena, err);

    arena_free(&arena);
    return st;
}

static int count_entries(bool complete_only)
{
    struct arena arena = { 0 };
    struct ckpt_step *steps;
    struct tp_err err;
    int n = 0, count = 0;

    cr_assert_eq(ckpt_list(&steps, &n, root, &arena, &err), TP_OK);
    for (int i = 0; i < n; i++)
        count += steps[i].complete || !complete_only;
    arena_free(&arena);
    return count;
}

/* Verify every byte of a step. Returns the seed that its manifest has. */
static uint64_t seed_of(const char *path, int64_t step)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    char dir[PATH_MAX];
    struct verify v = { .dir = dir, .jobs = 1 };
    uint64_t seed;

    cr_assert_eq(ckpt_locate(dir, path, step, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(ckpt_verify(&v, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(v.findings, 0);
    seed = v.manifest.state.seed;
    arena_free(&arena);
    return seed;
}

Test(transaction, a_step_appears_once_and_is_replaced_only_by_force)
{
    struct tp_err err = { 0 };
    char link[PATH_MAX], target[PATH_MAX] = "";

    cr_assert_eq(save(5, 1, false, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(save(5, 2, false, &err), TP_E_EXISTS);
    cr_assert_eq(seed_of(root, 5), 1);
    cr_assert_eq(save(5, 2, true, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(seed_of(root, 5), 2);
    cr_assert_eq(save(7, 3, false, &err), TP_OK);
    cr_assert_eq(save(6, 4, false, &err), TP_OK);
    cr_assert_eq(count_entries(false), 3);
    snprintf(link, sizeof link, "%s/latest", root);
    cr_assert_gt(readlink(link, target, sizeof target - 1), 0);
    cr_assert_str_eq(target, "step-00000007");
    cr_assert_eq(seed_of(link, -1), 3);
}

/* Write a file into the directory of step 5. */
static void put_file(const char *name, const char *text)
{
    struct tp_err err = { 0 };
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/step-00000005/%s", root, name);
    unlink(path);
    cr_assert_eq(file_write_new(path, text, strlen(text), &err), TP_OK, "%s", err.msg);
}

Test(transaction, force_replaces_a_damaged_step)
{
    struct tp_err err = { 0 };

    cr_assert_eq(save(5, 1, false, &err), TP_OK, "%s", err.msg);
    put_file(MANIFEST_FILE, "{}");
    cr_assert_eq(save(5, 2, true, &err), TP_OK, "%s", err.msg);
    put_file("notes.txt", "beside what the manifest says");
    cr_assert_eq(save(5, 3, true, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(seed_of(root, 5), 3);
}

Test(transaction, force_does_not_replace_what_is_no_step)
{
    static const char *const names[] = { "notes.txt", MANIFEST_FILE };
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    struct tp_err err = { 0 };
    char dir[PATH_MAX], path[PATH_MAX];

    snprintf(dir, sizeof dir, "%s/step-00000005", root);
    cr_assert(mkdir(root, 0777) == 0 && mkdir(dir, 0777) == 0);
    for (int i = 0; i < 2; i++) { /* with another program's manifest.json too */
        put_file(names[i], "{\"name\": \"mine\"}");
        cr_assert_eq(save(5, 1, true, &err), TP_E_EXISTS);
        cr_assert(strstr(err.msg, dir) && strstr(err.msg, "is not a checkpoint"), "%s", err.msg);
        cr_assert_eq(file_join(path, dir, names[i], &err), TP_OK);
        cr_assert(file_exists(path));
    }
    cr_assert_eq(count_entries(false), 1);
    unlink(path);
    cr_assert_eq(file_join(path, dir, names[0], &err), TP_OK);
    cr_assert(unlink(path) == 0 && rmdir(dir) == 0);
    cr_assert_eq(file_write_new(dir, "a file", 6, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(save(5, 1, true, &err), TP_E_EXISTS);
    cr_assert_eq(unlink(dir), 0);
    cr_assert_eq(begin(&t, 5, 0, &err), TP_OK, "%s", err.msg);
    ckpt_abort(&t);
}

Test(transaction, force_does_not_replace_what_came_during_the_save)
{
    const struct ckpt_begin_request q = { .root = root, .step = 5, .force = true };
    struct manifest m = { .layout = one_tensor(), .state = { .dtype = "fp32" } };
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    cr_assert_eq(ckpt_begin(&t, &q, &err), TP_OK, "%s", err.msg);
    snprintf(dir, sizeof dir, "%s/step-00000005", root);
    cr_assert_eq(mkdir(dir, 0777), 0);
    put_file("notes.txt", "mine");
    cr_assert_eq(ckpt_commit(&t, &m, &err), TP_E_EXISTS);
    ckpt_abort(&t);
    snprintf(dir, sizeof dir, "%s/step-00000005/notes.txt", root);
    cr_assert(file_exists(dir));
}

/* How the file system fails, for the C library's calls as the code under test sees them. */
static bool root_sync_fails, exchange_fails_after_it, has_no_exchange;
static int root_syncs;

int fsync(int fd)
{
    struct stat it, of_root;

    if (root_sync_fails && fstat(fd, &it) == 0 && stat(root, &of_root) == 0 &&
        it.st_ino == of_root.st_ino) {
        root_syncs++;
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if ((flags && has_no_exchange) || (exchange_fails_after_it && root_syncs > 0)) {
        errno = has_no_exchange ? EINVAL : EIO;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

Test(transaction, force_replaces_a_step_where_names_cannot_be_exchanged)
{
    struct tp_err err = { 0 };

    has_no_exchange = true; /* as on NFS */
    cr_assert_eq(save(5, 1, false, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(save(5, 2, true, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(seed_of(root, 5), 2);
    cr_assert_eq(count_entries(false), 1);
    root_sync_fails = true;
    cr_assert_eq(save(5, 3, true, &err), TP_E_IO);
    cr_assert_eq(save(6, 3, false, &err), TP_E_IO);
    cr_assert_eq(root_syncs, 2);
    cr_assert_eq(seed_of(root, 5), 2, "what was there did not come back");
    cr_assert_eq(count_entries(false), 1, "step 6 stayed, though its commit failed");
}

Test(transaction, a_step_is_not_removed_when_it_cannot_get_its_name_back)
{
    struct tp_err err = { 0 };

    cr_assert_eq(save(5, 1, false, &err), TP_OK, "%s", err.msg);
    root_sync_fails = exchange_fails_after_it = true;
    cr_assert_eq(save(5, 2, true, &err), TP_E_IO);
    cr_assert_eq(root_syncs, 1);
    cr_assert_eq(count_entries(false), 2, "the step that was replaced is gone");
    cr_assert_eq(seed_of(root, 5), 2);
}

Test(transaction, abort_leaves_nothing)
{
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    struct tp_err err = { 0 };

    cr_assert_eq(begin(&t, 1, 0, &err), TP_OK, "%s", err.msg);
    cr_assert(file_is_dir(t.tmp.path));
    ckpt_abort(&t);
    ckpt_abort(&t);
    cr_assert_not(file_exists(root));
}

Test(transaction, an_older_job_cannot_commit)
{
    struct manifest m = { .layout = one_tensor(), .state = { .dtype = "fp32" } };
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    struct tp_err err = { 0 };
    int64_t old, new;

    cr_assert_eq(ckpt_claim(&old, root, &(struct root_lock_wait){ 0 }, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(begin(&t, 3, old, &err), TP_OK);
    cr_assert_eq(ckpt_claim(&new, root, &(struct root_lock_wait){ 0 }, &err), TP_OK);
    cr_assert_eq(new, old + 1);
    cr_assert_eq(ckpt_commit(&t, &m, &err), TP_E_STALE);
    ckpt_abort(&t);
    cr_assert_eq(count_entries(false), 0);
}

Test(transaction, an_older_job_that_begins_a_step_of_a_newer_one_is_told_so)
{
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    struct tp_err err = { 0 };
    int64_t old, new;

    cr_assert_eq(save(3, 1, false, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(ckpt_claim(&old, root, &(struct root_lock_wait){ 0 }, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(begin(&t, 3, old, &err), TP_E_EXISTS);
    cr_assert_eq(ckpt_claim(&new, root, &(struct root_lock_wait){ 0 }, &err), TP_OK);
    cr_assert_eq(begin(&t, 3, old, &err), TP_E_STALE);
    cr_assert_eq(begin(&t, 3, new, &err), TP_E_EXISTS);
}

Test(transaction, files_of_dead_writers_are_removed_and_those_of_living_ones_stay)
{
    struct ckpt_transaction alive;
    struct tp_err err = { 0 };
    char dead[PATH_MAX];

    cr_assert_eq(begin(&alive, 9, 0, &err), TP_OK);
    snprintf(dead, sizeof dead, "%s/step-00000009.tmp-0123", root);
    cr_assert_eq(mkdir(dead, 0777), 0);
    cr_assert_eq(save(9, 1, false, &err), TP_OK, "%s", err.msg);
    cr_assert_not(file_exists(dead));
    cr_assert(file_is_dir(alive.tmp.path));
    ckpt_abort(&alive);
}

/* The paths of the temporary directories of a step. */
static int temporaries(int64_t step, const char ***paths, struct arena *arena)
{
    struct tp_err err = { 0 };
    int n = -1;

    cr_assert_eq(ckpt_list_temporaries(paths, &n, root, step, arena, &err), TP_OK, "%s", err.msg);
    return n;
}

Test(transaction, a_suspended_transaction_is_resumed_with_its_files)
{
    struct ckpt_transaction t = { .tmp.lock_fd = -1 }, again = { .tmp.lock_fd = -1 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    char path[PATH_MAX];
    const char **found;

    cr_assert_eq(begin_alone(&t, 3, NULL, &err), TP_OK, "%s", err.msg);
    cr_assert(!t.resumed && t.made_root);
    cr_assert_eq(file_join(path, t.tmp.path, "shard", &err), TP_OK);
    cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK);
    ckpt_suspend(&t);
    cr_assert_eq(temporaries(3, &found, &arena), 1);
    cr_assert_eq(begin_alone(&again, 3, found[0], &err), TP_OK, "%s", err.msg);
    cr_assert(again.resumed);
    cr_assert_str_eq(again.tmp.path, found[0]);
    cr_assert(file_exists(path));
    ckpt_abort(&again);
    cr_assert_eq(temporaries(3, &found, &arena), 0);
    arena_free(&arena);
}

Test(transaction, a_suspended_transaction_that_is_not_resumed_is_removed)
{
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    const char **found, *before;

    cr_assert_eq(begin_alone(&t, 3, NULL, &err), TP_OK);
    ckpt_suspend(&t);
    cr_assert_eq(temporaries(3, &found, &arena), 1);
    before = found[0];
    cr_assert_eq(begin_alone(&t, 3, NULL, &err), TP_OK);
    cr_assert(!t.resumed && !file_exists(before));
    ckpt_abort(&t);
    cr_assert_eq(begin_alone(&t, 3, before, &err), TP_OK); /* it no longer exists */
    cr_assert_not(t.resumed);
    ckpt_abort(&t);
    arena_free(&arena);
}

Test(transaction, an_exclusive_writer_is_refused_while_another_is_alive)
{
    struct ckpt_transaction alive = { .tmp.lock_fd = -1 }, t = { .tmp.lock_fd = -1 };
    struct tp_err err = { 0 };

    cr_assert_eq(begin(&alive, 4, 0, &err), TP_OK);
    cr_assert_eq(begin_alone(&t, 4, NULL, &err), TP_E_EXISTS);
    cr_assert(strstr(err.msg, "step 4"), "%s", err.msg);
    cr_assert_eq(begin_alone(&t, 4, alive.tmp.path, &err), TP_E_EXISTS);
    cr_assert_eq(begin_alone(&t, 5, NULL, &err), TP_OK, "another step may be written: %s", err.msg);
    ckpt_abort(&t);
    cr_assert(file_is_dir(alive.tmp.path));
    ckpt_abort(&alive);
}

Test(transaction, of_several_writers_one_commits, .timeout = 120)
{
    for (int round = 0; round < 60; round++) {
        struct tp_err err = { 0 };
        int wins = 0, exists = 0;
        pid_t child[4];

        for (int i = 0; i < 4; i++)
            if ((child[i] = fork()) == 0) {
                tp_status st = save(1, (uint64_t)i + 1, false, &err);

                _exit(st == TP_OK ? 0 : st == TP_E_EXISTS ? 1 : 2);
            }
        for (int i = 0; i < 4; i++) {
            int status;

            waitpid(child[i], &status, 0);
            wins += WIFEXITED(status) && WEXITSTATUS(status) == 0;
            exists += WIFEXITED(status) && WEXITSTATUS(status) == 1;
        }
        cr_assert_eq(wins, 1);
        cr_assert_eq(exists, 3);
        cr_assert_eq(count_entries(false), 1);
        seed_of(root, 1);
        file_tree_remove(root, &err);
    }
}

Test(transaction, a_reader_sees_the_old_or_the_new_while_a_step_is_replaced, .timeout = 120)
{
    struct tp_err err = { 0 };
    uint64_t last = 0;
    int status;
    pid_t child;

    cr_assert_eq(save(1, 1, false, &err), TP_OK);
    if ((child = fork()) == 0) {
        for (uint64_t seed = 2; seed <= 60; seed++)
            if (save(1, seed, true, &err))
                _exit(1);
        _exit(0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct arena arena = { 0 };
        struct ckpt_found found;

        /* the directory may be replaced between two reads, but it is never incomplete */
        if (ckpt_open(&found, root, 1, &arena, &err) == TP_OK) {
            cr_assert_geq(found.manifest.state.seed, last);
            last = found.manifest.state.seed;
        } else {
            cr_assert_eq(err.status, TP_E_CORRUPT, "%s", err.msg);
        }
        arena_free(&arena);
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(seed_of(root, 1), 60);
}

Test(transaction, a_damaged_newest_step_is_skipped_with_a_note)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct ckpt_found found;
    char path[PATH_MAX];

    cr_assert_eq(save(10, 1, false, &err), TP_OK);
    cr_assert_eq(save(20, 2, false, &err), TP_OK);
    snprintf(path, sizeof path, "%s/step-00000020/manifest.json", root);
    cr_assert_eq(truncate(path, 100), 0);
    cr_assert_eq(ckpt_open(&found, root, -1, &arena, &err), TP_OK);
    cr_assert_eq(found.manifest.step, 10);
    cr_assert(strstr(found.note, "step-00000020") && strstr(found.note, "step-00000010"), "%s",
              found.note);
    cr_assert_eq(ckpt_open(&found, root, 10, &arena, &err), TP_OK);
    cr_assert_str_empty(found.note);
    cr_assert_eq(ckpt_open(&found, root, 20, &arena, &err), TP_E_CORRUPT);
    cr_assert_eq(count_entries(true), 1);
    arena_free(&arena);
}

Test(transaction, folders_that_are_not_checkpoints_are_refused_and_unchanged)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct ckpt_found found;

    cr_assert_eq(ckpt_open(&found, "ckpt", -1, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(ckpt_open(&found, "/nonexistent", -1, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(ckpt_open(&found, "Makefile", -1, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(ckpt_open(&found, "", -1, &arena, &err), TP_E_USAGE);
    cr_assert_eq(prune(temp_dir, 1, 0, false, &err), TP_E_NOTFOUND);
    cr_assert_not(file_exists(root));
    arena_free(&arena);
}

Test(transaction, prune_keeps_the_newest_and_every_kth)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    for (int64_t step = 10; step <= 70; step += 10)
        cr_assert_eq(save(step, 1, false, &err), TP_OK);
    cr_assert_eq(prune(root, 2, 30, true, &err), TP_OK);
    cr_assert_eq(count_entries(false), 7);
    cr_assert_eq(prune(root, 2, 30, false, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(count_entries(false), 3);
    for (int64_t step = 10; step <= 70; step += 10)
        cr_assert_eq(ckpt_locate(dir, root, step, &err),
                     step == 30 || step == 60 || step == 70 ? TP_OK : TP_E_NOTFOUND);
}

/* Flip a bit in the middle of the only shard of a step. */
static void damage(int64_t step)
{
    char path[PATH_MAX];
    unsigned char byte;
    struct stat sb;
    int fd;

    snprintf(path, sizeof path, "%s/step-%08lld/rank-00000.h5", root, (long long)step);
    fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0 && fstat(fd, &sb) == 0);
    cr_assert_eq(pread(fd, &byte, 1, sb.st_size / 2), 1);
    byte ^= 16;
    cr_assert_eq(pwrite(fd, &byte, 1, sb.st_size / 2), 1);
    close(fd);
}

/* Prune as a run does that has just saved `saved`. Returns how many steps are left. */
static int prune_after_saving(int64_t saved, int keep)
{
    const struct ckpt_prune_request request = { .root = root, .keep = keep, .saved = &saved };
    struct ckpt_pruned pruned;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };

    cr_assert_eq(ckpt_prune(&pruned, &request, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(pruned.n_damaged, 0);
    arena_free(&arena);
    return count_entries(false);
}

Test(transaction, prune_counts_only_intact_steps)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    for (int64_t step = 10; step <= 40; step += 10)
        cr_assert_eq(save(step, 1, false, &err), TP_OK);
    damage(40);
    damage(30);
    cr_assert_eq(prune(root, 1, 0, false, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(ckpt_locate(dir, root, 20, &err), TP_OK, "the newest intact step is kept");
    cr_assert_eq(ckpt_locate(dir, root, 10, &err), TP_E_NOTFOUND);
    cr_assert_eq(count_entries(false), 3, "damaged steps stay");
    damage(20);
    cr_assert_eq(prune(root, 1, 0, false, &err), TP_E_CORRUPT);
    cr_assert_eq(count_entries(false), 3);
}

Test(transaction, a_run_that_prunes_counts_from_the_step_that_it_saved)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    for (int64_t step = 10; step <= 50; step += 10)
        cr_assert_eq(save(step, 1, false, &err), TP_OK);
    damage(50);
    cr_assert_eq(prune_after_saving(40, 2), 3);
    cr_assert_eq(prune_after_saving(40, 1), 2);
    cr_assert_eq(ckpt_locate(dir, root, 40, &err), TP_OK);
    cr_assert_eq(ckpt_locate(dir, root, 50, &err), TP_OK, "it is not of this run");
}
