/* tests/unit/ckpt_root_owner.c - a checkpoint root has one live owner. */
#include "ckpt/root_owner.h"

#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/process_stat.h"
#include "tests/unit/temp_dir.h"

static struct tp_err err;
static const struct root_owner_claim ONE = { "run-1", "first" }, TWO = { "run-2", "second" };

TestSuite(root_owner, .init = temp_dir_make, .fini = temp_dir_remove, .timeout = 60);

static struct root_owner *claim(const struct root_owner_claim *who)
{
    struct root_owner *o = NULL;

    cr_assert_eq(root_owner_claim(&o, temp_dir, who, &err), TP_OK, "%s", err.msg);
    return o;
}

static void expect_refused(const struct root_owner_claim *who)
{
    struct root_owner *o = NULL;

    cr_expect_eq(root_owner_check(temp_dir, who->run, &err), TP_E_EXISTS);
    cr_expect_eq(root_owner_claim(&o, temp_dir, who, &err), TP_E_EXISTS);
    cr_expect_null(o);
    cr_expect(strstr(err.msg, "job \"first\"") && strstr(err.msg, " host ") &&
                  strstr(err.msg, "of user "),
              "%s", err.msg);
}

/* A process that claims the root and ends without a release; `child` is recorded if it is not 0. */
static void claim_and_die(pid_t child)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct root_owner *o = NULL;
        struct process_stat stat = { 0 };

        if (root_owner_claim(&o, temp_dir, &ONE, &err))
            _exit(1);
        if (child && process_stat_read(&stat, child))
            root_owner_set_child(o, child, stat.start);
        _exit(0);
    }
    cr_assert(waitpid(pid, &status, 0) == pid && status == 0);
}

Test(root_owner, a_second_job_is_refused_until_the_first_has_ended)
{
    struct root_owner *o = claim(&ONE);
    char me[64];

    expect_refused(&TWO);
    snprintf(me, sizeof me, "pid %d", (int)getpid());
    cr_expect(strstr(err.msg, me), "%s", err.msg);
    cr_expect_eq(root_owner_check(temp_dir, ONE.run, &err), TP_OK, "it is its own");
    root_owner_close(o, true);
    cr_expect(!file_exists(temp_path("owner")));
    root_owner_close(claim(&TWO), true);
}

Test(root_owner, a_job_that_was_started_again_takes_its_own_claim_over)
{
    struct root_owner *old = claim(&ONE), *o = claim(&ONE);

    root_owner_close(old, true); /* its file has been replaced, so it releases nothing */
    expect_refused(&TWO);
    root_owner_close(o, true);
    cr_expect_eq(root_owner_check(temp_dir, TWO.run, &err), TP_OK);
}

Test(root_owner, a_dead_owner_is_replaced_at_once)
{
    claim_and_die(0);
    cr_expect(file_exists(temp_path("owner")));
    cr_expect_eq(root_owner_check(temp_dir, TWO.run, &err), TP_OK, "%s", err.msg);
    root_owner_close(claim(&TWO), true);
}

Test(root_owner, the_owner_lives_while_the_process_of_its_ranks_does)
{
    pid_t child = fork();

    if (child == 0) {
        pause();
        _exit(0);
    }
    claim_and_die(child);
    expect_refused(&TWO);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    root_owner_close(claim(&TWO), true);
}

/* Change a text of ROOT/owner, and set its time `age` seconds back. */
static void change(const char *name, const char *value, long age)
{
    struct timespec now, times[2];
    json_t *o = json_load_file(temp_path("owner"), 0, NULL);

    cr_assert_not_null(o);
    json_object_set_new(o, name, json_string(value));
    cr_assert_eq(json_dump_file(o, temp_path("owner"), 0), 0);
    json_decref(o);
    clock_gettime(CLOCK_REALTIME, &now);
    times[0] = times[1] = (struct timespec){ now.tv_sec - age, now.tv_nsec };
    cr_assert_eq(utimensat(AT_FDCWD, temp_path("owner"), times, 0), 0);
}

Test(root_owner, an_owner_elsewhere_lives_while_it_sets_the_time_of_its_file)
{
    static const char *const names[] = { "boot", "pid_space" };

    for (int i = 0; i < 2; i++) {
        claim_and_die(0);
        change(names[i], "another", 0);
        expect_refused(&TWO);
        change(names[i], "another", ROOT_OWNER_LEASE_S - 5);
        expect_refused(&TWO);
        change(names[i], "another", -1000); /* the clock was set back */
        expect_refused(&TWO);
        change(names[i], "another", ROOT_OWNER_LEASE_S + 1);
        root_owner_close(claim(&TWO), true);
    }
}

Test(root_owner, a_beat_sets_the_time_of_the_file)
{
    struct root_owner *o = claim(&ONE);
    struct timespec old[2] = { { 1000, 0 }, { 1000, 0 } };
    struct stat sb;

    cr_assert_eq(utimensat(AT_FDCWD, temp_path("owner"), old, 0), 0);
    root_owner_beat(o);
    cr_assert_eq(stat(temp_path("owner"), &sb), 0);
    cr_expect_gt(sb.st_mtim.tv_sec, 1000);
    root_owner_close(o, true);
}

Test(root_owner, another_process_with_the_pid_of_the_owner_is_not_the_owner)
{
    struct root_owner *o = claim(&ONE);

    root_owner_close(o, false);
    expect_refused(&TWO);
    change("job", "first", 0);
    {
        json_t *json = json_load_file(temp_path("owner"), 0, NULL);

        json_object_set_new(json, "pid_start", json_integer(1));
        cr_assert_eq(json_dump_file(json, temp_path("owner"), 0), 0);
        json_decref(json);
    }
    root_owner_close(claim(&TWO), true);
}

Test(root_owner, a_damaged_file_owns_nothing_and_its_text_does_no_harm)
{
    static const char *const texts[] = { "", "{", "[]", "{\"run\": 1}", "\xff\xfe" };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        temp_write("owner", texts[i], strlen(texts[i]));
        cr_expect_eq(root_owner_check(temp_dir, "x", &err), TP_OK);
        root_owner_close(claim(&TWO), true);
    }
    root_owner_close(claim(&ONE), false);
    change("user", "\x1b[2Jroot\n", 0);
    cr_expect_eq(root_owner_check(temp_dir, "x", &err), TP_E_EXISTS);
    cr_expect(!strchr(err.msg, 0x1b) && !strchr(err.msg, '\n'), "%s", err.msg);
}

/* Its time may be anything; 1e300 is not a time_t. */
Test(root_owner, an_owner_of_no_time_is_named_all_the_same)
{
    const double wrong[] = { 1e300, -1e300, -1 };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *json;

        root_owner_close(claim(&ONE), false);
        json = json_load_file(temp_path("owner"), 0, NULL);
        json_object_set_new(json, "since", json_real(wrong[i]));
        cr_assert_eq(json_dump_file(json, temp_path("owner"), 0), 0);
        json_decref(json);
        expect_refused(&TWO);
        cr_expect(strstr(err.msg, "since ?"), "%s", err.msg);
    }
}
